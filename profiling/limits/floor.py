"""The least time that a call can take on this device: the slower of moving its bytes and doing its FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.limits.ceilings import Ceilings
from profiling.limits.work import Work


@dataclass(frozen=True)
class Floor:
    """Both terms in milliseconds; they may overlap in time, so the larger one is the floor (the roofline model).

    Source: Williams, Waterman, Patterson, Roofline: an insightful visual performance model (2009).
    """

    memory_ms: float
    compute_ms: float

    @property
    def ms(self) -> float:
        """The floor."""
        return max(self.memory_ms, self.compute_ms)


def floor_of(work: Work, ceilings: Ceilings) -> Floor:
    """Return the floor of `work`; its FLOPs at the rate of the run's dtype, whatever single operators compute in."""
    size = work.total_bytes
    return Floor(
        memory_ms=1e3 * size / ceilings.bytes_per_s(size),
        compute_ms=1e3 * work.total_flops / ceilings.flops_per_s,
    )


def traffic_ms(work: Work, ceilings: Ceilings) -> float:
    """Return how long the eager operators' reads and writes take when each runs by itself."""
    return 1e3 * work.traffic / ceilings.bytes_per_s(work.traffic)
