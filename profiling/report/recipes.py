"""What the steps of recipes did, what torch.compile and torch.fx passes reported, and the files to open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from profiling.report.format import Value
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, linked_file
from profiling.report.table import Column, columns
from profiling.results.explanations import CompileEvent, FxPass, LayerSensitivity, Package, RecipeStep
from profiling.results.record import Record

_TO_OPEN = (
    "Traces (.json.gz) open in ui.perfetto.dev, memory snapshots (.pickle) in pytorch.org/memory_viz: drop the file "
    "onto the page, which reads it without uploading it."
)

_Step = tuple[Record, RecipeStep]
_Reason = tuple[Record, CompileEvent, str]


def recipes_section(data: RunData) -> Section:
    """Return the tables of steps, of what they wrote, reported and changed, and of traces, snapshots and reports."""
    steps = [(record, step) for record in data.records for step in record.recipe or ()]
    packages = [(record, package) for record, step in steps for package in step.packages or ()]
    single = [(record, record.sensitivity) for record in data.records if record.sensitivity is not None]
    layers = [(record, layer) for record, each in single for layer in each.layers]
    timed = [f"{r.variant}: {len(each.layers)} of {each.quantised} layers; times {each.timed}." for r, each in single]
    passes = [(record, each) for record in data.records for each in record.passes or ()]
    reasons = [reason for record in data.records for reason in _reasons(record)]
    files = [r for r in data.records if r.trace or r.memory_snapshot or (r.compile and r.compile.index)]
    paths = columns(Record, "trace.trace", "trace.operators", "memory_snapshot.file", "compile.index")
    links = (*(_linked(each, data) for each in paths), *columns(Record, "memory_snapshot.ended_by"))
    tables = (
        cell_table("Steps of the recipes", _STEPS, steps, keys=4),
        cell_table("Files compiled ahead of time", _PACKAGES, packages, keys=3),
        cell_table("Each layer quantised alone, largest error first", _ALONE, layers, timed, 3),
        cell_table("torch.fx passes, each against the module before it", _PASSES, passes, keys=3),
        cell_table("What the compiler reported", _REASONS, reasons),
        cell_table("Traces, snapshots and compile reports", links, files, [_TO_OPEN]),
    )
    return Section("recipes", "Recipes", tables=tables, depth="report")


def _linked(column: Column[Record], data: RunData) -> Column[Record]:

    def read(record: Record) -> Value | None:
        path = column.read(record)
        return linked_file(data.folder, path) if isinstance(path, str) else path

    return replace(column, read=read)


def _reasons(record: Record) -> Iterator[_Reason]:
    if (log := record.compile) is not None:
        yield from ((record, each, "graph break") for each in log.graph_breaks)
        yield from ((record, each, "recompile") for each in log.recompiles)
        yield from ((record, each, f"not compiled, {each.kind}") for each in log.failures)
        yield from ((record, CompileEvent(reason=reason), "CUDA graph skipped") for reason in log.cudagraph_skips)


def _layers(row: _Step) -> str | None:
    """Return how many layers a transform replaced by what, and how many it left for what reason."""
    if (choices := row[1].choices) is None:
        return None
    replaced = [f"{count} replaced by {kind}" for kind, count in choices.now.items()]
    return "; ".join([*replaced, *(f"{count} left: {reason}" for reason, count in choices.left.items())]) or None


_REASONS = (
    Column[_Reason]("what", lambda row: row[2]),
    *columns(CompileEvent, "compile_id", "reason", "file", "line"),
)
_STEPS = (
    *columns(RecipeStep, "stage", "kind", "name", "seconds", "changed"),
    Column[_Step]("layers", _layers, wrap=40),
)
_PACKAGES = (
    *columns(Package, "file", "bytes", "export_s", "compile_s", "load_s"),
    Column[tuple[Record, Package]]("dynamic axes", lambda row: ", ".join(row[1].dynamic) or None),
)
_ALONE = columns(LayerSensitivity, "name", "rel_l2", "ms.before", "ms.after")
_PASSES = (
    *columns(FxPass, "name", "replaced", "rel_l2", "replay_ms.before", "replay_ms.after"),
    *columns(FxPass, "unmeasured", wrap=30),
)
