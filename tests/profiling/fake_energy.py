"""A GPU whose power and whose energy counter are known: step, lag, idle and busy watts, on a clock of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import floor

import numpy as np
import pynvml
import pytest
import torch

from profiling.components.component import Component
from profiling.machine import energy, nvml
from profiling.metrics import energy as metric
from profiling.metrics.metric import Subject
from profiling.results.energy import Energy
from profiling.variants.variant import Step

DEVICE = torch.device("cuda", 0)


class FakeGpu:
    """Takes `idle_w`, and `busy_w` while `work` runs; its counter shows every `step_s` what it was `lag_s` before."""

    def __init__(
        self, *, step_s: float = 0.1, idle_w: float = 120.0, busy_w: float = 600.0, lag_s: float = 0.03
    ) -> None:
        self.step_s, self.idle_w, self.busy_w, self.lag_s = step_s, idle_w, busy_w, lag_s
        self.seconds, self.joules, self.reads = 1000.0, 5e6, 0
        self.use = 0.0  # by others
        self.fault: Callable[[int], int] | None = None  # replaces what the counter shows
        self._times, self._joules = [0.0, self.seconds], [self.joules - 1000 * idle_w, self.joules]

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self._spend(seconds, self.idle_w)

    def work(self, seconds: float, watts: float | None = None) -> None:
        self._spend(seconds, self.busy_w if watts is None else watts)

    def millijoules(self, _device: torch.device = DEVICE) -> int:
        self.reads += 1
        shown = floor((self.seconds - self.lag_s) / self.step_s) * self.step_s
        place = bisect_right(self._times, shown)
        near = slice(place - 1, place + 1)
        value = int(1e3 * np.interp(shown, self._times[near], self._joules[near]))
        return value if self.fault is None else self.fault(value)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this the GPU and the clock of the code under test."""
        monkeypatch.setattr(nvml, "energy_mj", self.millijoules)
        monkeypatch.setattr(nvml, "is_mig", lambda device: False)
        monkeypatch.setattr(nvml, "utilisation", lambda device: self.use)
        monkeypatch.setattr(energy.EnergyCounter, "now", lambda counter: self.now())
        monkeypatch.setattr(energy.EnergyCounter, "sleep", lambda counter, seconds: self.sleep(seconds))

    def call(self, seconds: float, watts: float | None = None, polls: int = 20) -> Callable[[Callable[[], None]], None]:
        """Return a call of that length, which polls as often as that meanwhile."""

        def call(poll: Callable[[], None]) -> None:
            for _ in range(polls):
                self.work(seconds / polls, watts)
                poll()

        return call

    def _spend(self, seconds: float, watts: float) -> None:
        self.seconds += seconds
        self.joules += seconds * watts
        self._times.append(self.seconds)
        self._joules.append(self.joules)


def fails(code: int) -> Callable[[int], int]:
    """Return a fault: the driver answers with this error."""

    def fault(_value: int) -> int:
        raise pynvml.NVMLError(code)

    return fault


def subject_on(device: torch.device, frames: int = 1) -> Subject:
    """Return a subject whose call does nothing."""
    component = Component(
        name="net",
        module=torch.nn.Identity(),
        inputs={},
        make_inputs=lambda generator: {},
        device=device,
        dtype=torch.float32,
        frames_per_call=frames,
        weights="random",
    )
    return Subject(component, Step(lambda: None), None, None, 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Return the GPU on which the metric makes calls of 10 ms."""
    made = FakeGpu()
    made.install(monkeypatch)
    monkeypatch.setattr(metric, "synchronize", lambda device: None)
    monkeypatch.setattr(metric, "waited_for", lambda run, device: made.call(0.01))
    monkeypatch.setattr(nvml, "share_beside_run", lambda device, seconds: None)
    return made


def measured(**options: int) -> Energy:
    """Return what the metric measures of calls that make four frames."""
    return metric.Energy(**options).measure(subject_on(DEVICE, frames=4)).sections["energy"]
