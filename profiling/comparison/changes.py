"""What else changed in a cell: memory, prepare time, parity, counts, the other clocks, kernels; the rest is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from profiling.comparison.kernels import kernel_changes
from profiling.comparison.side import Side
from profiling.comparison.surroundings import Difference
from profiling.reporting.facts import at, deadlines, is_right, number_at, peak_memory
from profiling.reporting.format import ABSENT, count_of, mebibytes, significant
from profiling.results.records import Record

#: Rows of kernels that a cell may take.
MOST_KERNELS = 8


@dataclass(frozen=True)
class _Number:
    """A number of a record, and by which part of itself it must differ to be told (a single measurement has noise)."""

    what: str
    keys: tuple[str, ...]
    part: float
    least: float = 0.0  # in the number's own unit


_NUMBERS = (
    _Number("device p50 ms", ("metrics", "device_ms", "p50"), 0.02),
    _Number("host p50 ms", ("metrics", "host_ms", "p50"), 0.1),
    _Number("wall p99 ms", ("metrics", "wall_ms", "p99"), 0.1),
    _Number("frame p99 ms", ("realtime", "frame_ms", "p99"), 0.1),
    _Number("prepare s", ("prepare", "seconds"), 0.2, 0.05),
    _Number("parity rel. L2", ("parity", "rel_l2"), 0.1),
    _Number("parity tolerance", ("parity", "tolerance"), 0.1),
    *(
        _Number(name.replace("_", " "), ("prepare", name), 0.0)
        for name in ("compiles", "graphs", "graph_breaks", "recompiles", "cudagraph_captures", "cudagraph_skips")
    ),
    _Number("kernels, copies and fills a call", ("trace", "device_launches"), 0.0),
    _Number("device work a call, ms", ("trace", "device_ms"), 0.02),
    _Number("idle: waiting for the host, ms a call", ("inside", "idle", "host_ms"), 0.1, 0.01),
    _Number("idle: between kernels, ms a call", ("inside", "idle", "between_ms"), 0.1, 0.01),
)
_NAMES = ("dtype", "device", "weights", "parameters")
_LOOP = ("schedule", "pace", "deliver", "steps", "commit", "guidance", "garbage", "frames", "late")


def changes(a: Side, b: Side, cell: tuple[str, str]) -> tuple[Difference, ...]:
    """Return (what, in A, in B) of everything told in a cell that both sides have and that is right in both."""
    one, two = a.records.get(cell), b.records.get(cell)
    if one is None or two is None or not is_right(one) or not is_right(two):
        return ()
    kernels = kernel_changes(a, b, one, two)
    left_out = [(f"and {count_of(len(kernels) - MOST_KERNELS, 'kernel')} more", ABSENT, ABSENT)]
    shown = kernels if len(kernels) <= MOST_KERNELS else [*kernels[:MOST_KERNELS], *left_out]
    return (*_facts(one, two), *_numbers(one, two), *_memory(one, two), *_holds(one, two), *shown)


def _facts(one: Record, two: Record) -> Iterator[Difference]:
    read: list[tuple[str, Callable[[Record], object]]] = [
        *((name, lambda record, name=name: getattr(record, name)) for name in _NAMES),
        *((name, lambda record, name=name: at(record.realtime, name)) for name in _LOOP),
        ("parity", lambda record: "not checked" if at(record.parity, "passed") is None else "checked"),
    ]
    for what, look in read:
        if look(one) != look(two):
            yield what, _text(look(one)), _text(look(two))


def _numbers(one: Record, two: Record) -> Iterator[Difference]:
    for number in _NUMBERS:
        section, *keys = number.keys
        before, after = (number_at(getattr(record, section), *keys) for record in (one, two))
        if before is None or after is None:
            if before != after:
                yield number.what, significant(before), significant(after)
        elif abs(before - after) > max(number.least, number.part * max(abs(before), abs(after))):
            yield number.what, significant(before), significant(after)


def _memory(one: Record, two: Record) -> Iterator[Difference]:
    before, after = peak_memory(one), peak_memory(two)
    if before and after and before[0] == after[0] and abs(before[1] - after[1]) > 0.01 * max(before[1], after[1]):
        yield f"{before[0]} MiB", mebibytes(before[1]), mebibytes(after[1])


def _holds(one: Record, two: Record) -> Iterator[Difference]:
    before, after = deadlines(one), deadlines(two)
    for rate in sorted({*before, *after}):
        held = [at(side.get(rate), "holds") for side in (before, after)]
        if held[0] != held[1]:
            yield f"holds {rate:g} FPS", _text(held[0]), _text(held[1])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ABSENT if value is None else str(value)
