"""Where a frame's budget goes: the stages of each variant against the budget, medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiling.reporting.facts import at, is_realtime, is_right, items_at, mapping_at, number_at
from profiling.reporting.figure import blank_figure, plain
from profiling.results.records import Record

BUDGET_FILE = "budget.svg"

_WIDTH = 0.7
_OVERHEAD = "beside the stages"


def plot_budget(records: Sequence[Record], path: Path) -> bool:
    """Write the plot, a bar a variant that is right; False where there is none with a stage budget.

    Stages that run one after the other are stacked, with the overhead on top; stages that overlap stand side by side,
    for their sum is longer than the frame.

    Raises:
        MissingExtraError: matplotlib is not installed.

    """
    rows = [record for record in records if is_realtime(record) and is_right(record) and stage_times(record)[1]]
    if not rows:
        return False
    figure, (panel,) = blank_figure(1, 1, width=max(7.0, 1.0 + 1.3 * len(rows)), height=4.5)
    stages = dict.fromkeys(stage for record in rows for stage in stage_times(record)[1])
    colours = {stage: f"C{i % 10}" for i, stage in enumerate(stages)} | {_OVERHEAD: "lightgrey"}
    for place, record in enumerate(rows):
        (_beside if _overlaps(record) else _stacked)(panel, place, record, colours)
        p50 = number_at(record.realtime, "frame_ms", "p50")
        if p50 is not None:
            panel.hlines(p50, place - 0.45, place + 0.45, color="black", label="frame")
    for target in sorted({t for record in rows if (t := number_at(record.realtime, "target_fps"))}):
        panel.axhline(1000 / target, color="red", linestyle="--", linewidth=1, label=f"budget at {target:g} FPS")
    names = [plain(f"{record.component}.{record.variant}") for record in rows]
    panel.set_xticks(range(len(rows)), names, rotation=20, ha="right")
    panel.set_title("\n".join(_titles(rows)), fontsize="medium")
    panel.set_ylabel("ms, median")
    handles, labels = panel.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(by_label.values(), by_label, loc="outside lower center", ncols=4)
    figure.savefig(path, metadata={"Date": None})
    return True


def stage_times(record: Record) -> tuple[str, Mapping[str, float]]:
    """Return the clock (device or host) and the median of each stage in milliseconds; host where no device ran."""
    parts = mapping_at(record.realtime, "budget", "parts")
    stages = [stage for stage in items_at(record.realtime, "stages") if isinstance(stage, str)]
    clocks = ("device", "host")
    found = {
        clock: {stage: ms for stage in stages if (ms := number_at(parts, stage, f"{clock}_ms")) is not None}
        for clock in clocks
    }
    clock = next((clock for clock in clocks if found[clock]), "host")
    return clock, found[clock]


def _stacked(panel: Any, place: int, record: Record, colours: Mapping[str, str]) -> None:
    overhead = number_at(record.realtime, "budget", "overhead_ms")
    parts = {**stage_times(record)[1], **({} if overhead is None else {_OVERHEAD: max(0.0, overhead)})}
    height = 0.0
    for stage, ms in parts.items():
        panel.bar(place, ms, _WIDTH, bottom=height, color=colours[stage], label=plain(stage))
        height += ms


def _beside(panel: Any, place: int, record: Record, colours: Mapping[str, str]) -> None:
    stages = stage_times(record)[1]
    width = _WIDTH / len(stages)
    for i, (stage, ms) in enumerate(stages.items()):
        panel.bar(place + (i + 0.5) * width - _WIDTH / 2, ms, width, color=colours[stage], label=plain(stage))


def _overlaps(record: Record) -> bool:
    return at(record.realtime, "schedule") == "overlap"


def _titles(rows: Sequence[Record]) -> list[str]:
    """Say what is stacked, and what is not."""
    clocks = " or ".join(dict.fromkeys(stage_times(record)[0] for record in rows))
    stacked = f"{clocks} time of the stages, stacked, and the rest of the frame on top"
    beside = f"{clocks} time of the stages, side by side: they overlap and do not add up"
    kinds = {_overlaps(record) for record in rows}
    return [title for overlaps, title in ((False, stacked), (True, beside)) if overlaps in kinds]
