"""A device with planted costs, on a clock that only calls advance: what a calibration must find is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from profiling.launch_overhead import sampling
from profiling.metrics import clocks


@dataclass
class FakeDevice:
    """Host and device timelines in microseconds; `depth` launches fit into the queue before the host waits."""

    depth: int = 1024
    interrupt_share: float = 0.0
    host: float = 0.0
    free_at: float = 0.0
    pending: list[float] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def launch(self, host_us: float, gpu_us: float) -> None:
        self.host += host_us
        if self.rng.random() < self.interrupt_share:
            self.host += 300.0
        self.pending = [end for end in self.pending if end > self.host]
        if len(self.pending) >= self.depth:
            self.host = self.pending[-self.depth]
        self.free_at = max(self.free_at, self.host) + gpu_us
        self.pending.append(self.free_at)

    def sleep(self, cycles: int) -> None:
        self.free_at = max(self.free_at, self.host) + cycles / 2000  # 2 GHz

    def synchronize(self) -> None:
        self.host = max(self.host, self.free_at)

    def install(self, monkeypatch: Any) -> None:
        """Replace torch.cuda and the host's clock."""
        device = self

        class Event:
            at = 0.0

            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = max(device.free_at, device.host)

            def query(self) -> bool:
                return device.host >= self.at

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) / 1e3

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(clocks, "perf_counter_ns", lambda: self.host * 1e3)


@dataclass(frozen=True)
class FakeGraph:
    """A graph of `nodes` whose replay takes the host 8 + 0.01 µs a node and the device 5 + 1.2 µs a node."""

    device: FakeDevice
    nodes: int

    def replay(self) -> None:
        self.device.launch(8 + 0.01 * self.nodes, 5 + 1.2 * self.nodes)


def plant_graphs(device: FakeDevice, monkeypatch: Any) -> None:
    monkeypatch.setattr(sampling, "_capture", lambda operator, count: FakeGraph(device, count))
