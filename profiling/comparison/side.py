"""One side of a comparison: a run's folder, or a file of records that was kept (a baseline under version control)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from profiling.errors import InputError
from profiling.reporting.facts import is_realtime, number_at, wall_p50
from profiling.reporting.heading import read_environment
from profiling.results.frames import read_series, series_file
from profiling.results.records import Record, read_records, read_results
from profiling.results.rounds import samples_by_round
from profiling.results.run_folder import CONFIG_FILE

Rounds = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class Side:
    """Records by (component, variant), and what stands beside them; empty mappings where a file is missing."""

    path: Path  # as the user named it
    folder: Path
    records: Mapping[tuple[str, str], Record]
    environment: Mapping[str, Any]
    config: Mapping[str, Any]


def read_side(path: Path, cells: str | None = None) -> Side:
    """Read a run's folder or a file of records; environment, config and frames are looked for beside the records.

    `cells` is a glob over <component>.<variant> that leaves out all that do not match.

    Raises:
        InputError: there is nothing at `path`, or no record in it, or none that matches.

    """
    if not path.exists():
        raise InputError(f"{path} does not exist. Name a folder that a run printed, or a file like its results.jsonl.")
    folder = path if path.is_dir() else path.parent
    records = read_records(path) if path.is_dir() else read_results(path)
    if not records:
        raise InputError(f"{path} holds no record. Name a folder that a run printed, or a file like its results.jsonl.")
    found = {record.cell: record for record in records if fnmatchcase(".".join(record.cell), cells or "*")}
    if not found:
        names = [".".join(record.cell) for record in records]
        raise InputError(f"{path} has no cell that matches {cells!r}. There are: {', '.join(names)}")
    return Side(path, folder, found, read_environment(folder), _read_config(folder / CONFIG_FILE))


def median_ms(record: Record) -> float | None:
    """Return the median wall time of a call, or frame time of a loop, in milliseconds; no time is 0 or below it."""
    found = number_at(record.realtime, "frame_ms", "p50") if is_realtime(record) else wall_p50(record)
    return found if found is not None and found > 0 else None


def read_samples(side: Side, record: Record) -> Rounds:
    """Return the wall or frame times, float64 [n] milliseconds a round; empty where the samples were not kept.

    Raises:
        InputError: the file of a loop's frames is there and cannot be read.

    """
    if not is_realtime(record):
        return samples_by_round(record)
    cell = f"{record.component}.{record.variant}"
    stems = [f"{cell}.round{n}" for n in range(1, len(record.rounds) + 1)] if record.rounds else [cell]
    files = [side.folder / series_file(stem) for stem in stems]
    if not all(file.is_file() for file in files):
        return ()
    rounds = [times[np.isfinite(times)] for times in (read_series(file)["frame_ms"] for file in files)]
    return tuple(times for times in rounds if times.size)


def no_times(rounds: Rounds) -> str:
    """Say why samples that were kept are no times; empty where they are, and where none were kept."""
    values = np.concatenate(rounds) if rounds else np.empty(0)
    if count := np.count_nonzero(~np.isfinite(values)):
        return f"{count} of {values.size} {'is' if count == 1 else 'are'} not finite"
    with np.errstate(over="ignore"):  # the mean of the middle two may be too large for a number
        median = float(np.median(values)) if values.size else 1.0
    return "" if 0 < median < np.inf else f"their median is {median:g}"


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # ValueError: a date that is in no calendar
        return {}
    return content if isinstance(content, dict) else {}
