"""The run folder: made for a new run, checked for a resumed one; files in it are written atomically.

Everything that a reader needs is in the folder, and every path in its files is relative to it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.errors import InputError, command, override, shell_words
from profiling.results.environment import ENVIRONMENT_FILE, read_environment
from profiling.results.jsonl import RESULTS_FILE, read_records
from profiling.results.record import Record

CONFIG_FILE = "config.yaml"

#: Keys that may differ between a run and its resumption: they do not change what is measured.
FREE_KEYS = ("resume", "cell_timeout")


def new_folder(base: Path, stamp: str) -> Path:
    """Create and return `<base>/<stamp>`, or `<stamp>-2`, `-3`, … where another run has that name.

    Raises:
        OSError: the folder cannot be created.

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


def remove_refused_run(run: Path) -> None:
    """Remove the files of a run that was refused before its first cell; any other file in the folder stays."""
    if (run / RESULTS_FILE).exists():
        return
    cells = run / "cells"
    for file in (run / CONFIG_FILE, run / ENVIRONMENT_FILE, cells / "probe.log"):
        file.unlink(missing_ok=True)
    for folder in (cells, run):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def prepare_folder(run: Path, config: Mapping[str, Any], resume: str | None) -> tuple[Record, ...]:
    """Prepare the folder `run` for the cells of `config`; return the records that a resumed run keeps.

    Cells that are ok or skipped are kept; failed and invalid ones are measured again.

    Raises:
        InputError: the folder holds a run and `resume` is None, or there is no run to resume, or its config is another.

    """
    import yaml  # imported here, because a report also uses this module and must not require yaml

    if resume is None:
        if (run / RESULTS_FILE).exists():
            resumption = shell_words([override("resume", run)])
            raise InputError(f"{run} holds a run already. Choose another hydra.run.dir, or add {resumption} to go on.")
        (run / "cells").mkdir(parents=True, exist_ok=True)
        write_text(run / CONFIG_FILE, yaml.safe_dump(dict(config), sort_keys=False))
        return ()
    if not (run / CONFIG_FILE).is_file():
        raise InputError(f"resume={resume} is no run: it has no {CONFIG_FILE}. Name a folder that a run printed.")
    differing = config_differences(_read_config(run / CONFIG_FILE), config)
    if differing:
        raise InputError(
            f"resume={resume} was run with another config ({', '.join(differing[:5])}). "
            f"Use the same config: {resume_command(run)}"
        )
    records = read_records(run).records if (run / RESULTS_FILE).exists() else ()
    return tuple(record for record in records if record.status in ("ok", "skipped"))


def _read_config(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}. Start a new run.") from None


def config_differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the dotted keys in which two configs differ, `FREE_KEYS` left out."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new}, key=str)
        differing: list[str] = []
        for key in keys:
            name = f"{path}.{key}" if path else str(key)
            if name in FREE_KEYS:
                continue
            differing += [name] if (key in old) != (key in new) else config_differences(old[key], new[key], name)
        return differing
    return [] if old == new else [path]


def resume_command(run: Path) -> str:
    """Return the command that resumes `run`, to be pasted in the folder in which the run was started."""
    recorded, resumption = read_environment(run).command, override("resume", run)
    if recorded is None:
        return f"repeat its command with {shell_words([resumption])} appended"
    return command(*(word for word in shlex.split(recorded)[1:] if not word.startswith("resume=")), resumption)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: whatever ends the process, the file is the old one or the new one.

    Raises:
        OSError: it cannot be written; the old file stays.

    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")  # processes may write the same file at once
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")
