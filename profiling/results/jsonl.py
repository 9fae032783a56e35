"""Writes and reads `results.jsonl`: one record a line. The newest of a cell counts; a damaged line is skipped.

A cell that runs several times has a line for each round, of which the newest counts, until its run is complete.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from profiling.errors import InputError
from profiling.results.record import SCHEMA, Record

RESULTS_FILE = "results.jsonl"
#: Most bytes of a file that is read; a record has some kilobytes.
MOST_BYTES = 2**30
#: What `msgspec.json.decode` raises for content that it does not take.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_BOM = b"\xef\xbb\xbf"
_Kind = TypeVar("_Kind")


class Results(NamedTuple):
    """Records of a file, one of each cell, in the order in which the cells first ended."""

    records: tuple[Record, ...]
    skipped_lines: int  # that are cut off, or hold no record
    rounds: tuple[tuple[Record, ...], ...] = ()  # of which each record was merged; itself where it is of no round


def append_record(run: Path, record: Record) -> None:
    """Write `record` as the last line of the run's results, on the disk before this returns; see `encode_record`.

    A line cut off by an earlier crash is closed first, so that it cannot swallow this one.
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
    """Return the record as a line in UTF-8, without the newline. Raises ValueError if a number is not finite."""
    content = msgspec.to_builtins(record, str_keys=True)
    # Lone surrogates, which no reader takes, become "?".
    return json.dumps(content, allow_nan=False, ensure_ascii=False).encode(errors="replace")


def read_file(path: Path) -> bytes:
    """Return the content of a file of a run; raises OSError above `MOST_BYTES`, and for what is no regular file.

    A FIFO would block, and a device may never end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if path.stat().st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES / 2**30:g} GiB", str(path))
    return path.read_bytes()


def decoded(path: Path, kind: type[_Kind]) -> _Kind | None:
    """Return the JSON content of a file of a run as this type; None where it is missing or damaged."""
    with suppress(OSError, *DECODE_ERRORS):
        return msgspec.json.decode(read_file(path), type=kind)
    return None


def read_records(run: Path) -> Results:
    """Read the records of a run: of its folder, or of a file like `results.jsonl`, whatever it is called.

    No results, unreadable ones and those of another schema raise InputError.
    """
    path = run if run.is_file() else run / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"{run} is no run: it has no {RESULTS_FILE}. Name a folder that a run printed at its end.")
    try:
        content = read_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Name a folder that a run printed.") from None
    from profiling.results.rounds import merged  # needs the judge, which those need not import who only write

    cells, skipped = dict[tuple[str, str], dict[int | None, Record]](), 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            record = decode_record(line.removeprefix(_BOM))
        except ValueError as error:
            raise InputError(f"{path}: {error}. Render it with the version that wrote it, or run again.") from None
        if record is None:
            skipped += 1
        else:
            before = cells.setdefault(record.cell, {})
            if record.round is None or None in before:
                before.clear()
            before.pop(record.round, None)
            before[record.round] = record  # the newest is the last one
    rounds = tuple(tuple(each.values()) for each in cells.values())
    return Results(tuple(map(merged, rounds)), skipped, rounds)


def decode_record(line: bytes) -> Record | None:
    """Return the record in a line, or None if the line holds no record. Raises ValueError if its schema is unknown."""
    with suppress(*DECODE_ERRORS):
        return msgspec.json.decode(line, type=Record)
    schema: Any = SCHEMA
    with suppress(*DECODE_ERRORS):
        schema = msgspec.json.decode(line, type=dict[str, Any]).get("schema", SCHEMA)
    if schema != SCHEMA:
        raise ValueError(f"record of schema {schema}; this version reads schema {SCHEMA}")
    return None
