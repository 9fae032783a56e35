"""What is wrong with cells, and under which conditions they ran: a line each, those of one reason together."""

from __future__ import annotations

from collections.abc import Iterable

from profiling.report.format import listed, one_line, percent, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData, name_of
from profiling.results.judgement import is_disturbed
from profiling.results.record import Record

#: Part of the timed window for which threads may wait for a CPU before the times say as much about other processes.
_LEAST_WAIT = 0.01


def status_section(data: RunData) -> Section:
    """Return why cells are not ok, with the log where the run kept one; skipped cells share a line a reason."""
    lines = []
    skipped: dict[str, list[Record]] = {}
    for record in data.records:
        if record.status == "skipped":
            skipped.setdefault(record.reason or "", []).append(record)
        elif not record.is_correct:
            log = f"cells/{name_of(record)}.log"
            where = f" (log: {log})" if (data.folder / log).is_file() else ""
            state = "failed" if record.status == "ok" else record.status
            lines.append(f"{name_of(record)} {state}: {record.reason or 'parity check failed'}{where}")
    lines += [f"{_cells(records, data)}: skipped, {reason}" for reason, records in skipped.items()]
    return Section("status", "Not measured, or wrong", tuple(map(one_line, lines)))


def notes_section(data: RunData) -> Section:
    """Return what cells noted, the conditions that explain their times, and what of the results could not be read."""
    lines = [f"{name_of(record)}: {note}" for record in data.records for note in record.notes]
    lines += [f"{name_of(record)}: {words}" for record in data.records if (words := disturbance(record))]
    unsettled = [r for r in data.records if r.metrics.latency is not None and not r.metrics.latency.settled]
    if unsettled:
        lines.append(f"{_cells(unsettled, data)}: times had not settled when the warm-up ended")
    if warm := [r for r in data.records if r.prepare is not None and r.prepare.cache_hits]:
        lines.append(f"{_cells(warm, data)}: warm start (compiled from a cache); a cold start takes longer to prepare")
    lines += [f"{name_of(record)}: not read: {field}" for record in data.records for field in record.unreadable]
    lines += [f"environment.json: not read: {field}" for field in data.environment.unreadable]
    ceilings = data.environment.ceilings
    if ceilings is not None and ceilings.disturbed:
        lost = percent(ceilings.lost_share)
        lines.append(f"The ceilings are too low: other processes took {lost} of the CPU time while they were measured")
    if data.environment.ceilings_reason:
        lines.append(f"No ceilings: {data.environment.ceilings_reason}")
    if data.skipped_lines:
        lines.append(f"results.jsonl: {data.skipped_lines} damaged or cut-off lines were passed over")
    return Section("notes", "Notes", tuple(map(one_line, lines)))


def disturbance(record: Record) -> str:
    """Say how much other processes disturbed the timing; empty where they did not."""
    if not is_disturbed(record):
        return ""
    wall, latency = record.metrics.wall_ms, record.metrics.latency
    assert wall is not None
    assert latency is not None
    waited, window = latency.run_queue_wait_ms, wall.mean * wall.n
    if waited is not None and waited >= _LEAST_WAIT * window:
        times = f"waited {significant(waited / 1e3, 2)} of {significant(window / 1e3, 2)} s for a CPU"
    else:
        times = f"interrupted {latency.descheduled} times in {wall.n} calls"
    return f"disturbed by other processes: {times}"


def _cells(records: Iterable[Record], data: RunData) -> str:
    """Return the names of cells: the variants alone, where all components of the run are meant."""
    chosen = list(records)
    variants = dict.fromkeys(record.variant for record in chosen)
    if len(chosen) == len(variants) * len(data.groups):
        return ", ".join(variants)
    return listed([name_of(record) for record in chosen])
