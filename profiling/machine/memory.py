"""Bytes of each kind of memory in use now, from the caching allocator, the driver and the operating system."""

from __future__ import annotations

from contextlib import suppress

import psutil
import torch


def held(device: torch.device) -> dict[str, int]:
    """Return the bytes of each kind in use now; kinds that this device cannot report are absent.

    The `max_` kinds are peaks since they were last reset.
    """
    kinds: dict[str, int] = {}
    with suppress(psutil.Error, OSError):  # a container without /proc
        kinds["host_rss"] = psutil.Process().memory_info().rss
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        kinds |= {
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "max_allocated": torch.cuda.max_memory_allocated(device),
            "max_reserved": torch.cuda.max_memory_reserved(device),
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


def graph_pools() -> tuple[int, int]:
    """Return (bytes of all private pools of CUDA graphs, bytes of those pools that no live tensor uses)."""
    private = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
    pool = sum(segment["total_size"] for segment in private)
    return pool, pool - sum(segment["allocated_size"] for segment in private)


def pool_bytes(pool: tuple[int, int]) -> int:
    """Return the bytes on the device that the private pool with this id has reserved."""
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool))
