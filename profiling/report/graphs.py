"""What variants that capture CUDA graphs saved and cost, and what each torch.fx pass changed."""

from __future__ import annotations

from collections.abc import Callable

from profiling.report.format import Value
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, first, itself
from profiling.report.table import Column
from profiling.results.record import FxPass, Graphs, Record


def graphs_section(data: RunData) -> Section:
    """Return the tables of captured CUDA graphs and of torch.fx passes."""
    captured = [record for record in data.records if record.graphs is not None]
    passes = [(record, each) for record in data.records for each in record.passes or ()]
    graphs = cell_table("CUDA graphs: a call without and with replay", _GRAPHS, captured, itself)
    table = cell_table("torch.fx passes, each against the module before it", _PASSES, passes, first, keys=3)
    return Section("graphs", "CUDA graphs", tables=(graphs, table))


def _of(read: Callable[[Graphs], Value | None]) -> Callable[[Record], Value | None]:
    return lambda record: read(record.graphs) if record.graphs is not None else None


_GRAPHS = (
    Column[Record]("launches without", _of(lambda graphs: getattr(graphs.host_launches, "before", None)), "count"),
    Column[Record]("launches with", _of(lambda graphs: getattr(graphs.host_launches, "after", None)), "count"),
    Column[Record]("without", _of(lambda graphs: getattr(graphs.wall_ms, "before", None)), "ms"),
    Column[Record]("with", _of(lambda graphs: getattr(graphs.wall_ms, "after", None)), "ms"),
    Column[Record]("speedup", _of(lambda graphs: graphs.speedup), "ratio"),
    Column[Record]("capture", _of(lambda graphs: graphs.capture_seconds), "s"),
    Column[Record]("pool", _of(lambda graphs: graphs.pool_bytes), "MiB"),
    Column[Record]("graphs", _of(lambda graphs: graphs.held), "count", depth="report"),
    Column[Record]("graph breaks", _of(lambda graphs: graphs.graph_breaks), "count", depth="report"),
    Column[Record]("compiled pieces", _of(lambda graphs: graphs.compiled_pieces), "count", depth="report"),
)

_Pass = tuple[Record, FxPass]
_PASSES = (
    Column[_Pass]("pass", lambda row: row[1].name),
    Column[_Pass]("replaced", lambda row: row[1].replaced, "count"),
    Column[_Pass]("error", lambda row: row[1].rel_l2, "error"),
    Column[_Pass]("replay before", lambda row: row[1].replay_ms.before if row[1].replay_ms else None, "ms"),
    Column[_Pass]("replay after", lambda row: row[1].replay_ms.after if row[1].replay_ms else None, "ms"),
    Column[_Pass]("speedup", lambda row: row[1].speedup, "ratio"),
    Column[_Pass]("not measured because", lambda row: row[1].unmeasured, wrap=30),
)
