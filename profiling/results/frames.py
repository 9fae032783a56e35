"""Frames on the disk as they are made, so that whatever ends the process costs none of those that were finished."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError

Array = NDArray[np.float64]

#: Name to values, float64 [n] each, n the number of timed frames; NaN was not measured.
Series = Mapping[str, Array]

#: Times that every frame has.
TIMES = ("action_ms", "delivered_ms", "frame_ms", "latency_ms")
#: Bytes after the frame.
MEMORY = ("allocated", "reserved", "device_used", "host_rss")
#: What happened in the frame, and may explain it.
DISTURBANCES = (
    "compiles",
    "captures",
    "graphs_recorded",
    "alloc_retries",
    "device_allocs",
    "collections",
    "switches",
    "throttled",
    "others",
    "collection_ms",
    "steal_ms",
)
#: What stands in every series, beside `host_<stage>_ms` and `device_<stage>_ms` of its stages.
NAMES = (*TIMES, "due_ms", "wait_ms", "rest_ms", "gap_ms", *MEMORY, *DISTURBANCES)

#: Two times of the host's clock that are nearer than this are the same one.
TICK_MS = 1e-6

# What numpy and zipfile raise for archives that are none, damaged, locked, or hold something else.
_UNREADABLE = (OSError, ValueError, TypeError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def series_file(cell: str) -> str:
    """Return where the series of a cell (`<component>.<variant>`) stand, relative to the run folder."""
    return f"cells/{cell}.frames.npz"


def frame_count(series: Series) -> int:
    """Return how many frames were timed."""
    return int(series["frame_ms"].size) if "frame_ms" in series else 0


def stage_names(series: Series) -> tuple[str, ...]:
    """Return the stages in their order: all that have a `host_<stage>_ms`."""
    return tuple(name[5:-3] for name in series if name.startswith("host_") and name.endswith("_ms"))


def cut(series: Series, start: int, stop: int) -> dict[str, Array]:
    """Return the frames from `start` up to, and without, `stop`."""
    return {name: values[start:stop] for name, values in series.items()}


def check_series(series: Series, *, paced: bool) -> None:
    """Refuse series that cannot be judged: a misspelt name would pass for one that was not measured.

    Raises:
        ValueError: a series is missing or of another length, or a frame has no possible time or, `paced`, no due one.

    """
    wanted = (*NAMES, *(f"device_{stage}_ms" for stage in stage_names(series)))
    missing = [name for name in wanted if name not in series]
    if missing:
        raise ValueError(f"not among the series: {', '.join(missing)}")
    shape = (frame_count(series),)
    uneven = [name for name, values in series.items() if values.shape != shape]
    if uneven:
        raise ValueError(f"not of {shape[0]} frames: {', '.join(uneven)}")
    unknown = [name for name in (*TIMES, *(("due_ms",) if paced else ())) if not np.isfinite(series[name]).all()]
    if unknown:
        raise ValueError(f"a frame has no {', no '.join(unknown)}")
    if (series["frame_ms"] < 0).any() or not np.median(series["frame_ms"]) > 0:
        raise ValueError("frame_ms is below 0, or 0 in half of the frames")


def write_series(path: Path, series: Series) -> None:
    """Write the series as a compressed npz, whole or not at all.

    Raises:
        OSError: it cannot be written.

    """
    partial = path.with_name(f"{path.name}.part")
    with partial.open("wb") as file:
        arrays: dict[str, Any] = {name: np.asarray(values, dtype=np.float64) for name, values in series.items()}
        np.savez_compressed(file, **arrays)
    partial.replace(path)


def read_series(path: Path) -> dict[str, Array]:
    """Read the series of an npz.

    Raises:
        InputError: the file is not there or holds no series of frames.

    """
    try:
        with np.load(path, allow_pickle=False) as content:
            series = {name: np.asarray(content[name], dtype=np.float64) for name in content.files}
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read as series of frames: {reason}. Repeat the run that made it.") from None
    if {values.shape for values in series.values()} != {(frame_count(series),)}:
        raise InputError(f"{path} holds no series of frames of one length. Repeat the run that made it.")
    return series


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
        """Let go of the file; it stays for `recover_series`."""
        os.close(self._file)


def recover_series(run: Path, cell: str) -> dict[str, Array] | None:
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
