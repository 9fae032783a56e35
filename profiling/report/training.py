"""Training runs: the time of logged steps, and the loss, beside that of eager over the same steps."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.report.charts import DOTTED, LINE, Chart, Figure, Series, View, palette
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words
from profiling.report.table import columns
from profiling.results.measured import Training, TrainingStepRow
from profiling.results.record import Record
from profiling.results.verdicts import by_component

_COLUMNS = columns(TrainingStepRow, "step", "loss", "step_ms", "data_ms")


def training_section(data: RunData) -> Section:
    """Return the logged steps, and the chart of their loss."""
    trained = [(record, record.training) for record in data.records if record.training is not None]
    steps = [(record, step) for record, training in trained for step in training.log]
    groups = by_component(record for record, _ in trained)
    views = [View(name, _figure([each for each in trained if each[0] in group])) for name, group in groups.items()]
    chart = Chart("loss", "Loss over steps", views, "Dotted: eager over the same steps and data.")
    table = cell_table("Logged steps", _COLUMNS, steps, depth="report")
    return Section("training", "Training", tables=(table,), charts=(chart,))


def _figure(group: Sequence[tuple[Record, Training]]) -> Figure:
    colours, series = palette(record.variant for record, _ in group), []
    for record, training in group:
        words = cell_words(record)
        for log, drawn, name in ((training.log, LINE, words), (training.eager_log, DOTTED, f"{words}: eager")):
            if known := [(each.step, each.loss) for each in log if each.loss is not None]:
                series.append(Series(name, known, colours[record.variant], drawn))
    return Figure("step", "loss", series)
