"""Memory by kind and phase, in bytes; one number called "memory" does not exist here.

Kinds: `allocated` and `reserved` by PyTorch's caching allocator, `device_used` on the whole device by anyone,
`host_rss` of this process. The allocator of a CPU cannot be asked, so there only `host_rss` is measured.

A replayed CUDA graph works in a private pool whose blocks the allocator counts as free, although nothing else can have
them: without those, a captured network would seem to need no memory for its activations. So the peak is given twice,
`peak_allocated` as the allocator counts it and `peak_held` with the pools' free blocks added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from profiling.errors import InputError
from profiling.machine.memory import graph_pools, held
from profiling.metrics.metric import Measured, Metric, Subject


@dataclass(frozen=True, kw_only=True)
class Memory(Metric):
    """Note each kind at each phase, then the peak of `iterations` steady calls in a pass of their own.

    Raises:
        InputError: fewer than one iteration.

    """

    iterations: int = 5
    _phases: dict[str, dict[str, int]] = field(default_factory=dict, init=False, repr=False)
    _prepare_peak: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a pass without calls."""
        if self.iterations < 1:
            raise InputError(f"iterations={self.iterations}: the memory pass needs at least 1 call.")

    def on_phase(self, phase: str, device: torch.device) -> None:
        """Note what is held now; the peak of preparing is that between `inputs` and `prepared`."""
        self._phases[phase] = held(device)
        if device.type == "cuda":
            if phase == "prepared":
                self._prepare_peak["prepare_peak_allocated"] = torch.cuda.max_memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)

    def measure(self, subject: Subject) -> Measured:
        """Return the phases and the peaks."""
        device = subject.component.device
        section: dict[str, Any] = {}
        resettable = reset_peak_host_rss()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(self.iterations):
            subject.step.run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            pool, idle = graph_pools()
            section["peak_allocated"] = torch.cuda.max_memory_allocated(device)
            section["peak_held"] = section["peak_allocated"] + idle
            section["peak_reserved"] = torch.cuda.max_memory_reserved(device)
            section["graph_pool"] = pool
        if resettable:
            section["peak_host_rss"] = peak_host_rss()
        self._phases["steady"] = held(device)
        return Measured({"memory": {"phases": self._phases, **section, **self._prepare_peak}})


def reset_peak_host_rss() -> bool:
    """Start a new peak of the resident set size; False where the kernel does not allow it (see proc(5), clear_refs)."""
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
