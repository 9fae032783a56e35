"""What is known of a call before it is judged, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiling.tracing.device_work import SHORT_US


@dataclass(frozen=True)
class Facts:
    """Of one call, in milliseconds where the name says nothing else; None was not measured.

    `memory_ms` and `compute_ms` are the terms of the floor, `traffic_ms` the same for all that the operators of an
    eager call read and write (None where they were fused). `kernels`, `launches` and `waits` are numbers a call,
    `busy_ms` is when the GPU worked, `short_ms` when it worked at short kernels alone, `transfer_ms` copies between
    host and device. `launch_us`, `gap_us` and `replay_us` are the ceilings of the same names, `operators` the number of
    the eager call's (None where they were fused). Products are of `dtype`, and where `tf32` says so float32 is TF32.
    `disturbed` says that the ceilings were measured while others had the processor.
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

    def share(self, part_ms: float | None) -> float:
        """Return what share of the wall time `part_ms` is."""
        return 0.0 if part_ms is None else part_ms / self.wall_ms

    @property
    def idle_share(self) -> float | None:
        """The share of the wall time in which the GPU did nothing."""
        return None if self.busy_ms is None else max(0.0, 1 - self.share(self.busy_ms))

    @property
    def fusable_share(self) -> float:
        """The share of the wall time that the operators' traffic takes beyond what must cross the bus anyway."""
        return max(0.0, self.share(self.traffic_ms) - self.share(self.memory_ms))

    @property
    def fused(self) -> bool:
        """Whether a compiler made the operators into others: there is no traffic of single ones then."""
        return self.traffic_ms is None

    @property
    def captured(self) -> bool:
        """Whether graphs are replayed: one launch by the host makes many kernels."""
        return bool(self.launches) and (self.kernels or 0.0) > 2 * (self.launches or 0.0)

    @property
    def capture(self) -> str:
        """The variant that captures this step as it is."""
        return "compile_cuda_graph" if self.fused else "cuda_graph"

    @property
    def replay_ms(self) -> float | None:
        """What a captured replay of the same kernels should take: their time, what a graph adds to each, one launch."""
        if self.busy_ms is None or self.kernels is None or self.gap_us is None or self.replay_us is None:
            return None
        return self.busy_ms + (self.kernels * self.gap_us + self.replay_us) / 1e3


def evidence(facts: Facts) -> dict[str, str]:
    """Return what was found, by name."""
    memory, compute = facts.share(facts.memory_ms), facts.share(facts.compute_ms)
    ceilings = "the ceilings" + (", measured on a busy processor," if facts.disturbed and facts.device == "cpu" else "")
    said = {"ceilings": f"{ceilings} explain {memory:.0%} of wall by bytes, {compute:.0%} by FLOPs"}
    if facts.traffic_ms is not None:
        said["traffic"] = f"{facts.share(facts.traffic_ms):.0%} of wall by what each operator reads and writes"
    if facts.idle_share is not None:
        said["idle"] = f"GPU idle {facts.idle_share:.0%}"
    if facts.kernels is not None and facts.median_us is not None:
        short = f"{facts.share(facts.short_ms):.0%} of wall in those of at most {SHORT_US:.0f} µs"
        said["kernels"] = f"{facts.kernels:.0f} kernels, median {facts.median_us:.3g} µs, {short}"
    if facts.launches is not None:
        share = facts.share(facts.launches * facts.launch_us / 1e3)
        said["launches"] = f"{facts.launches:.0f} launches, {share:.0%} of wall at {facts.launch_us:.3g} µs each"
    if facts.waits:
        said["waits"] = f"{facts.waits:.3g} wait{'' if facts.waits == 1 else 's'}"
    if facts.transfer_ms:
        said["transfers"] = f"transfers {facts.share(facts.transfer_ms):.0%}"
    if facts.device == "cpu" and facts.operators is not None:
        dispatch = facts.share(facts.operators * facts.launch_us / 1e3)
        said["operators"] = f"{facts.operators} operators, dispatch {dispatch:.0%}"
    return said
