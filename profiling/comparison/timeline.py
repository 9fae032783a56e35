"""The history of an optimisation: the best right variant of each component in every run below a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.comparison.edge import unforeseen
from profiling.comparison.side import Side, median_ms, read_side
from profiling.comparison.work import loop_work
from profiling.errors import InputError
from profiling.reporting.facts import at, by_component, interval_at, is_realtime, is_right
from profiling.reporting.format import ABSENT, TIMES, one_line, significant
from profiling.reporting.grid import grid
from profiling.results.records import RESULTS_FILE, Record

HEADERS = ("date", "git", "run", "best variant", "p50 ms", "vs first", "vs previous")


@dataclass(frozen=True)
class Milestone:
    """The best of one component in one run."""

    run: str  # relative to the folder
    date: str | None  # when the run began, ISO 8601 in UTC
    revision: str | None  # of git, with a + where the checkout had uncommitted changes
    variant: str
    p50_ms: float  # of a call, or of a frame of a loop
    ci95: tuple[float, float] | None  # of the median, of these samples


#: A component on a device, as one measured it: only such milestones may stand in one line.
Timelines = dict[str, tuple[Milestone, ...]]


def timelines(folder: Path, on_skipped: Callable[[Path, str], None]) -> Timelines:
    """Read every run below `folder`; return the milestones by title, oldest first (undated runs first, by name).

    A run that cannot be read costs no other one its place: `on_skipped` is told it, and why.

    Raises:
        InputError: no run is there, or none has a cell that is right and timed.

    """
    runs = _runs(folder)
    if not runs:
        raise InputError(f"{folder} holds no runs: there is no {RESULTS_FILE} below it. Name a folder of run folders.")
    found: dict[str, list[Milestone]] = {}
    for run in runs:
        try:
            stones = _milestones(run, os.path.relpath(run, folder))
        except (InputError, OSError) as error:
            on_skipped(run, str(error))
            continue
        except Exception as error:  # a record that was edited by hand may hold anything
            on_skipped(run, unforeseen(error))
            continue
        for title, stone in stones.items():
            found.setdefault(title, []).append(stone)
    if not found:
        raise InputError(f"{folder}: none of its {len(runs)} runs has a cell that is right and timed. Look at one.")
    return {
        title: tuple(sorted(line, key=lambda stone: (stone.date or "", stone.run))) for title, line in found.items()
    }


def history_text(lines: Timelines, *, markdown: bool) -> str:
    """Return a table for each component; ratios above 1 are faster."""
    titled = (
        (one_line(title), grid(HEADERS, milestone_rows(line), markdown=markdown, names=4))
        for title, line in lines.items()
    )
    return "\n\n".join(f"{'### ' if markdown else ''}{title}\n\n{table}" for title, table in titled)


def _runs(folder: Path) -> list[Path]:
    """Return the folders of runs that have a record; one that was stopped before its first is no milestone."""
    return sorted(path.parent for path in folder.rglob(RESULTS_FILE) if path.stat().st_size)


def _milestones(run: Path, name: str) -> dict[str, Milestone]:
    side = read_side(run)
    best = {title: min(records, key=lambda r: median_ms(r) or 0) for title, records in _alike(side).items()}
    return {title: _milestone(side, record, name) for title, record in best.items()}


def _alike(side: Side) -> dict[str, list[Record]]:
    """Group the right and timed records by what makes their times comparable."""
    timed = [record for record in side.records.values() if is_right(record) and median_ms(record)]
    groups: dict[str, list[Record]] = {}
    for component, records in by_component(timed).items():
        for record in records:
            groups.setdefault(" · ".join((component, *_kind(side, record))), []).append(record)
    return groups


def _kind(side: Side, record: Record) -> Iterator[str]:
    yield record.target
    yield from map(str, filter(None, (at(side.environment, "device", "name"), record.dtype, record.scale)))
    if record.parameters is not None:
        yield f"{record.parameters} parameters"
    if not is_realtime(record) and record.frames_per_call is not None:
        yield f"{record.frames_per_call} a call"
    yield from (f"{name} {fact}" for name, fact in loop_work(record).items())
    if at(record.metrics, "latency", "cold"):
        yield "cold"


def _milestone(side: Side, record: Record, run: str) -> Milestone:
    git = at(side.environment, "git")
    revision, date = at(git, "revision"), at(side.environment, "captured_at")
    section = record.realtime if is_realtime(record) else record.metrics
    schedule = at(record.realtime, "schedule")
    return Milestone(
        run=run,
        date=None if date is None else str(date),
        revision=f"{revision[:12]}{'+' if at(git, 'dirty') else ''}" if isinstance(revision, str) else None,
        variant=f"{record.variant} ({schedule})" if schedule else record.variant,
        p50_ms=median_ms(record) or 0.0,
        ci95=interval_at(section, "frame_ms" if is_realtime(record) else "wall_ms", "ci95"),
    )


def milestone_rows(line: Sequence[Milestone]) -> list[tuple[str, ...]]:
    """Return what stands under the headers `HEADERS`; ratios above 1 are faster."""
    rows = []
    for place, stone in enumerate(line):
        gains = (f"{significant(line[i].p50_ms / stone.p50_ms, 3)}{TIMES}" for i in (0, max(0, place - 1)))
        names = (stone.date or ABSENT, stone.revision or ABSENT, stone.run, stone.variant)
        rows.append((*names, significant(stone.p50_ms), *(gains if place else (ABSENT, ABSENT))))
    return rows
