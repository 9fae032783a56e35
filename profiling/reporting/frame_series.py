"""Reading of the frame times that a loop left in its run folder; what cannot be read costs a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError
from profiling.reporting.facts import is_realtime, number_at
from profiling.reporting.format import one_line
from profiling.results.frames import read_series, series_file
from profiling.results.records import Record

#: A record, and the time of each of its frames in milliseconds (float64 [n]; not finite where not measured).
Frames = tuple[Record, NDArray[np.float64]]


def frames_file(record: Record) -> str:
    """Return the file of the record's series, relative to the run."""
    return series_file(f"{record.component}.{record.variant}")


def read_frame_times(records: Sequence[Record], run: Path) -> tuple[tuple[Frames, ...], tuple[str, ...]]:
    """Return the frame times of the loops that have any, and a line for each whose file is missing or unreadable."""
    found: list[Frames] = []
    lines = []
    for record in filter(is_realtime, records):
        path = run / frames_file(record)
        if not path.exists():
            if number_at(record.realtime, "frames"):
                lines.append(one_line(f"no frames to plot: {frames_file(record)} is missing"))
            continue
        try:
            frames = read_series(path)["frame_ms"]
        except InputError as error:
            lines.append(one_line(f"no frames to plot: {frames_file(record)}: {error}"))
            continue
        if np.isfinite(frames).any():
            found.append((record, frames))
    return tuple(found), tuple(lines)
