"""What bounds a kernel, by its rates and by its counters."""

import pytest
from fake_ncu import sample
from hand_made_ceilings import H200, ceilings_of
from msgspec.structs import replace

from profiling.results.explained import Kernel
from profiling.roofline.rules import bound_by_counters, bound_by_trace
from profiling.trace.analysis import kernels_by_name
from profiling.trace.attribution import KernelAttribution
from profiling.trace.events import GpuWork
from profiling.trace.findings import kernel_findings
from profiling.trace.nsight_compute import read_launches

CEILINGS = ceilings_of(4e12, bandwidth=((1_000_000, 8e12), (1_000_000_000, 4e12)), matmul_flops_per_s=8e14)


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
    assert bound_by_trace(kernel(gbps, tflops, mean_us), CEILINGS) == bound
    assert bound_by_trace(kernel(gbps, tflops, mean_us), None) is None


def kernel(gbps, tflops, mean_us):
    return Kernel(name="k", kind="gemm", ms=1.0, mean_us=mean_us, gbps=gbps, tflops=tflops)


@pytest.mark.parametrize(
    ("dram", "l2", "tensor", "fma", "bound"),
    [
        (0.85, 0.4, 0.2, 0.0, "memory bandwidth"),
        (0.25, 0.83, 0.0, 0.2, "L2 bandwidth"),  # reads its 134 MB more than once
        (0.62, 0.73, 0.0, 0.3, "memory bandwidth"),  # all that passes DRAM passes L2
        (0.3, 0.7, 0.65, 0.0, "L2 bandwidth"),
        (0.3, 0.5, 0.9, 0.1, "compute"),
        (0.3, 0.5, 0.0, 0.7, "compute"),
        (0.59, 0.2, 0.1, 0.1, "neither"),
        (None, None, 0.9, None, "compute"),
        (None, None, None, None, None),
    ],
)
def test_by_counters(dram, l2, tensor, fma, bound):
    assert bound_by_counters(dram, l2, tensor, fma) == bound


def launches(*sizes):
    """Return launches of one kernel, given as (number, bytes, us)."""
    return [
        KernelAttribution(GpuWork("elementwise", "kernel", 0.0, us, 1, 1, None), "pointwise", bytes=size)
        for number, size, us in sizes
        for _ in range(number)
    ]


def test_a_kernel_has_one_ceiling():
    """That of the launches that take the time: for its row, its bound, and the finding on it."""
    (row,) = kernels_by_name([launches((3, 1_000_000, 0.25))])
    assert CEILINGS.shares(row) == (0.5, 0.0), "half of a cache's rate"
    (row,) = kernels_by_name([launches((3, 100_000_000, 100))])
    (found,) = kernel_findings([launches((3, 100_000_000, 100))], CEILINGS)
    assert CEILINGS.shares(row) == (found.of_ceiling, 0.0)
    # 20 launches of 1 MB and one of 4 GB, all at 4 TB/s: the mean has 191 MB, which a cache might pass at 8.
    (row,) = kernels_by_name([launches((20, 1_000_000, 0.25), (1, 4_000_000_000, 1000))])
    ceilings = replace(CEILINGS, bandwidth=((100_000_000, 8e12), (4_000_000_000, 4e12)))
    assert ceilings.shares(row)[0] == pytest.approx(1.0)
    assert bound_by_trace(row, ceilings) == "memory bandwidth"


#: Bytes of the picture of 256 channels, of 128 x 128 in bfloat16; FLOPs of its 3 x 3 convolution.
PICTURE, CONV_FLOPS = 2 * 256 * 128 * 128, 2 * 256 * 256 * 9 * 128 * 128


def test_counters_and_bytes_name_the_same_bound_on_an_h200():
    counters = {"dram": "dram__throughput", "l2": "lts__throughput"}
    metrics = {name: f"{counter}.avg.pct_of_peak_sustained_elapsed" for name, counter in counters.items()}
    metrics["tensor"] = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    seen = read_launches(sample("eager"), {**metrics, "seconds": "gpu__time_duration.sum"})
    for row, touched, flops, bound in (
        (0, PICTURE, 0, "neither"),  # group norm reduction of 32 blocks
        (2, 2 * PICTURE, 0, "neither"),  # group norm apply, busy with addresses (SM at 59%)
        (3, 2 * PICTURE, 0, "neither"),  # SiLU of 6.6 us
        (6, 2 * PICTURE, CONV_FLOPS, "compute"),  # cuDNN implicit GEMM
        (12, 2 * PICTURE, 0, "neither"),  # sum of 512 blocks
    ):
        launch, seconds = seen[row], seen[row].seconds
        assert bound_by_counters(launch.dram, launch.l2, launch.tensor, None) == bound, row
        traced = kernel(touched / seconds / 1e9, flops / seconds / 1e12, 1e6 * seconds)
        assert bound_by_trace(traced, H200) == bound, row
    gemm = seen[9]  # of 17 rows, which reads 34 MB: 2.9 of 4.3 TB/s measured
    assert gemm.dram == pytest.approx(0.6, abs=0.001)
    assert bound_by_counters(gemm.dram, gemm.l2, gemm.tensor, None) == "memory bandwidth"
    assert 2 * 4096 * 4096 / gemm.seconds / H200.read_bytes_per_s == pytest.approx(0.66, abs=0.01)
