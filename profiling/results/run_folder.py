"""The run folder: held by one process, made for a new run, checked for a resumed one; its files are written atomically.

Everything that a reader needs is in the folder, and every path in its files is relative to it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from profiling.errors import InputError, command, override, shell_words
from profiling.results.environment import ENVIRONMENT_FILE, Environment, read_environment
from profiling.results.jsonl import RESULTS_FILE, Results, encode_record, read_file, read_records
from profiling.results.record import Record

CONFIG_FILE = "config.yaml"
LOCK_FILE = "run.lock"
#: What a sweep writes into the folder of a run before the run begins: its state, and what its process prints.
JOB_FILE, JOB_LOG = "job.json", "job.log"
SWEEP_FILE = "sweep.json"

#: Keys that may differ between a run and its resumption: they do not change what is measured.
FREE_KEYS = ("resume", "resume_changed", "details", "cell_timeout", "prepare_timeout")
#: Errors of file systems that have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class EarlierRun(NamedTuple):
    """What a resumed run keeps; a new run has nothing of it."""

    records: tuple[Record, ...] = ()  # ok or skipped; failed and invalid cells are measured again
    rounds: tuple[tuple[Record, ...], ...] = ()  # of which each was merged
    environment: Environment = Environment()  # empty: the run was killed before it was written
    skipped_lines: int = 0  # of results.jsonl


def new_folder(target: str) -> Path:
    """Create `runs/<target>/<time>`, or `<time>-2`, `-3`, … if it exists, and return it. May raise OSError."""
    base, stamp = Path("runs") / target, datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    base.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def check_is_new(folder: Path) -> None:
    """Raise an InputError unless a folder in which a script saves a run is missing or empty."""
    if folder.is_dir() and (names := sorted(path.name for path in folder.iterdir())):
        what = "holds a run already" if RESULTS_FILE in names else f"is not empty: it holds {names[0]}"
        others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
        free = next(each for each in others if not each.exists())
        raise InputError(f"{folder} {what}. Choose another folder, {free.name} for example.")


@contextmanager
def claimed(
    run: Path, resume: str | None, warn: Callable[[str], None], *, started: float = 0.0, key: str = "hydra.run.dir"
) -> Iterator[None]:
    """Hold the folder `run` for this process; what a new run wrote is removed if it is refused before its first cell.

    `warn` gets a line where the file system has no locks. `started` is when this process began (`time.time`): an empty
    folder from before that is never removed. `key` is the option that names the folder.

    Raises:
        InputError: a new run (`resume` is None) and a folder that is not empty, a resumed run and another folder, or a
            folder in use by another process. No file was changed.
        OSError: the lock file cannot be written.

    """
    is_ours = resume is None and run.stat().st_mtime >= started
    if resume is not None and not run.resolve().is_relative_to(Path(resume).resolve()):  # below it: runs of a sweep
        raise InputError(f"resume={resume} and {key}={run} are different folders. Leave {key} out.")
    if resume is None and not (run / LOCK_FILE).exists():
        _check_is_empty(run, key)  # before the lock file is created in a folder that belongs to something else
    try:
        with _locked(run, resume, warn, key):
            if resume is None:
                _check_is_empty(run, key)
            try:
                yield
            except (InputError, OSError):
                if resume is None and not (run / RESULTS_FILE).exists():
                    _remove_refused_run(run)
                raise
    finally:
        if is_ours:
            remove_empty(run)


def _check_is_empty(run: Path, key: str) -> None:
    names = sorted(path.name for path in run.iterdir() if path.name not in (LOCK_FILE, JOB_FILE, JOB_LOG))
    if names:
        resumption = shell_words([override("resume", run)])
        raise InputError(
            f"{run} is not empty: it holds {names[0]}. Choose another {key}, or, if it holds a run, "
            f"add {resumption} to go on."
        )


def _remove_refused_run(run: Path) -> None:
    """Remove what a run writes before its first cell; the folder was empty when it began."""
    for name in (CONFIG_FILE, ENVIRONMENT_FILE, "cells/probe.log"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "torch_trace" / "probe", ignore_errors=True)
    for name in ("cells", "torch_trace"):
        remove_empty(run / name)


def remove_empty(folder: Path) -> None:
    """Remove a folder if it is there and empty."""
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _locked(run: Path, resume: str | None, warn: Callable[[str], None], key: str) -> Iterator[None]:
    """Hold the lock of `run`; the system releases it when this process dies, and forked processes do not share it."""
    path = run / LOCK_FILE
    try:
        descriptor = _acquired(path, key, "then resume" if resume is not None else f"or choose another {key}", warn)
    except OSError as error:
        if resume is None:
            raise
        raise InputError(
            f"resume={resume} cannot be written: {error.strerror}. Make room or change the permissions, then repeat."
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquired(path: Path, key: str, otherwise: str, warn: Callable[[str], None]) -> int:
    """Create and lock the file, write this process into it, and return its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            before = os.pread(descriptor, 4096, 0)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    owner = _owner(before) or "another process"
                    raise InputError(f"{path.parent} is in use by {owner}. Wait until it ends, {otherwise}.") from None
                if error.errno not in _NO_LOCKS:
                    raise
                warn(f"note: {path.parent} is on a file system without locks. Start no second run in it.")
            with suppress(FileNotFoundError):  # the owner before may have removed the file after it was opened here
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    _write_owner(descriptor, before, path, key)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _write_owner(descriptor: int, before: bytes, path: Path, key: str) -> None:
    if before and _owner(before) is None:
        raise InputError(f"{path} is not the lock of a run. Choose another {key}.")
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    except OSError:
        path.unlink()
        raise


def _owner(content: bytes) -> str | None:
    """Return `process 12 on host, since …` of a lock file; None if it is not of a run."""
    try:
        lock = json.loads(content)
        return f"process {lock['pid']:d} on {lock['host']} (since {lock['since']})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def prepare_folder(run: Path, config: Mapping[str, Any], *, resumed: bool) -> EarlierRun:
    """Prepare the folder `run`, which this process holds, for the cells of `config`; return what a resumed run keeps.

    Raises:
        InputError: there is no run to resume, its config is another, or its files are damaged. No file was changed.

    """
    import yaml  # imported here, because a report also uses this module and must not require yaml

    if not resumed:
        write_text(run / CONFIG_FILE, yaml.safe_dump(dict(config), sort_keys=False))
        (run / "cells").mkdir(exist_ok=True)
        return EarlierRun()
    if not (run / CONFIG_FILE).is_file():
        raise InputError(f"resume={run} is no run: it has no {CONFIG_FILE}. Name a run. Add --multirun for a sweep.")
    differing = config_differences(read_config(run / CONFIG_FILE), config)
    if differing:
        raise InputError(
            f"resume={run} was run with another config ({', '.join(differing[:5])}). "
            f"Use the same config: {resume_command(run)}"
        )
    results = read_records(run) if (run / RESULTS_FILE).exists() else Results((), 0)
    cells = zip(results.records, results.rounds, strict=True)
    kept = [(record, rounds) for record, rounds in cells if record.status in ("ok", "skipped")]
    environment = read_environment(run)
    if results.records and not environment.is_known:
        raise InputError(
            f"{run / ENVIRONMENT_FILE} is missing or damaged, so it is not known on what the "
            "finished cells were measured. Leave resume= out to start a new run."
        )
    records, rounds = zip(*kept, strict=True) if kept else ((), ())
    return EarlierRun(records, rounds, environment, results.skipped_lines)


def read_config(path: Path) -> Mapping[str, Any]:
    """Read `config.yaml` of a run. Raises InputError if it is missing, cannot be parsed, or is not a mapping."""
    import yaml

    try:
        content = yaml.safe_load(read_file(path).decode())
    except Exception as error:  # PyYAML raises anything for a damaged file: KeyError, AttributeError, RecursionError, …
        content = " ".join(str(error).split())[:200]
    if isinstance(content, Mapping):
        return content
    reason = f": {content}" if isinstance(content, str) else ", because it holds no config"
    raise InputError(f"{path} cannot be read{reason}. Start a new run.")


def flat(content: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of each entry of a nested config, ("loop.fps", 60); also of an empty mapping."""
    for key, value in content.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, name)
        else:
            yield name, value


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys in which two configs differ, `FREE_KEYS` left out."""
    before, after = dict(flat(old)), dict(flat(new))
    keys = sorted({*before, *after}.difference(FREE_KEYS))
    return [key for key in keys if key not in before or key not in after or before[key] != after[key]]


def resume_command(run: Path, started_by: str | None = None) -> str:
    """Return the command that resumes `run`, to be pasted in the folder in which the run was started.

    `started_by` is the command that started it, if its environment does not hold that yet.
    """
    recorded, resumption = read_environment(run).command or started_by, override("resume", run)
    if recorded is None:
        return f"repeat its command with {shell_words([resumption])} appended"
    return command(*(word for word in shlex.split(recorded)[1:] if not word.startswith("resume=")), resumption)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: whatever ends the process or the machine, the file is the old one or the new one."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")  # processes may write the same file at once
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, atomically."""
    write_bytes(path, text.encode())


def keep_newest_lines(run: Path, order: Sequence[tuple[str, str]] = ()) -> None:
    """Reduce `results.jsonl`, atomically, to the newest line of each cell, (component, variant) of `order` first."""
    places = {cell: place for place, cell in enumerate(order)}
    newest = sorted(read_records(run).records, key=lambda record: places.get(record.cell, len(places)))
    write_bytes(run / RESULTS_FILE, b"".join(encode_record(record) + b"\n" for record in newest))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, atomically; lone surrogates, which no reader takes, become "?"."""
    write_bytes(path, json.dumps(content, indent=2, ensure_ascii=False).encode(errors="replace") + b"\n")
