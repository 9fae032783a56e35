"""The one table of a run: a row a cell, units in every header."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tabulate import SEPARATING_LINE, tabulate

from profiling.reporting.facts import (
    at,
    baseline_name,
    by_component,
    claimed_speedup,
    interval_at,
    is_right,
    number_at,
    peak_memory,
    right_baseline,
)
from profiling.reporting.format import (
    ABSENT,
    EN_DASH,
    TIMES,
    escaped,
    frames_per_second,
    mean_std,
    mebibytes,
    one_line,
    significant,
    struck,
    times_faster,
)
from profiling.results.records import Record

Groups = Mapping[str, Sequence[Record]]


@dataclass(frozen=True)
class Column:
    """A column: its header (its lines broken for the console), and what stands in it for a record."""

    header: str
    cell: Callable[[Record], str]
    kind: Literal["text", "number", "time"] = "number"  # text is escaped, a time is struck out where it is not right


def render_table(records: Sequence[Record], *, markdown: bool = False) -> str:
    """Return the run's table, its rows grouped by component, for the console or as Markdown."""
    groups = by_component(records)
    if not groups:
        return "No cell has ended yet."
    rows = [record for group in groups.values() for record in group]
    return layout(_columns(rows, groups), rows, markdown=markdown)


def layout(columns: Sequence[Column], rows: Sequence[Record], *, markdown: bool) -> str:
    """Lay `columns` out over `rows`."""
    headers = [escaped(column.header) if markdown else column.header for column in columns]
    cells = [[_cell(column, record, markdown=markdown) for column in columns] for record in rows]
    # tabulate pads each header by two characters; as rows, the console's headers cost nothing. 160 columns are few.
    return tabulate(
        cells if markdown else [headers, SEPARATING_LINE, *cells],
        headers=headers if markdown else (),
        tablefmt="github" if markdown else "simple",
        colalign=["left" if column.kind == "text" else "right" for column in columns],
        disable_numparse=True,
    )


def shown_times(record: Record, *cells: str) -> tuple[str, ...]:
    """Return `cells`, which hold times of `record`: struck out where they count for nothing."""
    return cells if is_right(record) else tuple(map(struck, cells))


def _cell(column: Column, record: Record, *, markdown: bool) -> str:
    text = column.cell(record)
    if column.kind == "time" and not is_right(record):
        return struck(text)
    if column.kind == "text":
        return escaped(text) if markdown else one_line(text)
    return text


def _columns(rows: Sequence[Record], groups: Groups) -> tuple[Column, ...]:
    columns = [
        Column("component", lambda record: record.component, "text"),
        Column("variant", lambda record: record.variant, "text"),
        Column("status", lambda record: record.status, "text"),
    ]
    if any(record.frames_per_call not in (None, 1) for record in rows):
        columns.append(Column("frames\n/ call", _frames_per_call))
    columns += [Column("wall ms\nmean ± std", _mean_std, "time")]
    columns += [_clock("wall_ms", key, f"{key}\nms") for key in ("p50", "p99", "min", "max")]
    if any(number_at(record.metrics, "device_ms", "p50") is not None for record in rows):
        columns.append(_clock("device_ms", "p50", "device\np50 ms"))
    return (
        *columns,
        Column(f"FPS mean\n(min{EN_DASH}max)", _frames_per_second, "time"),
        Column(_speedup_header(groups), lambda record: _speedup(record, groups[record.component])),
        *cost_columns(rows),
    )


def cost_columns(rows: Sequence[Record]) -> tuple[Column, ...]:
    """Return the columns of what a variant costs beside its time: memory, preparation, accuracy."""
    return (
        _memory(rows),
        Column("prepare\ns", lambda record: significant(number_at(record.prepare, "seconds"), 3)),
        Column("parity\nrel. L2", _parity, "text"),
    )


def _frames_per_call(record: Record) -> str:
    return ABSENT if record.frames_per_call is None else str(record.frames_per_call)


def _clock(clock: str, key: str, header: str) -> Column:
    return Column(header, lambda record: significant(number_at(record.metrics, clock, key)), "time")


def _mean_std(record: Record) -> str:
    return mean_std(number_at(record.metrics, "wall_ms", "mean"), number_at(record.metrics, "wall_ms", "std"))


def _frames_per_second(record: Record) -> str:
    mean, low, high = (number_at(record.metrics, "fps", key) for key in ("mean", "min", "max"))
    return frames_per_second(mean, low, high)


def _speedup_header(groups: Groups) -> str:
    names = {baseline_name(group) for group in groups.values()}
    return f"speedup\nvs {one_line(names.pop())}" if len(names) == 1 else "speedup\nvs its baseline"


def _speedup(record: Record, group: Sequence[Record]) -> str:
    if record is right_baseline(group):
        return f"1{TIMES}"
    return times_faster(claimed_speedup(record, group), interval_at(record.speedup, "ci95"))


def _memory(rows: Sequence[Record]) -> Column:
    kinds = {peak[0] for record in rows if (peak := peak_memory(record))}
    if len(kinds) == 1:
        header = kinds.pop().replace(" ", "\n", 1)
        return Column(f"{header}\nMiB", lambda record: mebibytes((peak_memory(record) or (None, None))[1]))
    return Column("peak memory\nMiB", _peak_with_kind)


def _peak_with_kind(record: Record) -> str:
    peak = peak_memory(record)
    return f"{mebibytes(peak[1])} {peak[0].removeprefix('peak ')}" if peak else ABSENT


def _parity(record: Record) -> str:
    """Say what was judged: of a training too chaotic for its weights, the losses."""
    losses = at(record.parity, "weights_judged") is False
    passed, error = at(record.parity, "passed"), number_at(record.parity, "loss_error" if losses else "rel_l2")
    word = "ok" if passed is True else "FAIL" if passed is False else ""
    return " ".join(filter(None, (word, "losses" if losses else "", ABSENT if error is None else f"{error:.1e}")))
