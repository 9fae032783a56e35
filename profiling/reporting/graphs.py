"""What variants that capture by hand tell: what a graph saved and cost, and what each graph pass did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling.reporting.facts import at, number_at
from profiling.reporting.format import ABSENT, TIMES, mebibytes, one_line, significant, whole
from profiling.reporting.grid import Titled, grid
from profiling.results.records import Record

_GRAPHS = (
    "component",
    "variant",
    "graph breaks",
    "compiled pieces",
    "launches before",
    "launches after",
    "ms before",
    "ms after",
    "gain",
    "capture s",
    "pool MiB",
    "graphs",
)
_PASSES = ("component", "variant", "pass", "replaced", "rel. L2", "replay ms before", "after", "speedup")


def graph_tables(records: Sequence[Record], *, markdown: bool) -> tuple[Titled, ...]:
    """Return the tables of manual CUDA graphs and of graph passes, those that have something in them."""
    graphs = grid(_GRAPHS, [_graphs(record) for record in records if record.graphs], markdown=markdown)
    passes = grid(_PASSES, [row for record in records for row in _passes(record)], markdown=markdown, names=3)
    titled = (
        ("CUDA graphs captured by hand: host launches and time of a call, uncaptured (before) and replayed", graphs),
        ("Graph passes, each against the module before it", passes),
    )
    return tuple((title, table) for title, table in titled if table)


def _graphs(record: Record) -> tuple[str, ...]:
    graphs = record.graphs
    return (
        record.component,
        record.variant,
        whole(number_at(graphs, "graph_breaks")),
        whole(number_at(graphs, "compiled_pieces")),
        significant(number_at(graphs, "host_launches", "before")),
        significant(number_at(graphs, "host_launches", "after")),
        significant(number_at(graphs, "wall_ms", "before")),
        significant(number_at(graphs, "wall_ms", "after")),
        _times(number_at(graphs, "gain")),
        significant(number_at(graphs, "capture_seconds"), 3),
        mebibytes(number_at(graphs, "pool_bytes")),
        whole(number_at(graphs, "held")),
    )


def _passes(record: Record) -> Iterator[tuple[str, ...]]:
    for item in record.passes or ():
        name = at(item, "name")
        yield (
            record.component,
            record.variant,
            "?" if name is None else one_line(name),
            whole(number_at(item, "replaced")),
            significant(number_at(item, "rel_l2"), 2),
            significant(number_at(item, "replay_ms", "before")),
            significant(number_at(item, "replay_ms", "after")),
            _times(number_at(item, "speedup")),
        )


def _times(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{significant(ratio, 3)}{TIMES}"
