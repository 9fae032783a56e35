"""Training runs: the loss, compared with that of eager over the same steps, and the time of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling.report.charts import Chart, Figure, View, axis, figure, line, scale
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words
from profiling.report.table import Column, columns
from profiling.results.measured import TrainingStepRow
from profiling.results.record import Record
from profiling.results.verdicts import by_component


def training_section(data: RunData) -> Section:
    """Return the logged steps, and the chart of their loss."""
    trained = [record for record in data.records if record.training is not None]
    groups = by_component(trained)
    charts = (
        Chart(
            "loss",
            "Loss over steps",
            [View(name, _figure(data, group)) for name, group in groups.items()],
            "Dotted: eager over the same steps and data.",
        ),
    )
    steps = [step for record in trained for step in _steps(record)]
    return Section(
        "training",
        "Training",
        tables=(cell_table("Logged steps", _COLUMNS, steps, depth="report"),),
        charts=charts,
    )


def _steps(record: Record) -> Iterator[tuple[Record, TrainingStepRow, float | None]]:
    if (training := record.training) is not None:
        eager = {each.step: each.loss for each in training.eager_log}
        yield from ((record, each, eager.get(each.step)) for each in training.log)


_COLUMNS = (
    *columns(TrainingStepRow, "step", "loss"),
    Column[tuple[Record, TrainingStepRow, float | None]]("eager's loss", lambda row: row[2], "number"),
    *columns(TrainingStepRow, "step_ms", "data_ms"),
)


def _figure(data: RunData, group: Sequence[Record]) -> Figure:
    traces = []
    for record in group:
        if record.training is None:
            continue
        logs = ((record.training.log, "solid", cell_words(record)),)
        logs += ((record.training.eager_log, "dot", f"{cell_words(record)}: eager"),)
        for log, dash, name in logs:
            known = [(each.step, each.loss) for each in log if each.loss is not None]
            if known:
                steps, losses = zip(*known, strict=True)
                trace = line(name, steps, losses, data.colours[record.variant], mode="lines+markers")
                trace["line"]["dash"] = dash
                traces.append(trace)
    return figure(traces, axis("step"), axis("loss", **scale(value for trace in traces for value in trace["y"])))
