"""Events of a trace made by hand; times in microseconds."""

from typing import Any

from profiling.trace.events import GpuWork, HostCall


def work(begin: float, end: float, *, correlation: int = 0, name: str = "kernel", stream: int = 7) -> dict[str, Any]:
    arguments = {"correlation": correlation, "stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, **_times(begin, end), "args": arguments}


def copy(begin: float, end: float, *, correlation: int, way: str, size: int) -> dict[str, Any]:
    return {
        **work(begin, end, correlation=correlation, name=f"Memcpy {way}"),
        "cat": "gpu_memcpy",
        "args": {"correlation": correlation, "bytes": size},
    }


def host(begin: float, end: float, *, correlation: int = 0, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return {**_on_host("cuda_runtime", name, begin, end), "args": {"correlation": correlation}}


def span(begin: float, end: float, name: str) -> dict[str, Any]:
    return _on_host("user_annotation", name, begin, end)


def operator(begin: float, end: float, name: str, number: int) -> dict[str, Any]:
    return {**_on_host("cpu_op", name, begin, end), "args": {"External id": number}}


def piece(begin: float, end: float, correlation: int) -> GpuWork:
    return GpuWork("kernel", "kernel", begin, end, correlation, None, None)


def launch(begin: float, end: float, correlation: int) -> HostCall:
    return HostCall("cudaLaunchKernel", begin, end, (1, 1), correlation)


def _on_host(kind: str, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, **_times(begin, end), "args": {}}


def _times(begin: float, end: float) -> dict[str, float]:
    return {"ts": begin, "dur": end - begin}
