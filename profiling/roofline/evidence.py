"""What was measured of one call, as shares of its wall time, and the observations that follow, a line each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from profiling.results.environment import Ceilings
from profiling.results.explanations import SHORT_US, Bound, DeviceWork, FindingKind, Kernel, KernelFinding, RooflinePart
from profiling.trace.kernel_classes import kernel_class

#: On a CPU, operators up to this multiple of the launch cost count as dispatch time.
DISPATCH_FACTOR = 10.0
#: Share from which a call cannot beat its roofline, nor a kernel its ceiling: the ceiling must be too low.
BEYOND = 1.1
#: Most groups of kernels that an observation names, and the least share of the wall time of each.
_NAMED, _LEAST_NAMED = 3, 0.05
#: Most characters of a kernel's name in an observation.
_NAME_LENGTH = 44
_RATES = ("gbps", "tflops")
#: Ranges of torch's profiler that are no operators, by the start of their name: their own time is that of such code.
_RANGES = {"Torch-Compiled Region": "compiled code", "TorchDynamo Cache Lookup": "guards of torch.compile"}
_NO_WORK = DeviceWork(kernels=0.0, launches=0.0, busy_ms=0.0, median_us=0.0, short_ms=0.0, transfer_ms=0.0, waits=0.0)
#: What a class of kernels is called, and its kind of finding.
_CLASSES: dict[str, tuple[str, FindingKind]] = {
    "gemm": ("GEMM", "product"),
    "conv": ("convolutions", "convolution"),
    "attention": ("attention", "attention"),
    "reduction": ("reductions", "reduction"),
    "copy": ("copies", "elementwise"),
    "pointwise": ("pointwise", "elementwise"),
    "other": ("other kernels", "elementwise"),
}


@dataclass(frozen=True)
class Conditions:
    """How a call ran: its device, whether a compiler fused its operators, TF32, and whether torch.compile works."""

    device: Literal["cuda", "cpu"]
    fused: bool
    tf32: bool = False
    compiles: bool = True
    multiprocessors: int | None = None


class Evidence:
    """What was measured of one call: shares of its wall time unless the name has a unit, 0 where nothing was measured.

    `memory` and `compute` are the times of its bytes and FLOPs at the ceilings, `roofline` the larger. `traffic` is
    that of what single operators read and write, 0 where a compiler fused them, and `fusable` the part of it that need
    not move. `weights` is the share of the weights in the bytes, `linear` that of matrix products in the FLOPs,
    `dtype` that of most FLOPs.

    Of a GPU: `idle` is its idle time, `short` that in which only short kernels ran, `launching` the host's at the
    launch cost of this device. It is `underfilled` where most of the busy time goes to kernels that are short or of few
    blocks, the call `captured` where one launch starts several kernels. `replay_ms` is the predicted time of a replay:
    the kernels' busy time, a gap for each, one launch.

    `classes` are the longest kernels, on a CPU the operators, by class, and `slow` those that could take less time, the
    largest saving first. Times of kernels are multiplied by `overlap`, so that those that run side by side add up to
    the busy time. `near` is the time that the ceilings explain kernel by kernel, and, on a CPU, that of operators that
    take little more than their dispatch, and outside of operators ("host").
    """

    def __init__(self, section: RooflinePart, wall_ms: float, ceilings: Ceilings, here: Conditions) -> None:
        self.wall_ms, self.ceilings, self.here = wall_ms, ceilings, here
        self.on_gpu = here.device == "cuda"
        self.profiled, self.work = section.device_work is not None, section.device_work or _NO_WORK
        work = self.work
        self.memory, self.compute = ((ms or 0.0) / wall_ms for ms in (section.memory_ms, section.compute_ms))
        self.roofline = max(self.memory, self.compute)
        size = 0 if here.fused else section.traffic_bytes or 0
        self.traffic = 1e3 * size / ceilings.bytes_per_s(size) / wall_ms
        self.fusable = max(0.0, self.traffic - self.memory)
        self.weights = section.bytes.get("weights", 0) / max(1, section.bytes.get("total", 0))
        self.linear = section.flops.get("matmul", 0) / max(1, section.flops.get("total", 0))
        spent = ceilings.compute_ms(section.flops_by_dtype)
        self.dtype = max(spent, key=lambda dtype: spent[dtype], default=ceilings.dtype)
        self.idle = max(0.0, 1 - work.busy_ms / wall_ms) if self.profiled else 0.0
        self.short, self.launching = work.short_ms / wall_ms, work.launches * ceilings.launch_us / 1e3 / wall_ms
        self.underfilled = max(work.short_ms, work.underfilled_ms or 0.0) > work.busy_ms / 2
        self.captured = 0 < 2 * work.launches < work.kernels
        self.replay_ms: float | None = None
        if self.profiled and ceilings.gap_us is not None and ceilings.replay_us is not None:
            self.replay_ms = work.busy_ms + (work.kernels * ceilings.gap_us + ceilings.replay_us) / 1e3
        self.kernels = section.kernels
        if not self.on_gpu:  # operators were measured under the profiler, and their shares are of the call there
            self.kernels = tuple(replace(each, ms=(each.share or 0.0) * wall_ms) for each in self.kernels)
        kernel_ms = sum(kernel.ms for kernel in section.classes or section.kernels)
        self.overlap = min(1.0, work.busy_ms / kernel_ms) if work.busy_ms and kernel_ms else 1.0
        self.classes = _by_class(self.kernels, ceilings)
        self.slow = section.findings or tuple(sorted(self.classes, key=lambda each: -each.saves_ms))
        self.near = self._near()

    def _near(self) -> dict[Bound, float]:
        """Return the shares of the wall time that ceilings and host explain."""
        outside = 0.0 if self.on_gpu else max(0.0, 1 - self.share(sum(kernel.ms for kernel in self.kernels)))
        spent: dict[Bound, float] = {"memory bandwidth": 0.0, "compute": 0.0, "host": outside}
        for kernel in self.kernels:
            us, share = kernel.mean_us or 0.0, self.share(kernel.ms)
            memory, compute = (min(1.0, part) for part in self.ceilings.shares(kernel))
            dispatch = not self.on_gpu and us <= DISPATCH_FACTOR * self.ceilings.launch_us
            if dispatch and max(memory, compute) * us < self.ceilings.launch_us:
                spent["host"] += share
            else:
                spent["compute" if compute > memory else "memory bandwidth"] += share * max(memory, compute)
        return spent

    def share(self, ms: float) -> float:
        """Return the time of kernels as a share of the wall time."""
        return self.overlap * ms / self.wall_ms

    def few_blocks(self, blocks: float | None) -> bool:
        """Return whether a launch has fewer blocks than the GPU has multiprocessors; false where that is not known."""
        return blocks is not None and self.here.multiprocessors is not None and blocks < self.here.multiprocessors

    def longest(self) -> list[KernelFinding]:
        """Return the kernels that take most of the call, longest first: slow or of unknown rate, without such all."""
        other, _ = _CLASSES["other"]
        unknown = [each for each in self.classes if each.what == other and each.gbps is each.tflops is None]
        most = max((each.ms for each in self.classes), default=0.0)
        for groups in ((*self.slow, *(each for each in unknown if each not in self.slow)), self.classes):
            found = [each for each in groups if self.share(each.ms) >= _LEAST_NAMED]
            if sum(each.ms for each in found) >= most / 2:  # else others take most of the call
                return sorted(found, key=lambda each: -each.ms)[:_NAMED]
        return []

    def words(self, each: KernelFinding) -> str:
        """Return `GEMM M=17 at 2.2 TB/s, 51% of the bandwidth`, of a whole class with its longest kernel."""
        whole = each in self.classes and each.what not in _RANGES.values()
        longest = f" ({_short_name(each.kernels[0])})" if whole else ""
        few = f", {each.blocks or 0:.0f} blocks on {self.here.multiprocessors} multiprocessors"
        return f"{each.what}{longest}{self._rate(each)}{few if self.few_blocks(each.blocks) else ''}"

    def _rate(self, each: KernelFinding) -> str:
        """Return ` at 0.67 TB/s, 16% of the bandwidth` for the nearer ceiling; empty where no rate is known."""
        memory, compute = self.ceilings.shares(each)
        if compute > memory:
            rate, ceiling = _scaled((each.tflops or 0.0) * 1e3, "GFLOP/s", "TFLOP/s"), "FLOP ceiling"
        else:
            rate, ceiling = _scaled(each.gbps, "GB/s", "TB/s"), "bandwidth"
        share = each.of_ceiling or max(memory, compute)  # of launches of several sizes, whose ceilings differ
        # Beyond it, the data came from a cache, or the ceiling is too low.
        near = f"{_part(share)} of the {ceiling}" if share <= BEYOND else f"above the measured {ceiling}"
        return f" at {rate}, {near}" if rate else ""

    def took(self, each: KernelFinding) -> str:
        """Return `GEMM 1.5 of 2.0 ms`: the time of a group of kernels in a call."""
        return f"{each.what} {milliseconds(self.overlap * each.ms)} of {milliseconds(self.wall_ms)} ms"


def _by_class(kernels: Sequence[Kernel], ceilings: Ceilings) -> tuple[KernelFinding, ...]:
    """Return the kernels by class, the longest first; what they could save is that of those whose rates are known."""
    groups: dict[tuple[str, FindingKind], list[Kernel]] = {}
    for kernel in kernels:
        ranges = [words for start, words in _RANGES.items() if kernel.name.startswith(start)]
        groups.setdefault((ranges[0], "elementwise") if ranges else _CLASSES[kernel_class(kernel)], []).append(kernel)
    found = []
    for (what, kind), members in groups.items():
        ms, known = sum(each.ms for each in members), [each for each in members if each.gbps or each.tflops]
        known_ms = sum(each.ms for each in known)
        near_ms = sum(each.ms * max(ceilings.shares(each)) for each in known)
        least_ms = max(near_ms, sum(each.count or 0.0 for each in known) * ceilings.launch_us / 1e3)
        rates = [sum(each.ms * (getattr(each, name) or 0.0) for each in known) / (known_ms or 1.0) for name in _RATES]
        longest = max(members, key=lambda each: each.ms)
        found.append(
            KernelFinding(
                kind=kind,
                what=what,
                ms=ms,
                saves_ms=max(0.0, known_ms - least_ms),
                count=sum(each.count or 0.0 for each in members),
                gbps=rates[0] or None,
                tflops=rates[1] or None,
                of_ceiling=near_ms / known_ms if known_ms else None,
                blocks=longest.blocks,
                kernels=(longest.name,),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.ms))


def observations(e: Evidence) -> dict[str, str]:
    """Return {name of an observation: one line}; what was not measured is absent."""
    disturbed = ", measured while other processes ran," if e.ceilings.disturbed and not e.on_gpu else ""
    parts = f"the call's weights, inputs and outputs take {_part(e.memory)} of wall time, its FLOPs {_part(e.compute)}"
    lines = {
        "slowest": "; ".join(f"{_part(e.share(each.ms))} {e.words(each)}" for each in e.longest()),
        "ceilings": f"at the ceilings{disturbed} {parts}",
    }
    if e.traffic:
        lines["traffic"] = f"tensors that operators hand to each other through memory take {e.traffic:.0%} of wall time"
    if e.profiled:
        work = e.work
        short = f"kernels of at most {SHORT_US:.0f} µs take {e.short:.0%} of wall time"
        cost = f"{work.launches:.0f} launches at {e.ceilings.launch_us:.3g} µs"
        waits = f"{work.waits:.3g} time{'' if work.waits == 1 else 's'}"
        lines["idle"] = f"GPU idle {e.idle:.0%}"
        lines["kernels"] = f"{work.kernels:.0f} kernels, median {work.median_us:.3g} µs; {short}"
        lines["launches"] = f"{cost} take {e.launching:.0%} of wall time"
        lines["waits"] = f"the host waits for the GPU {waits} a call" if work.waits else ""
        lines["transfers"] = (
            f"transfers take {work.transfer_ms / e.wall_ms:.0%} of wall time" if work.transfer_ms else ""
        )
    if e.near["host"] > max(e.near["memory bandwidth"], e.near["compute"]):
        small = "operators that take little more than their dispatch"
        lines["host"] = f"Python and {small} take {e.near['host']:.0%} of wall time"
    return {name: line for name, line in lines.items() if line}


def milliseconds(ms: float) -> str:
    """Return a time with two digits, all digits of whole milliseconds kept: 0.51, 2.2, 115."""
    return f"{ms:.2g}" if ms < 99.5 else f"{ms:.0f}"


def _part(share: float) -> str:
    """Return a share (0 to 1) in whole percent; `under 1%` for one that would round to 0%."""
    return "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _scaled(rate: float | None, unit: str, thousand: str) -> str:
    """Return a rate in words, in the larger unit from 100 on; empty where it is unknown or 0."""
    if not rate:
        return ""
    if rate < 0.1:
        return f"under 0.1 {unit}"
    if rate >= 100:
        rate, unit = rate / 1e3, thousand
    return f"{rate:.2g} {unit}" if rate < 99.5 else f"{rate:.0f} {unit}"


def _short_name(kernel: str) -> str:
    """Return a kernel's name without return type, namespaces and template arguments, at most 44 characters."""
    name = re.sub(r"\(anonymous namespace\)::", "", kernel.removeprefix("void "))
    name = re.split(r"[<(]", name, maxsplit=1)[0]
    name = name if name.startswith("aten::") else name.rpartition("::")[2] or name
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"
