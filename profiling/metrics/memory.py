"""Memory by kind and phase, in bytes.

Kinds: `allocated` and `reserved` are those of PyTorch's caching allocator, `device_used` is the memory in use by all
processes on the device, `host_rss` the resident set size of this process. On a CPU only `host_rss` can be measured.

A replayed CUDA graph works in a private pool whose blocks the allocator counts as free, although nothing else can use
them. `peak_allocated` is the allocator's number, which leaves out the activations of a captured network; `peak_held`
adds the free blocks of the pools. What a process held before the cell began does not count as allocated, nor its pools:
with isolation=none, that are other cells and the caller's modules.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path

import torch

from profiling.errors import check_whole
from profiling.machine.memory import graph_pools, held
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.results.measured import Memory as MemorySection
from profiling.results.measured import MemoryKinds


@dataclass(frozen=True, kw_only=True)
class Memory(Metric):
    """Record each kind at each phase, and the peak over `iterations` calls after warm-up, in a separate pass.

    Raises:
        InputError: a number of iterations that is out of range.

    """

    iterations: int = 5
    _before: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # before the cell began
    _phases: dict[str, MemoryKinds] = field(default_factory=dict, init=False, repr=False)
    _peaks: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the option."""
        check_whole("iterations", self.iterations)

    def on_phase(self, phase: str, device: torch.device) -> None:
        """Record the bytes in use at `phase`; the peak of preparation is the one between `inputs` and `prepared`."""
        if device.type == "cuda" and phase == "start":
            gc.collect()  # what earlier cells of this process have left must not be freed later
            pool, idle = graph_pools() if torch.cuda.is_initialized() else (0, 0)
            self._before.update(allocated=torch.cuda.memory_allocated(device), pool=pool, idle=idle)
        self._phases[phase] = self._held(device)
        if device.type == "cuda":
            if phase == "prepared":
                self._peaks["prepare_peak_allocated"] = self._peak_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)

    def measure(self, subject: Subject) -> Measured:
        """Return `memory`: the phases and the peaks."""
        device, peaks = subject.component.device, self._peaks
        resettable = reset_peak_host_rss()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(self.iterations):
            subject.step.call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            pool, idle = graph_pools()
            peaks["peak_allocated"] = self._peak_allocated(device)
            peaks["peak_held"] = peaks["peak_allocated"] + max(0, idle - self._before.get("idle", 0))
            peaks["graph_pool"] = max(0, pool - self._before.get("pool", 0))
        if resettable:
            peaks["peak_host_rss"] = peak_host_rss()
        self._phases["steady"] = self._held(device)
        return Measured({"memory": MemorySection(phases=self._phases, **peaks)})

    def _held(self, device: torch.device) -> MemoryKinds:
        kinds = held(device)
        if "allocated" in kinds:
            kinds["allocated"] = max(0, kinds["allocated"] - self._before.get("allocated", 0))
        return MemoryKinds(**kinds)

    def _peak_allocated(self, device: torch.device) -> int:
        return max(0, torch.cuda.max_memory_allocated(device) - self._before.get("allocated", 0))


def reset_peak_host_rss() -> bool:
    """Reset the peak of the resident set size; False where the kernel does not allow it (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_host_rss() -> int:
    """Return the peak resident set size since the last reset (VmHWM), in bytes."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
