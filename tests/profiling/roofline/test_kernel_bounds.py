"""What bounds a kernel, by its rates and by its counters."""

import pytest

from profiling.results.environment import Ceilings
from profiling.roofline.kernel_bounds import bound_by_counters, bound_by_trace

CEILINGS = Ceilings(
    dtype="bfloat16",
    copy_bytes_per_s=4e12,
    read_bytes_per_s=4e12,
    bandwidth=((1_000_000, 8e12), (1_000_000_000, 4e12)),
    matmul_flops_per_s=8e14,
    launch_us=4.0,
    seconds=1.0,
)


@pytest.mark.parametrize(
    ("gbps", "tflops", "mean_us", "bound"),
    [
        (3000.0, 10.0, 1000.0, "memory bandwidth"),  # 3 GB at 75% of the bandwidth of memory
        (3000.0, None, 1.0, "neither"),  # 3 MB: 38% of the bandwidth of a cache
        (500.0, 600.0, 100.0, "compute"),
        (500.0, 100.0, 1000.0, "neither"),
        (None, 700.0, 10.0, "compute"),
        (None, None, 10.0, None),
        (3000.0, None, None, None),
    ],
)
def test_by_trace(gbps, tflops, mean_us, bound):
    assert bound_by_trace(gbps, tflops, mean_us, CEILINGS) == bound
    assert bound_by_trace(gbps, tflops, mean_us, None) is None


@pytest.mark.parametrize(
    ("dram", "l2", "sm", "bound"),
    [
        (0.85, 0.4, 0.2, "memory bandwidth"),
        (0.1, 0.7, 0.2, "memory bandwidth"),  # what a cache delivers is bandwidth too
        (0.3, 0.5, 0.9, "compute"),
        (0.59, 0.2, 0.1, "neither"),
        (None, None, 0.9, "compute"),
        (None, None, None, None),
    ],
)
def test_by_counters(dram, l2, sm, bound):
    assert bound_by_counters(dram, l2, sm) == bound
