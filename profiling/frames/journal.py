"""Frames on the disk as they are made, so that whatever ends the process costs none of those that were finished."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from profiling.frames.series import Array, series_file, write_series

SUFFIX = ".frames.part"


class Journal:
    """Appends one row a frame: a line of names, then float64 numbers, handed to the system at once.

    The system has them when the process dies; only a machine that loses power loses what it had not yet written.
    """

    def __init__(self, run: Path, cell: str, names: Sequence[str]) -> None:
        self._path = _part(run, cell)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._names = tuple(names)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.write(self._file, json.dumps(self._names).encode() + b"\n")

    def append(self, row: Mapping[str, float]) -> None:
        """Write a frame; what `row` lacks was not measured."""
        nan = float("nan")
        values = np.array([row.get(name, nan) for name in self._names], dtype=np.float64)
        os.write(self._file, values.tobytes())

    def close(self) -> None:
        """Let go of the file; it stays for `rescue`."""
        os.close(self._file)


def rescue(run: Path, cell: str) -> dict[str, Array] | None:
    """Turn a cell's journal into its npz and return the series; None where there is no journal.

    Raises:
        OSError: the disk does not take it; the journal stays.

    """
    path = _part(run, cell)
    if not path.is_file():
        return None
    series = _read(path)
    write_series(run / series_file(cell), series)
    path.unlink()
    return series


def _read(path: Path) -> dict[str, Array]:
    line, _, data = path.read_bytes().partition(b"\n")
    names = json.loads(line)
    width = 8 * len(names)
    rows = np.frombuffer(data[: len(data) // width * width], dtype=np.float64).reshape(-1, len(names))
    return {name: rows[:, index].copy() for index, name in enumerate(names)}


def _part(run: Path, cell: str) -> Path:
    return run / "cells" / f"{cell}{SUFFIX}"
