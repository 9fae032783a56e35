"""The classic block a cell, for those who keep the history of an optimization by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiling.reporting.facts import at, by_component, is_realtime, is_right, number_at, peak_memory
from profiling.reporting.format import ABSENT, MIB, decimals, one_line, struck
from profiling.results.records import Record

COMPONENT_LABELS = {"world_model": "WM"}
VARIANT_LABELS = {
    "baseline": "Baseline",
    "compile": "Torch Compile",
    "cuda_graph": "CUDA Graph",
    "compile_cuda_graph": "Torch Compile + CUDA Graph",
}
FOOTNOTE = "Times are wall clock, a call (of a loop: a frame); MB are of 2^20 bytes."


def render_classic(records: Sequence[Record]) -> str:
    """Return the blocks of all cells, grouped by component."""
    blocks = [_block(record) for group in by_component(records).values() for record in group]
    return "\n\n".join([*blocks, FOOTNOTE])


def label(name: str, labels: Mapping[str, str]) -> str:
    """Return the name people write by hand: the one in `labels`, else each word with a capital."""
    return labels.get(name) or " ".join(word[:1].upper() + word[1:] for word in one_line(name).split("_") if word)


def _block(record: Record) -> str:
    lines = [f"* {label(record.variant, VARIANT_LABELS)} - {label(record.component, COMPONENT_LABELS)}"]
    if record.status != "ok":
        lines.append(f"  {record.status.capitalize()}: {one_line(record.reason)}")
    times = [_latency(record), _frames(record)]
    if not is_right(record):
        times = [line and struck(line) for line in times]
    peak = peak_memory(record)
    memory = f"Memory: {peak[1] / MIB:.0f} MB {peak[0]}" if peak else ""
    lines += [f"  {line}" for line in (times[0], memory, times[1]) if line]
    if len(lines) == 1:
        lines.append("  not measured")
    return "\n".join(lines)


def _latency(record: Record) -> str:
    wall = at(record.metrics, "wall_ms") or at(record.realtime, "frame_ms")
    mean = number_at(wall, "mean")
    if mean is None:
        return ""
    # As many decimals for all as the mean needs, two at least: the block is read downwards, next to older ones.
    places = max(2, decimals(mean, 3))
    shown = {name: number_at(wall, name.lower()) for name in ("Mean", "Min", "Max", "Std")}
    return ", ".join(
        f"{name}: {ABSENT if value is None else f'{value:.{places}f} ms'}" for name, value in shown.items()
    )


def _frames(record: Record) -> str:
    shown = {name: number_at(record.metrics, "fps", key) for name, key in _FPS_KEYS}
    if is_realtime(record):
        shown = {"Avg": number_at(record.realtime, "wall_fps")}
    mean = shown["Avg"]
    if mean is None:
        return ""
    places = max(1, decimals(mean, 3))
    return ", ".join(
        f"{name} FPS: {ABSENT if value is None else f'{value:.{places}f}'}" for name, value in shown.items()
    )


_FPS_KEYS = (("Avg", "mean"), ("Min", "min"), ("Max", "max"))
