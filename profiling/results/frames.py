"""The frame series of a loop: a journal while it runs, so that a crash loses no finished frame, then an npz."""

from __future__ import annotations

import errno
import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError
from profiling.results.jsonl import DECODE_ERRORS, read_file
from profiling.results.run_folder import write_bytes

Array = NDArray[np.float64]

#: Values by name, float64 [n] each, n the number of timed frames; NaN: not measured.
Series = Mapping[str, Array]
#: Times that every frame has.
TIMES = ("action_ms", "delivered_ms", "frame_ms", "latency_ms")
#: Bytes held after the frame, by kind.
MEMORY = ("allocated", "reserved", "device_used", "host_rss")
#: Joules that the GPU has taken since the driver's counter was read first; it is read after some frames only.
ENERGY = "energy_j"
#: What happened inside a frame: counts of events, the SM clock, and the milliseconds that events took.
DISTURBANCES = (
    *("compiles", "captures", "graphs_recorded", "alloc_retries", "device_allocs", "collections", "switches"),
    *("exceptions", "sm_clock_mhz"),
    *("compile_ms", "capture_ms", "malloc_ms", "collection_ms", "run_queue_ms", "steal_ms", "others_ms"),
)
#: Names of every series. Each stage adds `host_<stage>_ms` and `device_<stage>_ms`.
NAMES = (*TIMES, "due_ms", "wait_ms", "rest_ms", "gap_ms", *MEMORY, ENERGY, *DISTURBANCES)

#: Resolution of the host's clock: times closer than this are equal.
TICK_MS = 1e-6

#: Exceptions of numpy and zipfile for a file that is no archive, is damaged or encrypted, or holds other data.
UNREADABLE = (OSError, ValueError, TypeError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def series_file(cell: str) -> str:
    """Return the path of the series of a cell (`<component>.<variant>`), relative to the run folder."""
    return f"cells/{cell}.frames.npz"


def frame_count(series: Series) -> int:
    """Return the number of timed frames."""
    return int(series["frame_ms"].size) if "frame_ms" in series else 0


def stage_names(series: Series) -> tuple[str, ...]:
    """Return the stages in their order."""
    return tuple(name[5:-3] for name in series if name.startswith("host_") and name.endswith("_ms"))


def check_series(series: Series, *, paced: bool) -> None:
    """Raise a ValueError where a frame has no valid time or, if `paced`, no due time."""
    unknown = [name for name in (*TIMES, *(("due_ms",) if paced else ())) if not np.isfinite(series[name]).all()]
    if unknown:
        raise ValueError(f"a frame has no {', no '.join(unknown)}")
    if (series["frame_ms"] < 0).any() or not np.median(series["frame_ms"]) > 0:
        raise ValueError("frame_ms is below 0, or 0 in half of the frames")


def write_series(path: Path, series: Series) -> None:
    """Write the series as a compressed npz, atomically, or raise an OSError."""
    arrays: dict[str, Any] = {name: np.asarray(values, dtype=np.float64) for name, values in series.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_bytes(path, content.getvalue())


def read_frames(run: Path, cell: str) -> dict[str, Array] | None:
    """Read the series of a cell: its npz, else the journal of a loop that has not ended; None where there is neither.

    A file that holds no series of frames raises InputError.
    """
    path = run / series_file(cell)
    if path.exists():
        return read_series(path)
    try:
        return read_journal(run, cell)
    except (OSError, ValueError) as error:
        raise InputError(f"{_journal_file(run, cell)} cannot be read as series of frames: {error}") from None


def read_series(path: Path) -> dict[str, Array]:
    """Read the time series of frames from an npz file. Raises InputError if it is missing or has none."""
    try:
        with np.load(io.BytesIO(read_file(path)), allow_pickle=False) as content:
            series = {name: np.asarray(content[name], dtype=np.float64) for name in content.files}
    except UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read as series of frames: {reason}. Repeat the run.") from None
    if "frame_ms" not in series or {values.shape for values in series.values()} != {(frame_count(series),)}:
        raise InputError(f"{path} holds no series of frames of one length. Repeat the run.")
    return series


class Journal:
    """Appends a line of JSON for each frame to a file: a list of numbers, null where not measured.

    A line of names stands before the first row, and again where a stage adds names that no frame before had. Each line
    is written unbuffered, so that it survives the death of the process, though not of the machine. Once a line could
    not be written (the disk is full), it and all later ones are kept in memory, for `read`. `columns` are the names
    with their places in a row.
    """

    def __init__(self, run: Path, cell: str, names: Sequence[str]) -> None:
        self._path = _journal_file(run, cell)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self.columns = {name: place for place, name in enumerate(names)}
        self._last: tuple[Mapping[str, float], list[float]] | None = None
        self._unwritten: list[bytes] = []
        self._width = 0
        self._write(b"")

    def append(self, values: Mapping[str, float]) -> None:
        """Write the row of a frame, or raise an OSError; names that `values` lacks become NaN."""
        self.write(self.row(values))

    def row(self, values: Mapping[str, float]) -> list[float]:
        """Return a new row of these values, NaN for other names, to be filled and given to `write`.

        The row of the last `values` is kept, for the next frame with the same: a mapping must not change afterwards.
        """
        last = self._last
        if last is None or last[0] is not values or len(last[1]) != len(self.columns):
            row = [math.nan] * len(self.columns)
            for name, value in values.items():
                row[self.place(name, row)] = value
            last = self._last = values, row
        return last[1].copy()

    def place(self, name: str, row: list[float]) -> int:
        """Return the place of a name in a row; a new name is added, also to this row."""
        place = self.columns.setdefault(name, len(self.columns))
        row += [math.nan] * (len(self.columns) - len(row))
        return place

    def write(self, row: Sequence[float]) -> None:
        """Append a row with a number for each column to the file.

        Raises:
            OSError: the first write that fails; rows are then kept in memory.

        """
        self._write(_line(row))

    def close(self) -> None:
        """Close the file, which remains for `recover_series`."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    @property
    def is_on_disk(self) -> bool:
        """Whether the file is where it was written: nothing has removed or moved its folder."""
        return self._path.is_file()

    def read(self) -> dict[str, Array] | None:
        """Return the series of the rows so far, also where the file was removed while it was open."""
        if self._file >= 0:
            written = os.pread(self._file, os.fstat(self._file).st_size, 0)
        elif self.is_on_disk:
            written = read_file(self._path)
        else:
            return None
        return _series_of(written[: written.rfind(b"\n") + 1] + b"".join(self._unwritten))

    def _write(self, lines: bytes) -> None:
        if len(self.columns) > self._width:
            lines, self._width = _line([*self.columns]) + lines, len(self.columns)
        if self._unwritten:
            self._unwritten.append(lines)
            return
        try:
            self._put(lines)
        except OSError:
            self._unwritten.append(lines)
            raise

    def _put(self, lines: bytes) -> None:
        if os.write(self._file, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _line(values: Sequence[float] | Sequence[str]) -> bytes:
    return msgspec.json.encode(values, enc_hook=float) + b"\n"


def recover_series(run: Path, cell: str) -> dict[str, Array] | None:
    """Convert a cell's journal to its npz and return the series; None without one. It stays after an OSError."""
    series = read_journal(run, cell)
    if series is not None:
        series = with_gaps(series)
        write_series(run / series_file(cell), series)
        remove_journal(run, cell)
    return series


def with_gaps(series: Series) -> dict[str, Array]:
    """Return the series with `gap_ms`, which the row of a frame could not know: from its delivery to the next begin."""
    gaps = np.maximum(0.0, series["action_ms"][1:] - series["delivered_ms"][:-1])
    return {**series, "gap_ms": np.append(gaps, np.full(min(1, frame_count(series)), np.nan))}


def read_journal(run: Path, cell: str) -> dict[str, Array] | None:
    """Return the series of the frames in a cell's journal, which may still grow; None where there is no journal.

    One that cannot be read raises OSError, one that holds no series of frames ValueError.
    """
    path = _journal_file(run, cell)
    return _series_of(read_file(path)) if path.is_file() else None


def _series_of(content: bytes) -> dict[str, Array]:
    """Return the series in the lines of a journal, without a line that is cut off."""
    names: list[Any] = []
    rows: list[list[Any]] = []
    for line in content.split(b"\n")[:-1]:
        try:
            values = msgspec.json.decode(line, type=list[str | float | bool | None])
        except DECODE_ERRORS as error:
            raise ValueError(f"line {len(rows) + 1} is no row of numbers: {error}") from None
        if values and isinstance(values[0], str):
            names = values
        else:
            rows.append(values)
    if not names:
        raise ValueError("it does not begin with the names of its series")
    series = np.full((len(rows), len(names)), np.nan)
    for frame, row in enumerate(rows):
        series[frame, : len(row)] = row
    return {name: series[:, place].copy() for place, name in enumerate(names)}


def remove_journal(run: Path, cell: str) -> None:
    """Remove a cell's journal, whose frames are written elsewhere."""
    _journal_file(run, cell).unlink(missing_ok=True)


def _journal_file(run: Path, cell: str) -> Path:
    return run / "cells" / f"{cell}.frames.part"
