"""Slow calls: each cause is named only where it took half of the excess, and a call of usual length is not observed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiling.components.component import Place
from profiling.graphs import engine
from profiling.metrics import monitor
from profiling.metrics.latency import Latency
from profiling.metrics.metric import Subject
from profiling.metrics.monitor import CALLS_EVERY, CallMonitor
from profiling.results.measured import SlowFrames
from profiling.variants.variant import Step

CALLS, FAULT, EXCESS_MS = 300, 200, 30.0
#: Causes that a shared machine may add to any call.
MACHINE = {"run-queue wait", "CPU stolen by another virtual machine", "not attributed"}


def usual(call: int) -> float:
    return 5.0 + 0.01 * (call % 7)


class Counted:
    """Stands for what a monitor reads: milliseconds since its last reading, planted in single calls."""

    def __init__(self, planted: dict[int, dict[str, float]], clocks: dict[int, float]) -> None:
        self.planted, self.clocks, self.call, self.readings = planted, clocks, 0, 0

    def __call__(self, call: int, *, look: bool) -> dict[str, float]:
        assert (call, look) == (self.call - 1, True)
        self.readings += 1
        sums = {"sm_clock_mhz": self.clocks.get(self.call - 1, 1980.0)}
        for call in [call for call in self.planted if call < self.call]:
            for name, ms in self.planted.pop(call).items():
                sums[name] = sums.get(name, 0.0) + ms
        return sums


def explained(planted: dict[int, dict[str, float]], walls: list[float], others: Any = (None,), **clocks: float) -> Any:
    """Return what a monitor says of calls in which causes were planted, and how often it read in the last window.

    There is a window for each share of `others` on the GPU.
    """
    counted, size = Counted(planted, {FAULT: clocks.get("clock", 1980.0)}), len(walls) // len(others)
    with closing(CallMonitor(torch.device("cpu"))) as calls:
        calls.read = counted  # type: ignore[method-assign]
        for window, share in enumerate(others):
            counted.readings = 0
            calls.begin()
            for counted.call in range(window * size + 1, (window + 1) * size + 1):
                calls(walls[counted.call - 1])
            calls.end(share)
        return calls.slow_calls(walls, walls if clocks else ()), counted.readings


def late(excess_ms: float = EXCESS_MS) -> list[float]:
    return [usual(call) + excess_ms * (call == FAULT) for call in range(CALLS)]


def test_a_cause_is_named_only_where_it_took_half_of_the_excess_of_a_call() -> None:
    name, cause = "run_queue_ms", "run-queue wait"
    slow, readings = explained({FAULT: {name: 16.0}}, late())
    assert (slow.count, slow.causes) == (1, {cause: 1})
    assert slow.frames[0].frame == FAULT
    assert slow.cause_ms == pytest.approx({cause: 16.0, "not attributed": EXCESS_MS - 16.0}, abs=0.1)
    assert readings == 2 + CALLS // CALLS_EVERY, "calls of usual length are read once in a while"
    assert explained({FAULT: {name: 14.0}}, late())[0].causes == {"not attributed": 1}, "too short to explain 30 ms"
    every = {call: {name: 20.0} for call in range(CALLS)}
    assert explained(every, late())[0].causes == {"not attributed": 1}, "what all calls take makes none slow"


@pytest.mark.parametrize(("clock", "cause"), [(900.0, "lower SM clock"), (1800.0, "not attributed")])
def test_a_lower_clock_explains_what_it_can_of_a_call(clock: float, cause: str) -> None:
    """At 900 of 1980 MHz the clock explains 55% of the work of the device."""
    assert explained({}, late(5.0), clock=clock)[0].causes == {cause: 1}


@pytest.mark.parametrize(("share", "cause"), [(0.9, "another process on the GPU"), (0.3, "not attributed")])
def test_other_processes_explain_the_calls_of_the_windows_in_which_they_ran(share: float, cause: str) -> None:
    """The driver is asked after each window: cells that wait for their turn must not run a thread."""
    slow, _ = explained({}, late(), others=(0.0, 0.0, share))
    assert (slow.count, slow.causes) == (1, {cause: 1})


def test_what_calls_before_the_slow_one_took_is_not_its_cause() -> None:
    """Thirty calls each waited 0.5 ms, which made each 0.5 ms longer; the slow one waited for nothing."""
    walls = [usual(call) + 0.5 * (FAULT - 30 <= call < FAULT) + 20.0 * (call == FAULT) for call in range(CALLS)]
    waits = {call: {"run_queue_ms": 0.5} for call in range(FAULT - 30, FAULT)}
    slow, _ = explained(waits, walls)
    assert slow.causes == {"not attributed": 1}


def test_the_time_between_two_windows_belongs_to_no_call() -> None:
    with closing(CallMonitor(torch.device("cpu"))) as calls:
        for numbers in (range(50), range(50, 60)):
            calls.begin()
            for number in numbers:
                calls(5.0 + 30.0 * (number == 50))
            calls.end(None)
            heap = [Heap() for _ in range(200_000)]
            gc.collect()
            assert heap
        slow = calls.slow_calls([5.0 + 30.0 * (number == 50) for number in range(60)])
    assert slow.count == 1
    assert "garbage collection" not in slow.causes


class Heap:
    def __init__(self) -> None:
        self.me = self


def timed(faulty: Callable[[], object], device: str = "cpu") -> SlowFrames:
    """Return the slow calls of a step that calls `faulty` once."""
    calls = 0

    def run() -> None:
        nonlocal calls
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:
            pass
        calls += 1
        if calls == 700:
            faulty()

    component: Any = SimpleNamespace(device=torch.device(device), frames_per_call=1, place=Place(), reset=lambda: None)
    limits = {"min_iterations": 800, "max_iterations": 800, "warmup_max_iterations": 100, "interval": 1e-9}
    metric = Latency(**limits, warmup_max_seconds=1.0)
    subject = Subject(component, Step(run), None, None, 0)
    slow = metric.measure(subject).sections["slow_calls"]
    assert isinstance(slow, SlowFrames)
    return slow


def named(slow: SlowFrames) -> set[str]:
    return {cause for call in slow.frames for cause in call.causes} - MACHINE


def test_a_collection_inside_a_timed_call() -> None:
    heap = [Heap() for _ in range(300_000)]
    assert named(timed(gc.collect)) == {"garbage collection"}
    assert len(heap) == 300_000


def test_a_recompile_inside_a_timed_call_by_its_id() -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
    compiled(torch.ones(4))
    (cause,) = named(timed(lambda: compiled(torch.ones(5))))
    assert cause.startswith("recompile ")
    assert cause.endswith("/1")


@pytest.mark.parametrize("cause", ["CUDA graph captured", "CPU stolen by another virtual machine", "run-queue wait"])
def test_what_is_counted_inside_a_timed_call(cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A call sleeps for 80 ms, of which a counter says that 80% went to one cause."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("1 1 1")
    stat, seconds, waits = tmp_path / "stat", [0.0], list[float]()
    stat.write_text("cpu 1 1 1 1 1 1 1 100")
    monkeypatch.setattr(monitor, "PROC", tmp_path)
    monkeypatch.setattr(monitor.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(engine, "capture_seconds", lambda: seconds[0])
    monkeypatch.setattr(monitor.ThreadWaits, "wait_ms", lambda self: waits.pop() if waits else 0.0)

    def slow_call() -> None:
        start = time.perf_counter()
        time.sleep(0.08)
        took_ms = 0.8e3 * (time.perf_counter() - start)
        if cause == "run-queue wait":
            waits.append(took_ms)
        elif cause == "CUDA graph captured":
            seconds[0] += took_ms / 1e3
        else:
            stat.write_text(f"cpu 1 1 1 1 1 1 1 {100 + round(took_ms / 10)}")

    planted = [call for call in timed(slow_call).frames if call.ms >= 80]  # the machine may make others as long
    assert cause in {name for call in planted for name in call.causes}
