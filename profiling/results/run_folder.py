"""The run folder: everything a reader needs is in it, and everything in it is relative to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from profiling.errors import InputError, python_command
from profiling.results.jsonl import RESULTS_FILE, read_records
from profiling.results.record import Record

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"

#: Keys that may differ between a run and its resumption: they say how to go on, not what is measured.
FREE_KEYS = ("resume", "cell_timeout")


def new_folder(base: Path, stamp: str) -> Path:
    """Make and return `<base>/<stamp>`, or `<stamp>-2`, `-3`, … where another run was faster.

    Raises:
        OSError: the folder cannot be made.

    """
    base.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def clear_refused(run: Path) -> None:
    """Take away what a run left that was refused before its first cell; what else lies in the folder stays."""
    if (run / RESULTS_FILE).exists():
        return
    cells = run / "cells"
    for left in (run / CONFIG_FILE, run / ENVIRONMENT_FILE, cells / "probe.log"):
        left.unlink(missing_ok=True)
    for folder in (cells, run):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def prepare_folder(run: Path, config: Mapping[str, Any], resume: str | None) -> tuple[Record, ...]:
    """Make `run` ready for the cells of `config`; return the records of an earlier part that need no repeating.

    Those are the ok and the skipped ones: what failed or was disturbed is done again.

    Raises:
        InputError: the folder holds a run that was not asked to be resumed, is no run, or is a run of another config.

    """
    if resume is None:
        if (run / RESULTS_FILE).exists():
            raise InputError(f"{run} holds a run already. Choose another hydra.run.dir, or add resume={run} to go on.")
        (run / "cells").mkdir(parents=True, exist_ok=True)
        write_text(run / CONFIG_FILE, yaml.safe_dump(dict(config), sort_keys=False))
        return ()
    if not (run / CONFIG_FILE).is_file():
        raise InputError(f"resume={resume} is no run: it has no {CONFIG_FILE}. Name a folder that a run printed.")
    differing = differences(_read_config(run / CONFIG_FILE), config)
    if differing:
        raise InputError(
            f"resume={resume} was run with another config ({', '.join(differing[:5])}). "
            f"Use the same config: {resume_command(run)}"
        )
    done = read_records(run).records if (run / RESULTS_FILE).exists() else ()
    return tuple(record for record in done if record.status in ("ok", "skipped"))


def _read_config(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}. Start a new run.") from None


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the keys, dotted, under which two configs differ; `FREE_KEYS` are passed over."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new}, key=str)
        found: list[str] = []
        for key in keys:
            name = f"{path}.{key}" if path else str(key)
            if name in FREE_KEYS:
                continue
            found += [name] if (key in old) != (key in new) else differences(old[key], new[key], name)
        return found
    return [] if old == new else [path]


def resume_command(run: Path) -> str:
    """Return the command that resumes `run`, which works as pasted where the run was started."""
    try:
        command = str(json.loads((run / ENVIRONMENT_FILE).read_text())["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"repeat its command with {shlex.quote(f'resume={run}')} appended"
    words = [word for word in shlex.split(command)[1:] if not word.startswith("resume=")]
    return f"{python_command()} {shlex.join([*words, f'resume={run}'])}"


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")
