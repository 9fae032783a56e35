"""What bounds a single kernel: by the trace and the measured ceilings, and by hardware counters.

By the trace, a kernel whose bytes (or FLOPs) pass at `NEAR_CEILING` of the measured ceiling or faster is bound by
memory bandwidth (or compute), and any other by neither. By counters the same holds for `NEAR_PEAK` of the peak of the
memory (DRAM or L2) or of the pipes that compute FLOPs (tensor or FMA): 60% is the limit below which the rule of Nsight
Compute's section Speed of Light (`SpeedOfLight.py`, latency_bound_threshold) reports latency issues. The two thresholds
are about the same rate, because measured ceilings are 80 to 90% of the peak. The throughput of the multiprocessors
counts instructions of any kind, such as address arithmetic: a kernel that is busy with those moves no bytes and
computes no FLOPs at a ceiling, and is bound by neither.
"""

from __future__ import annotations

from profiling.results.environment import Ceilings
from profiling.results.record import KernelBound

#: Shares (0 to 1) of a measured ceiling and of a peak from which it bounds a kernel.
NEAR_CEILING, NEAR_PEAK = 0.7, 0.6


def bound_by_trace(
    gbps: float | None, tflops: float | None, mean_us: float | None, ceilings: Ceilings | None
) -> KernelBound | None:
    """Return what bounds a kernel with these rates and this mean duration; None where neither rate is known."""
    if ceilings is None or not mean_us or (gbps is None and tflops is None):
        return None
    memory, compute = ceilings.shares(gbps, tflops, mean_us)
    return _bound(memory, compute, NEAR_CEILING)


def bound_by_counters(
    dram: float | None, l2: float | None, tensor: float | None, fma: float | None
) -> KernelBound | None:
    """Return what bounds a kernel with these shares of the peak of DRAM, L2, tensor and FMA pipes; None without any."""
    if all(share is None for share in (dram, l2, tensor, fma)):
        return None
    return _bound(max(dram or 0.0, l2 or 0.0), max(tensor or 0.0, fma or 0.0), NEAR_PEAK)


def _bound(memory: float, compute: float, near: float) -> KernelBound:
    if max(memory, compute) < near:
        return "neither"
    return "compute" if compute > memory else "memory bandwidth"
