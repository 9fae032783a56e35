"""A GPU whose power and whose energy counter are known: step, lag, idle and busy watts, on a clock of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import floor, inf

import numpy as np
import pynvml
import pytest
import torch
from fixed_component import fixed_component

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
        self._edges: energy.Edges | None = None  # that a thread would watch
        self._due = inf
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
        monkeypatch.setattr(energy, "perf_counter", self.now)
        monkeypatch.setattr(energy, "sleep", self.sleep)
        monkeypatch.setattr(energy.EnergyCounter, "watched", lambda counter, edges: self.watched(edges))

    @contextmanager
    def watched(self, edges: energy.Edges) -> Iterator[None]:
        """Poll when a thread would, while this process spends time; what a reading takes is time that passes, too."""
        self._edges, self._due = edges, self.seconds
        try:
            yield
        finally:
            self._edges, self._due = None, inf
        if edges.failure is not None:
            raise edges.failure

    def call(self, seconds: float, watts: float | None = None) -> Callable[[], None]:
        """Return a call of that length."""
        return lambda: self.work(seconds, watts)

    def _spend(self, seconds: float, watts: float) -> None:
        end = self.seconds + seconds
        while self._edges is not None and self._due < end:
            edges, self._edges = self._edges, None  # what it reads spends time itself
            self._pass(max(0.0, self._due - self.seconds), watts)
            try:
                self._due = max(edges.poll(), self.seconds)
            except energy.NoEnergy as error:
                edges.failure, self._due = error, inf
            self._edges = edges
        self._pass(max(0.0, end - self.seconds), watts)

    def _pass(self, seconds: float, watts: float) -> None:
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
    component = replace(
        fixed_component(torch.nn.Identity(), input=torch.ones(1)), device=device, frames_per_call=frames
    )
    return Subject(component, Step(lambda: None), None, None, 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Return the GPU on which the metric makes calls of 10 ms."""
    made = FakeGpu()
    made.install(monkeypatch)
    monkeypatch.setattr(metric, "synchronize", lambda device: made.work(0.01))
    monkeypatch.setattr(nvml, "share_of_others", lambda device, seconds: None)
    return made


def measured(**options: int) -> Energy:
    """Return what the metric measures of calls that make four frames."""
    return metric.Energy(**options).measure(subject_on(DEVICE, frames=4)).sections["energy"]
