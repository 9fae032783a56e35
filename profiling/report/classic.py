"""A short text block for each cell, to paste into notes on an optimization: `classic.txt`."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.errors import printable
from profiling.report.format import MIB, decimals, struck
from profiling.results.record import Record
from profiling.results.verdicts import by_component

VARIANT_LABELS = {
    "baseline": "Baseline",
    "compile": "Torch Compile",
    "cuda_graph": "CUDA Graph",
    "compile_cuda_graph": "Torch Compile + CUDA Graph",
}
FOOTNOTE = "Times: wall clock per call (realtime: per frame). MB: 2^20 bytes."


def classic_blocks(records: Sequence[Record]) -> str:
    """Return the blocks of all cells, grouped by component."""
    blocks = [_block(record) for group in by_component(records).values() for record in group]
    return "\n\n".join([*blocks, FOOTNOTE])


def label(name: str) -> str:
    """Return the name people write by hand: a known variant's, else each word with a capital."""
    words = (word[:1].upper() + word[1:] for word in printable(name).split("_") if word)
    return VARIANT_LABELS.get(name) or " ".join(words)


def _block(record: Record) -> str:
    lines = [f"* {label(record.variant)} - {label(record.component)}"]
    if record.status != "ok":
        lines.append(f"  {record.status.capitalize()}: {printable(record.reason)}")
    latency, frames = (
        text if record.is_correct or not text else struck(text) for text in (_latency(record), _fps(record))
    )
    peak = record.peak_memory
    memory = f"Memory: {peak[1] / MIB:.0f} MB {peak[0]}" if peak else ""
    lines += [f"  {line}" for line in (latency, memory, frames) if line]
    return "\n".join(lines if len(lines) > 1 else [*lines, "  not measured"])


def _latency(record: Record) -> str:
    times = record.realtime.frame_ms if record.realtime is not None else record.metrics.wall_ms
    if times is None:
        return ""
    # All four times have the decimals of the mean, at least two, so that blocks line up below each other.
    places = max(2, decimals(times.mean, 3))
    shown = (("Mean", times.mean), ("Min", times.min), ("Max", times.max), ("Std", times.std))
    return ", ".join(f"{name}: {'–' if ms is None else f'{ms:.{places}f} ms'}" for name, ms in shown)


def _fps(record: Record) -> str:
    if record.realtime is not None:
        rates = [("Avg", record.realtime.wall_fps)]
    else:
        fps = record.metrics.fps
        rates = [("Avg", fps.mean), ("Min", fps.min), ("Max", fps.max)] if fps is not None else []
    known = [(name, rate) for name, rate in rates if rate is not None]
    places = max(1, decimals(known[0][1], 3)) if known else 1
    return ", ".join(f"{name} FPS: {rate:.{places}f}" for name, rate in known)
