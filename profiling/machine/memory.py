"""Bytes of each kind of memory in use now, from the caching allocator, the driver and the operating system."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from statistics import median
from time import perf_counter

import psutil
import torch

#: Bytes of the allocations that `malloc_cost` times: a small and a large segment of torch's allocator.
_SEGMENTS = (2 * 2**20, 64 * 2**20)
_REPEATS = 3
#: Estimate of what a process holds on a CUDA device beside its tensors, in bytes.
CONTEXT_BYTES = 2**30


def held(device: torch.device) -> dict[str, int]:
    """Return the bytes of each kind in use now; kinds that this device cannot report are absent."""
    kinds: dict[str, int] = {}
    with suppress(psutil.Error, OSError):  # a container without /proc
        kinds["host_rss"] = psutil.Process().memory_info().rss
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        kinds |= {
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "device_used": total - free,
        }
    return kinds


def free_bytes(device: torch.device) -> float:
    """Return the bytes that are free on the device, of the host for a CPU; infinite where that is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return psutil.virtual_memory().available
    except OSError:  # a container without /proc
        return float("inf")


@cache
def malloc_cost(device: torch.device) -> tuple[float, float] | None:
    """Return the cost of a cudaMalloc as (milliseconds, milliseconds a byte); None where it cannot be measured.

    The driver allocates and frees up to 64 MiB, apart from torch's allocator; freeing waits for the device.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        torch.cuda.synchronize(device)  # makes the device's context the current one of this thread
        times = [median(_timed_malloc(driver, size) for _ in range(_REPEATS)) for size in _SEGMENTS]
    except (OSError, AttributeError, RuntimeError):
        return None
    per_byte = max(0.0, (times[1] - times[0]) / (_SEGMENTS[1] - _SEGMENTS[0]))
    return max(0.0, times[0] - per_byte * _SEGMENTS[0]), per_byte


def _timed_malloc(driver: ctypes.CDLL, size: int) -> float:
    pointer, start = ctypes.c_uint64(), perf_counter()
    status = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
    milliseconds = 1e3 * (perf_counter() - start)
    if status != 0:
        raise RuntimeError(f"cuMemAlloc returned {status}")
    driver.cuMemFree_v2(pointer)
    return milliseconds


def used_and_free(device: torch.device) -> tuple[dict[str, int], dict[str, int]]:
    """Return (peak bytes of this process, bytes that are free for any process), each by kind: device, host.

    A kind that cannot be measured is absent from both.
    """
    used, free = {}, {}
    if device.type == "cuda":
        # What the allocator keeps, beside which the driver holds the context, the kernels' code and workspaces.
        used["device"] = torch.cuda.max_memory_reserved(device) + CONTEXT_BYTES
        free["device"] = int(free_bytes(device))
    with suppress(psutil.Error, OSError):
        used["host"] = psutil.Process().memory_info().rss
        free["host"] = int(free_bytes(torch.device("cpu")))
    return used, free


def held_before(device: torch.device) -> dict[str, int]:
    """Return the bytes that this process holds already, by the kinds of `used_and_free`; peaks begin anew."""
    before = {}
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before["device"] = torch.cuda.memory_reserved(device) + CONTEXT_BYTES
    with suppress(psutil.Error, OSError):
        before["host"] = psutil.Process().memory_info().rss
    return before


def graph_pools() -> tuple[int, int]:
    """Return (bytes of all private pools of CUDA graphs, bytes of those pools that no live tensor uses)."""
    private = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
    pool = sum(segment["total_size"] for segment in private)
    return pool, pool - sum(segment["allocated_size"] for segment in private)


def pool_bytes(pool: tuple[int, int]) -> int:
    """Return the bytes on the device that the private pool with this id has reserved."""
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool))
