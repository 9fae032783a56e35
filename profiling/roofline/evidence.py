"""What was measured of a call, and the observations that follow from it, a line each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from profiling.results.environment import Ceilings
from profiling.results.record import Bound, Kernel, KernelFinding
from profiling.trace.device_work import SHORT_US

#: Share of the wall time from which the ceiling must be wrong: no call can be that much faster than its roofline.
BEYOND = 1.1
#: On a CPU, operators up to this multiple of the launch cost count as dispatch time.
DISPATCH_FACTOR = 10.0
#: Share of the wall time from which the largest part is named as the bound although no ceiling is near.
MOST = 0.25
#: Most kernels that the evidence names, and the least share of the wall time of each.
_NAMED, _LEAST_NAMED = 3, 0.05
#: Least share of its ceiling at which the rate that is further from its own is named too.
_LEAST_RATE = 0.01
#: Most characters of a kernel's name in the evidence.
_NAME_LENGTH = 44


@dataclass(frozen=True)
class Facts:
    """Measurements of one call, in milliseconds unless the name has another unit; None was not measured.

    `memory_ms` and `compute_ms` are the two terms of the roofline time. `operators` is the number of operators of an
    eager call, `traffic_ms` the time of all their reads and writes (both None where a compiler fused them). `kernels`,
    `launches` and `waits` are counts per call. `busy_ms` is the time in which the GPU worked, `short_ms` the part of it
    in which only short kernels ran, `transfer_ms` the time of copies between host and device. `launch_us`, `gap_us` and
    `replay_us` are measured costs of this device. `dtype` is that of matrix products; with `tf32`, float32 products run
    in TF32. `disturbed` is true if the ceilings were measured while other processes ran. `kernels_by_time` are the
    longest kernels of a call, on a CPU its operators; `findings` those that could take less, of a call that was
    `traced`. `compiles` is false where torch.compile cannot run on this machine. `weights_share` is that of the bytes.
    """

    device: Literal["cuda", "cpu"]
    wall_ms: float
    memory_ms: float
    compute_ms: float
    launch_us: float
    operators: int | None = None
    traffic_ms: float | None = None
    kernels: float | None = None
    launches: float | None = None
    busy_ms: float | None = None
    median_us: float | None = None
    short_ms: float = 0.0
    transfer_ms: float = 0.0
    waits: float = 0.0
    gap_us: float | None = None
    replay_us: float | None = None
    dtype: str = "float32"
    tf32: bool = False
    disturbed: bool = False
    underfilled_ms: float | None = None
    kernels_by_time: tuple[Kernel, ...] = ()
    findings: tuple[KernelFinding, ...] = ()
    traced: bool = False
    ceilings: Ceilings | None = None
    multiprocessors: int | None = None
    compiles: bool = True
    weights_share: float = 1.0

    def share(self, part_ms: float | None) -> float:
        """Return `part_ms` as a share of the wall time (0 to 1); 0 where it was not measured."""
        return 0.0 if part_ms is None else part_ms / self.wall_ms

    @property
    def kernel_ms(self) -> float:
        """The time of the longest kernels; kernels that run side by side count each."""
        return sum(kernel.ms for kernel in self.kernels_by_time)

    @property
    def overlap(self) -> float:
        """By what the time of kernels is multiplied, so that those that run side by side add up to the busy time."""
        return min(1.0, self.busy_ms / self.kernel_ms) if self.busy_ms and self.kernel_ms else 1.0

    @property
    def idle_share(self) -> float | None:
        """The share of the wall time (0 to 1) in which the GPU was idle."""
        return None if self.busy_ms is None else max(0.0, 1 - self.share(self.busy_ms))

    @property
    def fusable_share(self) -> float:
        """The share of the wall time that fusing operators can save: their traffic beyond the bytes that must move."""
        return max(0.0, self.share(self.traffic_ms) - self.share(self.memory_ms))

    @property
    def fused(self) -> bool:
        """Whether a compiler replaced the module's operators."""
        return self.traffic_ms is None

    @property
    def captured(self) -> bool:
        """Whether CUDA graphs are replayed, so that one launch by the host starts several kernels."""
        return bool(self.launches) and (self.kernels or 0.0) > 2 * (self.launches or 0.0)

    @property
    def capturing_variant(self) -> str:
        """The variant that captures this step unchanged."""
        return "compile_cuda_graph" if self.fused else "cuda_graph"

    @property
    def replay_ms(self) -> float | None:
        """The predicted time of a replay of the same kernels: their busy time, a gap for each, one launch."""
        if self.busy_ms is None or self.kernels is None or self.gap_us is None or self.replay_us is None:
            return None
        return self.busy_ms + (self.kernels * self.gap_us + self.replay_us) / 1e3

    @property
    def roofline_term(self) -> tuple[Bound, float]:
        """The larger term of the roofline time, as (its bound, its share of the wall time)."""
        memory, compute = self.share(self.memory_ms), self.share(self.compute_ms)
        return ("compute", compute) if compute > memory else ("memory bandwidth", memory)


def evidence(facts: Facts) -> dict[str, str]:
    """Return {name of an observation: one line}; observations that were not measured are absent."""
    memory, compute = facts.share(facts.memory_ms), facts.share(facts.compute_ms)
    disturbed = ", measured while other processes ran," if facts.disturbed and facts.device == "cpu" else ""
    lines = {}
    if slowest := _slowest(facts):
        lines["slowest"] = slowest
    parts = f"its bytes take {_part(memory)} of wall time, its FLOPs {_part(compute)}"
    lines["ceilings"] = f"at the ceilings{disturbed} {parts}"
    if facts.traffic_ms is not None:
        lines["traffic"] = f"reads and writes of single operators take {facts.share(facts.traffic_ms):.0%} of wall time"
    if facts.idle_share is not None:
        lines["idle"] = f"GPU idle {facts.idle_share:.0%}"
    if facts.kernels is not None and facts.median_us is not None:
        short = f"kernels of at most {SHORT_US:.0f} µs take {facts.share(facts.short_ms):.0%} of wall time"
        lines["kernels"] = f"{facts.kernels:.0f} kernels, median {facts.median_us:.3g} µs; {short}"
    if facts.launches is not None:
        share = facts.share(facts.launches * facts.launch_us / 1e3)
        lines["launches"] = f"{facts.launches:.0f} launches at {facts.launch_us:.3g} µs take {share:.0%} of wall time"
    if facts.waits:
        lines["waits"] = f"the host waits for the GPU {times(facts.waits)}"
    if facts.transfer_ms:
        lines["transfers"] = f"transfers take {facts.share(facts.transfer_ms):.0%} of wall time"
    if facts.device == "cpu" and facts.kernels_by_time:
        small = "operators that take little more than their dispatch"
        lines["host"] = f"Python and {small} take {explained(facts)[2]:.0%} of wall time"
    if facts.device == "cpu" and facts.operators is not None:
        dispatch = facts.share(facts.operators * facts.launch_us / 1e3)
        lines["operators"] = f"dispatching {facts.operators} operators takes {dispatch:.0%} of wall time"
    return lines


def _slowest(facts: Facts) -> str:
    """Return what takes most of the call in one line: kernels far below the ceilings, else the longest kernels."""
    named = [finding for finding in facts.findings if facts.share(facts.overlap * finding.ms) >= _LEAST_NAMED]
    if named:
        named.sort(key=lambda finding: -finding.ms)
        lines = []
        for each in named[:_NAMED]:
            rate = _rate(facts, each.gbps, each.tflops, 1e3 * each.ms / (each.count or 1.0), each.of_ceiling)
            lines.append(
                f"{each.what} take {facts.share(facts.overlap * each.ms):.0%}{rate}{_grid(facts, each.blocks, None)}"
            )
        return "; ".join(lines)
    lines = []
    for kernel in facts.kernels_by_time[:_NAMED]:
        share = (kernel.share or 0.0) if facts.device == "cpu" else facts.share(facts.overlap * kernel.ms)
        if share >= _LEAST_NAMED:
            rates = _rate(facts, kernel.gbps, kernel.tflops, kernel.mean_us or 0.0, dtype=kernel.dtype)
            lines.append(
                f"{short_name(kernel.name)} takes {share:.0%}{rates}{_grid(facts, kernel.blocks, kernel.occupancy)}"
            )
    return "; ".join(lines)


def _rate(
    facts: Facts,
    gbps: float | None,
    tflops: float | None,
    mean_us: float,
    of_ceiling: float | None = None,
    dtype: str | None = None,
) -> str:
    """Return ` at 0.67 TB/s, 16% of the ceiling` for the nearer ceiling; empty where no rate is known.

    `of_ceiling` is given for launches of different sizes, whose ceilings differ; `dtype` is that of the operands.
    """
    if facts.ceilings is None or not (gbps or tflops):
        return ""
    memory, compute = shares(facts, gbps, tflops, mean_us, dtype)
    rates = [_scaled(gbps, "GB/s", "TB/s"), _scaled(tflops and 1e3 * tflops, "GFLOP/s", "TFLOP/s")]
    nearer, other = reversed(rates) if compute > memory else rates
    second = f" ({other})" if other and min(memory, compute) >= _LEAST_RATE else ""
    return f" at {nearer}, {_of_ceiling(of_ceiling or max(memory, compute))}{second}"


def _part(share: float) -> str:
    """Return a share (0 to 1) in whole percent; `under 1%` for one that would round to 0%."""
    return "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _scaled(rate: float | None, unit: str, thousand: str) -> str:
    """Return a rate in words, in the larger unit from 100 on; empty where it is unknown or 0."""
    if not rate:
        return ""
    if rate < 0.1:
        return f"under 0.1 {unit}"
    return f"{rate:.2g} {unit}" if rate < 100 else f"{rate / 1e3:.2g} {thousand}"


def _of_ceiling(share: float) -> str:
    """Say how near a rate is to its ceiling; beyond it, the data came from a cache, or the ceiling is too low."""
    if share < 0.005:
        return "under 1% of the ceiling"
    return f"{share:.0%} of the ceiling" if share <= BEYOND else "above the measured ceiling"


def few_blocks(facts: Facts, blocks: float | None) -> bool:
    """Return whether a launch has fewer blocks than the GPU has multiprocessors; false where that is not known."""
    return blocks is not None and facts.multiprocessors is not None and blocks < facts.multiprocessors


def _grid(facts: Facts, blocks: float | None, occupancy: float | None) -> str:
    """Return how far a launch fills the GPU, where it does not."""
    few = few_blocks(facts, blocks)
    words = f", {blocks:.0f} blocks on {facts.multiprocessors} multiprocessors" if few else ""
    # 0 in records of earlier versions: not known.
    return words + (f", estimated occupancy {occupancy:.0%}" if occupancy and occupancy < MOST else "")


#: Ranges of torch's profiler that are no operators, by the start of their name: their own time is that of such code.
_RANGES = {
    "Torch-Compiled Region": "code that torch.compile generated",
    "TorchDynamo Cache Lookup": "checking the guards of torch.compile",
}


def short_name(kernel: str) -> str:
    """Return a kernel's name without return type, namespaces and template arguments, at most 44 characters."""
    for start, words in _RANGES.items():
        if kernel.startswith(start):
            return words
    name = re.sub(r"\(anonymous namespace\)::", "", kernel.removeprefix("void "))
    name = re.split(r"[<(]", name, maxsplit=1)[0]
    name = name if name.startswith("aten::") else name.rpartition("::")[2] or name
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def times(number: float) -> str:
    """Return `1 time`, `2.5 times`."""
    return f"{number:.3g} time{'' if number == 1 else 's'}"


def shares(
    facts: Facts, gbps: float | None, tflops: float | None, mean_us: float, dtype: str | None = None
) -> tuple[float, float]:
    """Return which share of the bandwidth and of the FLOP ceiling (0 to 1) a kernel reaches; 0 where not known.

    On a CPU the bandwidth is that of a large copy: an operator writes memory that was just allocated, not a cache.
    """
    if facts.ceilings is None:
        return 0.0, 0.0
    memory, compute = facts.ceilings.shares(gbps, tflops, mean_us, dtype)
    return (memory if facts.device == "cuda" else (gbps or 0.0) * 1e9 / facts.ceilings.copy_bytes_per_s), compute


def explained(facts: Facts) -> tuple[float, float, float]:
    """Return which shares of a call's time (0 to 1) the bandwidth ceiling, the FLOP ceiling and the host explain.

    The host's share is the time of operators that take little more than their dispatch, and the time outside
    operators.
    """
    if facts.ceilings is None:
        return 0.0, 0.0, 0.0
    moving = computing = 0.0
    host = max(0.0, 1 - sum(kernel.share or 0.0 for kernel in facts.kernels_by_time))
    for kernel in facts.kernels_by_time:
        share = (kernel.share or 0.0) if facts.device == "cpu" else facts.share(facts.overlap * kernel.ms)
        mean_us = kernel.mean_us or 0.0
        memory, compute = (min(1.0, part) for part in shares(facts, kernel.gbps, kernel.tflops, mean_us, kernel.dtype))
        dispatched = mean_us <= DISPATCH_FACTOR * facts.launch_us and max(memory, compute) * mean_us < facts.launch_us
        if facts.device == "cpu" and dispatched:
            host += share
            continue
        moving, computing = (
            moving + share * memory * (memory >= compute),
            computing + share * compute * (compute > memory),
        )
    return moving, computing, host
