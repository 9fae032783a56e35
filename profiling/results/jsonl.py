"""Writes and reads `results.jsonl`: one record a line, the newest of a cell counts. All damaged input is handled here.

A line that is cut off, nested beyond what Python parses, or no record is counted and skipped. In a record, the
smallest named field that holds damage (another type, a number that is not finite or beyond 64 bits, nesting deeper
than 64 levels) is dropped and named in `record.unreadable`; the rest stands. A readable record of another schema is an
InputError.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from profiling.errors import InputError
from profiling.results import schema_1
from profiling.results.record import SCHEMA, Record

RESULTS_FILE = "results.jsonl"
#: Levels of nesting below which nothing is read; a record has 8.
DEEPEST = 64
LARGEST = 2**63
#: Most bytes of a file that is read; a record has some kilobytes.
MOST_BYTES = 2**30

#: Digits become 0 and all but the decimal point a blank, so that an integer beyond 64 bits is a blank and 19 zeros.
_NUMBERS = bytes(ord("0") if chr(i) in "0123456789" else i if chr(i) == "." else ord(" ") for i in range(256))
_LARGE = b" " + b"0" * 19

_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$", re.DOTALL)
_BOM = b"\xef\xbb\xbf"


class Results(NamedTuple):
    """Records of a file, the newest of each cell, in the order in which the cells first ended."""

    records: tuple[Record, ...]
    skipped_lines: int  # that are cut off, or hold no record


def append_record(run: Path, record: Record) -> None:
    """Write `record` as the last line of the run's results, on the disk before this returns.

    A line cut off by an earlier crash is closed first, so that it cannot swallow this one.

    Raises:
        ValueError: the record holds a number that is not finite.

    """
    line = encode_record(record)
    with (run / RESULTS_FILE).open("ab+") as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def encode_record(record: Record) -> bytes:
    """Return the record's line in UTF-8, without a newline.

    Raises:
        ValueError: it holds a number that is not finite.

    """
    content = msgspec.to_builtins(msgspec.structs.replace(record, unreadable=()), str_keys=True)
    return json.dumps(content, allow_nan=False).encode()


def read_file(path: Path) -> bytes:
    """Return the content of a file of a run.

    Raises:
        OSError: it cannot be read, has more than `MOST_BYTES`, or is no regular file: a FIFO would block, and a device
            may never end.

    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if path.stat().st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES / 2**30:g} GiB", str(path))
    return path.read_bytes()


def read_records(run: Path) -> Results:
    """Read a run's records.

    Raises:
        InputError: the folder holds no results, or results of another schema.

    """
    path = run / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"{run} is no run: it has no {RESULTS_FILE}. Name a folder that a run printed at its end.")
    return read_results(path)


def read_results(path: Path) -> Results:
    """Read the records of a file like `results.jsonl`, whatever it is called.

    Raises:
        InputError: it cannot be read, or holds results of another schema.

    """
    try:
        content = read_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Name a folder that a run printed.") from None
    newest: dict[tuple[str, str], Record] = {}
    skipped = 0
    for line in content.removeprefix(_BOM).split(b"\n"):
        if not line.strip():
            continue
        try:
            record = decode_record(line)
        except ValueError as error:
            raise InputError(f"{path}: {error}. Render it with the version that wrote it, or run again.") from None
        if record is None:
            skipped += 1
        else:
            newest[record.cell] = record
    return Results(tuple(newest.values()), skipped)


def decode_record(line: bytes) -> Record | None:
    """Return the record of a line; None where it is none.

    Raises:
        ValueError: it is a record of a schema that this version does not know.

    """
    if (undamaged := _undamaged(line)) is not None:
        return undamaged
    content, lost = read_content(line)
    if not isinstance(content, dict) or "schema" not in content:
        return None
    if content["schema"] == 1:
        content = schema_1.upgraded(content)
    if content["schema"] != SCHEMA:
        raise ValueError(f"record of schema {content['schema']}; this version reads schemas 1 and {SCHEMA}")
    return repaired(content, Record, lost)


def _undamaged(line: bytes) -> Record | None:
    """Return the record of a line of the present schema that holds no damage, without looking at each value in Python.

    None where it may hold some, as all fields may that take any content: then `repaired` tells.
    """
    try:
        record = msgspec.json.decode(line, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    is_plain = not (record.metrics.extra or record.realtime is not None or record.unreadable)
    return record if is_plain and _LARGE not in line.translate(_NUMBERS) else None


def repaired(content: dict[str, Any], kind: Any, lost: tuple[str, ...] = ()) -> Any:
    """Return JSON content as the struct `kind`, whose `unreadable` names dropped fields; None if impossible.

    `content` is changed. `lost` names the fields that were dropped before.
    """
    content.pop("unreadable", None)
    while True:
        try:
            typed = msgspec.convert(content, kind)
            return msgspec.structs.replace(typed, unreadable=lost) if lost else typed
        except msgspec.ValidationError as error:
            reason, path = _split(str(error))
            if not path or not _drop(content, path):
                return None
            lost = (*lost, f"{'.'.join(path)}: {reason}")


def _split(message: str) -> tuple[str, list[str]]:
    """Return (reason, the damaged field's path); items of arrays and mappings have no name, so their field is it."""
    match = _PATH.search(message)
    if match is None:
        return message, []
    return message[: match.start()], [name for name in match[1].partition("[")[0].split(".") if name]


def _drop(content: Any, path: list[str]) -> bool:
    for name in path[:-1]:
        content = content.get(name) if isinstance(content, dict) else None
    if not isinstance(content, dict) or path[-1] not in content:
        return False
    del content[path[-1]]
    return True


def read_content(line: bytes) -> tuple[Any, tuple[str, ...]]:
    """Return JSON content (None: it is none) without numbers that no record can hold, and what was dropped of it."""
    lost: list[str] = []
    try:
        content = json.loads(line.removeprefix(_BOM).decode("utf-8", errors="replace"), parse_int=_integer)
        return _kept(content, "", 0, lost), tuple(lost)
    except (ValueError, RecursionError):
        return None, ()


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= 20 and abs(int(digits)) < LARGEST else math.inf


def _kept(content: Any, path: str, depth: int, lost: list[str]) -> Any:
    """Return content without the smallest fields that hold damage; `lost` gets their paths.

    Raises:
        ValueError: the content itself is damaged; without it its field is dropped.

    """
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(content, dict):
        kept = {}
        for key, value in content.items():
            name = f"{path}.{key}" if path else key
            try:
                kept[_text(key)] = _kept(value, name, depth + 1, lost)
            except ValueError as error:
                lost.append(f"{name}: {error}")
        return kept
    if isinstance(content, list):
        return [_kept(value, f"{path}[{index}]", depth + 1, lost) for index, value in enumerate(content)]
    if isinstance(content, float) and not math.isfinite(content):
        raise ValueError("a number that is not finite or too large")
    return _text(content)


def _text(value: Any) -> Any:
    """Return text without lone surrogates, which no file and no terminal takes."""
    return value.encode("utf-8", errors="replace").decode() if isinstance(value, str) else value
