"""Loads a run: the folder of a run, or a file of records that was kept (a baseline under version control, say)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError
from profiling.report.format import count_of
from profiling.results.environment import ENVIRONMENT_FILE, Environment, read_environment
from profiling.results.frames import read_series, series_file
from profiling.results.jsonl import RESULTS_FILE, read_records, read_results
from profiling.results.judgement import comparable_samples
from profiling.results.record import Record
from profiling.results.run_folder import CONFIG_FILE, read_config

#: Samples in milliseconds, a float64 [n] for each round.
Rounds = tuple[NDArray[np.float64], ...]

#: Damaged fields that are named; further ones are only counted.
_NAMED_FIELDS = 3


@dataclass(frozen=True)
class LoadedRun:
    """The records of a run by (component, variant), with the files beside them; a missing file is empty here."""

    path: Path  # as the user named it
    folder: Path
    records: Mapping[tuple[str, str], Record]
    environment: Environment
    config: Mapping[str, Any]
    skipped_lines: int = 0

    @property
    def name(self) -> str:
        """The name of a run's folder, or of a file of records that was kept."""
        path = self.path if self.path.is_file() and self.path.name != RESULTS_FILE else self.folder
        return path.resolve().name

    @property
    def damage(self) -> str:
        """What could not be read, in one line; empty if everything could."""
        parts = [f"{count_of(self.skipped_lines, 'line')} without a record"] if self.skipped_lines else []
        fields = list(self._unreadable_fields())
        if fields:
            more = len(fields) - _NAMED_FIELDS
            named = ", ".join(fields[:_NAMED_FIELDS]) + (f" and {more} more" if more > 0 else "")
            parts.append(f"{count_of(len(fields), 'damaged field')} ({named})")
        return f"ignored {' and '.join(parts)}" if parts else ""

    def _unreadable_fields(self) -> Iterator[str]:
        for record in self.records.values():
            for field in record.unreadable:
                yield f"{'.'.join(record.cell)}: {field.partition(':')[0]}"
        for field in self.environment.unreadable:
            yield f"{ENVIRONMENT_FILE}: {field.partition(':')[0]}"


def read_run(path: Path, cells: str | None = None) -> LoadedRun:
    """Read a run's folder or a file of records; environment, config and frames are read from beside the records.

    `cells` is a glob over <component>.<variant>; cells that do not match are left out.

    Raises:
        InputError: nothing is at `path`, or it holds no record, or none that matches.

    """
    if not path.exists():
        raise InputError(f"{path} does not exist. Name a folder that a run printed, or a file like its {RESULTS_FILE}.")
    folder = path if path.is_dir() else path.parent
    records, skipped_lines = read_records(path) if path.is_dir() else read_results(path)
    if not records:
        raise InputError(
            f"{path} holds no record. Name a folder that a run printed, or a file like its {RESULTS_FILE}."
        )
    matching = {record.cell: record for record in records if fnmatchcase(".".join(record.cell), cells or "*")}
    if not matching:
        names = ", ".join(".".join(record.cell) for record in records)
        raise InputError(f"{path} has no cell that matches {cells!r}. There are: {names}")
    config: Mapping[str, Any] = {}
    with suppress(InputError):
        config = read_config(folder / CONFIG_FILE)
    return LoadedRun(path, folder, matching, read_environment(folder), config, skipped_lines)


def median_ms(record: Record) -> float | None:
    """Return the median wall time of a call, or frame time of a loop, in milliseconds; None unless it is above 0."""
    return record.median_ms if record.median_ms is not None and record.median_ms > 0 else None


def read_samples(run: LoadedRun, record: Record) -> Rounds:
    """Return the wall times of a call, or the frame times of a loop; empty where no samples were kept.

    Of a cell that took turns: those of its undisturbed windows, where enough remain.

    Raises:
        InputError: the file of a loop's frames cannot be read.

    """
    if not record.is_realtime:
        return tuple(np.asarray(samples) for samples in comparable_samples(record))
    cell = ".".join(record.cell)
    stems = [f"{cell}.round{number}" for number in range(1, len(record.rounds) + 1)] if record.rounds else [cell]
    files = [run.folder / series_file(stem) for stem in stems]
    if not all(file.is_file() for file in files):
        return ()
    frame_ms = [read_series(file)["frame_ms"] for file in files]
    rounds = (times[np.isfinite(times)] for times in frame_ms)
    return tuple(times for times in rounds if times.size)
