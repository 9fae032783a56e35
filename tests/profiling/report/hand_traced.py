"""What a trace says about a call, by hand: two blocks built alike, a head, a wait and a copy; everything adds up."""

from typing import Any

CEILINGS = {
    **{"dtype": "bfloat16", "copy_bytes_per_s": 4.0e12, "read_bytes_per_s": 4.4e12, "matmul_flops_per_s": 8.0e14},
    **{"bandwidth": [[1024, 4.4e12]], "launch_us": 4.6, "seconds": 1.0},
}
LINE = "models/net.py:12"
KERNELS = (
    # name, class, milliseconds, how many a call, GB/s, TFLOP/s
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "gemm", 0.8, 8.0, 3300.0, 6.6),
    ("flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64>>", "attention", 0.4, 2.0, None, 200.0),
    ("triton_poi_fused_add_mul_0", "pointwise", 0.2, 4.0, 4840.0, None),
    ("Memcpy DtoH (Device -> Pageable)", "copy", 0.1, 1.0, 22.0, None),
)


def kernel(
    name: str, kind: str, ms: float, count: float, gbps: float | None, tflops: float | None, *, whole: float = 1.5
) -> dict[str, Any]:
    rates = {key: value for key, value in (("gbps", gbps), ("tflops", tflops)) if value is not None}
    mean = 1e3 * ms / count
    return {"name": name, "class": kind, "ms": ms, "share": ms / whole, "count": count, "mean_us": mean, **rates}


def module(path: str, ms: float, self_ms: float, count: float, *, whole: float = 1.5) -> dict[str, Any]:
    return {"path": path, "ms": ms, "share": ms / whole, "count": count, "self_ms": self_ms}


def trace(**changes: Any) -> dict[str, Any]:
    """Make the section of a call of 1.5 ms of kernels, 0.02 of them side by side with others, in a span of 1.6 ms."""
    section: dict[str, Any] = {
        **{"calls": 5, "span_ms": 1.6, "busy_ms": 1.48, "kernel_ms": 1.5, "count": 15.0},
        "idle": {"host_ms": 0.02, "between_ms": 0.1},
        "classes": [{"class": kind, "ms": ms, "share": ms / 1.5, "count": count} for _, kind, ms, count, *_ in KERNELS],
        "kernels": [kernel(*each) for each in KERNELS],
        "waits": [{"what": "cudaStreamSynchronize", "count": 1.0, "ms": 0.3, "line": LINE, "code": "x.item()"}],
        "copies": [{"what": "device to pageable host", "count": 1.0, "ms": 0.1, "bytes": 2**19, "line": LINE}],
        "modules": [
            module("", 1.45, 0.05, 14.0),
            module("blocks.0", 0.5, 0.1, 5.0),
            module("blocks.0.attn", 0.4, 0.4, 4.0),
            module("blocks.1", 0.6, 0.2, 5.0),
            module("blocks.1.attn", 0.4, 0.4, 4.0),
            module("head", 0.3, 0.3, 3.0),
        ],
        "unattributed_ms": 0.05,
        "modules_from": "the step before capture",
    }
    return section | changes


def many(kernels: int, modules: int) -> dict[str, Any]:
    """Make a section with so many kernels and submodules of a microsecond each, that none of them is like another."""
    names = [f"void at::native::kernel_{i:04d}<{'very_long_name_' * 9}>" for i in range(kernels)]
    ms = 1e-3 * kernels
    own = ms / modules
    return trace(
        kernels=[kernel(name, "pointwise", 1e-3, 1.0, 100.0 + i, None, whole=ms) for i, name in enumerate(names)],
        classes=[{"class": "pointwise", "ms": ms, "share": 1.0, "count": float(kernels)}],
        modules=[
            module("", ms, 0.0, kernels, whole=ms),
            *(module(f"layers_{i}", own, own, 1.0, whole=ms) for i in range(modules)),
        ],
        idle={"host_ms": 0.0, "between_ms": 0.0},
        unattributed_ms=0.0,
        **{"span_ms": ms, "busy_ms": ms, "kernel_ms": ms, "count": float(kernels)},
    )
