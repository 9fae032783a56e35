"""Ceilings made by hand, and those of the GPU on which the stored traces and the samples of ncu were made."""

from typing import Any

from profiling.results.environment import Ceilings


def ceilings_of(rate: float, **known: Any) -> Ceilings:
    """Return ceilings of `rate` bytes/s and FLOP/s, whatever the size, but for what is `known`."""
    rates = dict.fromkeys(("copy_bytes_per_s", "read_bytes_per_s", "matmul_flops_per_s"), rate)
    given = {"dtype": "float32", **rates, "bandwidth": ((1000, rate),), "launch_us": 1.0, "seconds": 0.0, **known}
    return Ceilings(**given)


H200 = Ceilings(
    dtype="bfloat16",
    copy_bytes_per_s=4.248e12,
    read_bytes_per_s=4.313e12,
    bandwidth=(  # bytes of a buffer, and the best rate at which it is read or copied
        *((2**20, 1.598e12), (2**22, 3.723e12), (2**24, 6.040e12)),
        *((2**26, 4.022e12), (2**28, 4.216e12), (2**30, 4.313e12)),
    ),
    matmul_flops_per_s=8.022e14,
    conv_flops_per_s=7.532e14,
    launch_us=4.87,
    gap_us=0.227,
    replay_us=11.2,
    seconds=0.56,
)
