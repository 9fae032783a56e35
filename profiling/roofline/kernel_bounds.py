"""What bounds a single kernel: by the trace with the measured ceilings, and by hardware counters.

By counters, a resource bounds a kernel that has it at `NEAR_PEAK` of its peak or more: DRAM (memory bandwidth), the
pipes that compute FLOPs (tensor or FMA: compute), or the L2 cache alone (L2 bandwidth). 60% is the limit below which
the rule of Nsight Compute's section Speed of Light (`SpeedOfLight.py`, latency_bound_threshold) reports latency issues.
By trace, the same threshold holds for a kernel's bytes and FLOPs: measured ceilings are `CEILING_OF_PEAK` of the peak,
so 60% of a peak are `NEAR_CEILING` of a ceiling.

The trace counts the bytes of an operator once, so its "memory bandwidth" means that no kernel moves these bytes much
faster. For few bytes, which a cache holds, the measured ceiling is the rate of L2. Counters also see what L2 carries
beyond these bytes: data read again, and unused parts of sectors. With L2 near its peak and DRAM far below, a kernel
that reads each byte once would be faster. The trace correctly says "neither" of it, but cannot tell that L2 is the
reason: the bytes of an operator over the measured rate of L2 take 0.11 to 0.49 of the time of kernels that L2 bounds
on an H200, and 0.01 to 0.39 of others (docs/results/h200/counters). A kernel busy with other instructions, such as
address arithmetic, is bound by neither.
"""

from __future__ import annotations

from profiling.results.environment import Ceilings
from profiling.results.record import KernelBound

#: Share of its peak (0 to 1) from which a resource bounds a kernel.
NEAR_PEAK = 0.6
#: Measured ceilings over the peaks of the data sheet. H200: read 0.91, copy 0.88, product 0.80, convolution 0.75.
CEILING_OF_PEAK = 0.85
#: The same threshold as a share of a measured ceiling: 0.71.
NEAR_CEILING = NEAR_PEAK / CEILING_OF_PEAK


def bound_by_trace(
    gbps: float | None,
    tflops: float | None,
    mean_us: float | None,
    ceilings: Ceilings | None,
    dtype: str | None = None,
) -> KernelBound | None:
    """Return what bounds a kernel with these rates and this mean duration; None where neither rate is known.

    `dtype` is that of its operands, None where it is not known.
    """
    if ceilings is None or not mean_us or (gbps is None and tflops is None):
        return None
    memory, compute = ceilings.shares(gbps, tflops, mean_us, dtype)
    if max(memory, compute) < NEAR_CEILING:
        return "neither"
    return "compute" if compute > memory else "memory bandwidth"


def bound_by_counters(
    dram: float | None, l2: float | None, tensor: float | None, fma: float | None
) -> KernelBound | None:
    """Return what bounds a kernel with these shares of the peak of DRAM, L2, tensor and FMA pipes; None without any."""
    if all(share is None for share in (dram, l2, tensor, fma)):
        return None
    memory, cache, compute = dram or 0.0, l2 or 0.0, max(tensor or 0.0, fma or 0.0)
    if max(memory, cache, compute) < NEAR_PEAK:
        return "neither"
    if compute > max(memory, cache):
        return "compute"
    return "memory bandwidth" if memory >= NEAR_PEAK else "L2 bandwidth"
