"""What stands below the table: causes, notes, weights, and what the tracing left behind, as plain lines.

The console prints them as they are; `report.md` escapes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from profiling.reporting.facts import (
    at,
    by_component,
    is_realtime,
    is_right,
    items_at,
    mapping_at,
    number_at,
    times_taken_away,
    wall_p50,
)
from profiling.reporting.format import count_of, listed, one_line, significant
from profiling.results.records import Record

Lines = tuple[str, ...]


def legend(records: Sequence[Record]) -> Lines:
    """Say how the table's numbers are meant."""
    lines = []
    if not all(map(is_realtime, records)):
        rounds = max(len(record.rounds or ()) for record in records)
        drift = f"from round to round of {rounds} is" if rounds > 1 else "between cells is not"
        lines.append(
            "Times are wall clock, call plus wait; FPS = frames per call / wall; "
            f"brackets: 95% interval of these samples, drift {drift} in it."
        )
    if any(record.scale == "tiny" for record in records):
        lines.append("Scale tiny: small networks, whose times and frame rates say nothing about the full ones.")
    if any(number_at(record.memory, "peak_held") is not None for record in records):
        lines.append("Held: allocated, plus what the pools of CUDA graphs keep from everybody else.")
    if any(not is_right(record) and (record.realtime or wall_p50(record) is not None) for record in records):
        lines.append("~~Struck out~~: failed or invalid, so this time counts for nothing.")
    if any(at(record.metrics, "latency", "cold") is True for record in records):
        lines.append("Cold: the last-level cache was flushed before each sample.")
    return tuple(lines)


def causes(records: Sequence[Record], run: Path | None = None) -> Lines:
    """Return why cells are not ok: a line each, with its log if the run kept one; those skipped share one a reason."""
    skipped: dict[str, list[str]] = {}
    lines = []
    for record in records:
        if record.status == "ok" and is_right(record):
            continue
        reason = record.reason or "parity failed"
        if record.status == "skipped":
            skipped.setdefault(reason, []).append(_name(record))
            continue
        log = f"cells/{record.component}.{record.variant}.log"
        kept = run is not None and (run / log).is_file()
        lines.append(f"{_name(record)} {record.status}: {reason}{f' (log: {log})' if kept else ''}")
    for reason, names in skipped.items():
        lines.append(f"{count_of(len(names), 'cell')} skipped: {reason} ({listed(names)})")
    return tuple(map(one_line, lines))


def notes(records: Sequence[Record]) -> Lines:
    """Return what the cells noted, and whether their warm-up had not settled."""
    lines = [f"{_name(record)}: {note}" for record in records for note in record.notes]
    lines += [
        f"{_name(record)}: times had not settled when the warm-up ended"
        for record in records
        if at(record.metrics, "latency", "settled") is False
    ]
    for record in records:
        if taken := times_taken_away(record):
            lines.append(
                f"{_name(record)}: the processor was taken away {count_of(taken, 'time')} while timing: "
                "other programs run here, and the times say as much about them"
            )
    lines += [
        f"{_name(record)}: compiled from a warm cache, so a first start takes longer to prepare"
        for record in records
        if number_at(record.prepare, "cache_hits")
    ]
    return tuple(map(one_line, lines))


def networks(records: Sequence[Record]) -> Lines:
    """Return a line a component: parameter count, precision, device, weights and how to fetch them."""
    lines = []
    for component, group in by_component(records).items():
        parts = [f"{count:,} parameters" for count in _distinct(group, "parameters")]
        parts += [" / ".join(map(str, found)) for name in ("dtype", "device") if (found := _distinct(group, name))]
        weights = " / ".join(map(str, _distinct(group, "weights")))
        if weights:
            hint = next(iter(_distinct(group, "weights_hint")), None)
            parts.append(f"weights: {weights}{f' ({hint})' if hint else ''}")
        if parts:
            lines.append(one_line(f"{component}: {', '.join(parts)}"))
    return tuple(lines)


def artefacts(records: Sequence[Record], *, root: str = "", most: int | None = None) -> Lines:
    """Return the files to open (below `root`) and what the compiler reported, at most `most` lines a kind and cell."""
    lines = []
    for record in records:
        for kind in (_files(record, root), _compiler(record), _kernels(record)):
            found = [one_line(f"{_name(record)}: {line}") for line in kind]
            lines += found[:most]
            if most is not None and len(found) > most:
                lines.append(f"{_name(record)}: … and {len(found) - most} more in report.md")
    return tuple(lines)


def compile_phases(record: Record) -> dict[str, float]:
    """Return the seconds of each phase of compiling that the compiler's log tells, in its order."""
    phases = mapping_at(record.compile, "phases")
    return {str(name): seconds for name in phases if (seconds := number_at(phases, name)) is not None}


def _name(record: Record) -> str:
    return f"{record.component}.{record.variant}"


def _distinct(group: Sequence[Record], name: str) -> list[Any]:
    return list(dict.fromkeys(value for record in group if (value := getattr(record, name)) is not None))


def _files(record: Record, root: str) -> Iterator[str]:
    index = at(record.compile, "index")
    if isinstance(index, str):
        yield f"compile report {root}{index}"
    for key, name in (("trace", "profiler trace (open in ui.perfetto.dev)"), ("operators", "operator tables")):
        value = at(record.trace, key)
        if isinstance(value, str):
            yield f"{name} {root}{value}"


def _compiler(record: Record) -> Iterator[str]:
    yield from _counts(record)
    for item in items_at(record.compile, "graph_breaks"):
        yield f"graph break: {_reason(item)}"
    for item in items_at(record.compile, "recompiles"):
        yield f"recompile {at(item, 'compile_id') or ''}: {_reason(item)}"
    for item in items_at(record.compile, "cudagraph_skips"):
        yield f"CUDA graph skipped: {_reason(item)}"


def _counts(record: Record) -> Iterator[str]:
    seconds = number_at(record.compile, "compile_seconds")
    if seconds is not None:
        phases = ", ".join(f"{name} {significant(spent, 2)} s" for name, spent in compile_phases(record).items())
        yield f"compiled in {seconds:.1f} s{f': {phases}' if phases else ''}"
    nouns = (("graphs", "graph"), ("graph_breaks", "graph break"), ("recompiles", "recompile"))
    counts = {key: number_at(record.prepare, key) for key, _ in nouns}
    if counts["graph_breaks"] or counts["recompiles"]:
        yield ", ".join(count_of(count, noun) for key, noun in nouns if (count := counts[key]) is not None)


def _kernels(record: Record) -> Iterator[str]:
    for kernel in record.kernels or ():
        kind = at(kernel, "kind")
        yield f"kernel {at(kernel, 'name') or '?'}{f' ({kind})' if kind else ''} {at(kernel, 'file') or ''}"


def _reason(item: object) -> str:
    if isinstance(item, str):
        return item
    file, line = at(item, "file"), at(item, "line")
    place = f" ({file}{'' if line is None else f':{line}'})" if file else ""
    return f"{at(item, 'reason') or 'no reason given'}{place}"
