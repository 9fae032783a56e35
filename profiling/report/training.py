"""Training runs: the loss, compared with that of eager over the same steps, and the time of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiling.report.charts import Chart, Figure, View, axis, figure, line, scale
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words
from profiling.report.table import Column
from profiling.results.judgement import by_component
from profiling.results.measured import TrainingStepRow
from profiling.results.record import Record


@dataclass(frozen=True)
class _Step:
    record: Record
    step: TrainingStepRow
    eager_loss: float | None


def training_section(data: RunData) -> Section:
    """Return the logged steps, and the charts of their loss and time."""
    trained = [record for record in data.records if record.training is not None]
    groups = by_component(trained)
    charts = (
        Chart(
            "loss",
            "Loss over steps",
            [View(name, _figure(data, group, "loss", "loss")) for name, group in groups.items()],
            "Dotted: eager over the same steps and data.",
        ),
        Chart(
            "step_ms",
            "Time of the logged steps",
            [View(name, _figure(data, group, "step_ms", "time of a step, ms")) for name, group in groups.items()],
            "The first step may include preparation that later steps reuse.",
        ),
    )
    steps = [step for record in trained for step in _steps(record)]
    return Section(
        "training",
        "Training",
        tables=(cell_table("Logged steps", _COLUMNS, steps, lambda step: step.record, depth="report"),),
        charts=charts,
    )


def _steps(record: Record) -> Iterator[_Step]:
    training = record.training
    if training is not None:
        eager = {each.step: each.loss for each in training.eager_log}
        for each in training.log:
            yield _Step(record, each, eager.get(each.step))


_COLUMNS = (
    Column[_Step]("step", lambda row: row.step.step, "count"),
    Column[_Step]("loss", lambda row: row.step.loss, "number"),
    Column[_Step]("eager's loss", lambda row: row.eager_loss, "number"),
    Column[_Step]("step", lambda row: row.step.step_ms, "ms"),
    Column[_Step]("waiting for data", lambda row: row.step.data_ms, "ms"),
)


def _figure(data: RunData, group: Sequence[Record], key: str, title: str) -> Figure:
    traces = []
    for record in group:
        if record.training is None:
            continue
        logs = [(record.training.log, "solid", cell_words(record))]
        if key == "loss":
            logs.append((record.training.eager_log, "dot", f"{cell_words(record)}: eager"))
        for log, dash, name in logs:
            known = [(each.step, value) for each in log if (value := getattr(each, key)) is not None]
            if known:
                steps, values = zip(*known, strict=True)
                trace = line(name, steps, values, data.colours[record.variant], mode="lines+markers")
                trace["line"]["dash"] = dash
                traces.append(trace)
    y = axis(title, **scale(value for trace in traces for value in trace["y"]))
    return figure(traces, axis("step"), y)
