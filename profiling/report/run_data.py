"""The data of a run that the sections of a report read: records, environment, folder, and values derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

import numpy as np
from msgspec import structs

from profiling.errors import InputError, printable
from profiling.report.format import Link, count_of
from profiling.report.table import Column, Depth, Table
from profiling.results.environment import ENVIRONMENT_FILE, Environment, read_environment
from profiling.results.frames import TIMES, frame_count, read_frames
from profiling.results.jsonl import RESULTS_FILE, read_records
from profiling.results.record import Record
from profiling.results.run_folder import CONFIG_FILE, read_config
from profiling.results.stats import summarize
from profiling.results.verdicts import by_component

Row = TypeVar("Row")


@dataclass(frozen=True)
class RunData:
    """A run: its records, its environment (its fields absent where unknown), its folder, and unreadable lines."""

    records: tuple[Record, ...]
    environment: Environment
    folder: Path
    skipped_lines: int = 0

    @cached_property
    def cells(self) -> tuple[Record, ...]:
        """The records of calls, training steps and loops: no calibrations or checks."""
        return tuple(record for record in self.records if record.launches is None and record.check is None)

    @cached_property
    def timed(self) -> tuple[Record, ...]:
        """Those of calls and training steps."""
        return tuple(record for record in self.cells if not record.is_realtime)

    @cached_property
    def loops(self) -> tuple[Record, ...]:
        """Those of loops of frames."""
        return tuple(record for record in self.cells if record.is_realtime)

    @cached_property
    def groups(self) -> dict[str, tuple[Record, ...]]:
        """The records that are no calibrations, by component."""
        return by_component(record for record in self.records if record.launches is None)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config; empty where it is missing or cannot be read."""
        try:
            return read_config(self.folder / CONFIG_FILE)
        except InputError:
            return {}

    @cached_property
    def damage(self) -> tuple[str, ...]:
        """What of the run's files could not be read, in a line each."""
        lines = []
        if not self.environment.is_known and (self.folder / ENVIRONMENT_FILE).exists():
            lines.append(f"{ENVIRONMENT_FILE} is damaged: device, versions and command of this run are not known")
        if self.skipped_lines:
            lines.append(f"{RESULTS_FILE}: {count_of(self.skipped_lines, 'damaged or cut-off line')} skipped")
        return tuple(lines)


def load_run(path: Path) -> RunData:
    """Read a run from its folder or its `results.jsonl`. Raises the same errors as `read_records`."""
    results, folder = read_records(path), path.parent if path.is_file() else path
    records = tuple(_with_frames(record, folder) for record in results.records)
    return RunData(records, read_environment(folder), folder, results.skipped_lines)


def _with_frames(record: Record, folder: Path) -> Record:
    """Add the number and the times of the frames of a loop whose run was killed."""
    if record.realtime is None or record.realtime.frames:
        return record
    try:
        frames = read_frames(folder, record.name)
    except InputError as error:
        return structs.replace(record, notes=(*record.notes, str(error)))
    if frames is None or not frame_count(frames) or not all(np.isfinite(frames[name]).all() for name in TIMES):
        return record
    times = {name: structs.replace(summarize(frames[name]), samples=()) for name in ("frame_ms", "latency_ms")}
    return structs.replace(record, realtime=structs.replace(record.realtime, frames=frame_count(frames), **times))


def linked_file(folder: Path, path: str) -> Link:
    """Return `path`, which is relative to `folder`, as a link where it names a file inside the folder."""
    if "\0" not in path:
        target, root = (folder / path).resolve(), folder.resolve()
        if target.is_relative_to(root) and target.is_file():
            return Link(path, quote(target.relative_to(root).as_posix()))
    return Link(path, None)


def cell_table(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    notes: Sequence[str] = (),
    keys: int = 2,
    depth: Depth = "console",
) -> Table[Row]:
    """Return a table of component, variant and `columns`; measured values of incorrect cells are struck out.

    Rows are records, or tuples that begin with one.
    """

    def record_of(row: Row) -> Record:
        return row[0] if isinstance(row, tuple) else cast("Record", row)

    names: tuple[Column[Row], ...] = (
        Column("component", lambda row: record_of(row).component),
        Column("variant", lambda row: record_of(row).variant, wrap=34),
    )
    return Table(title, (*names, *columns), rows, notes, lambda row: not record_of(row).is_correct, keys, depth)


def wrong_because(record: Record) -> str:
    """Return why the record's times do not count: its status, or `parity failed`; empty where they count."""
    if record.is_correct:
        return ""
    return "parity failed" if record.status == "ok" else record.status


def cell_words(record: Record, *, component: bool = False) -> str:
    """Return the name of the cell (the variant alone unless `component`), marked where its times do not count."""
    name, wrong = record.name if component else record.variant, wrong_because(record)
    return printable(f"{name} ({wrong}: does not count)" if wrong else name)
