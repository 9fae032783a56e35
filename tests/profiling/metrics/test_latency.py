"""Conditions of a timed window are recorded; only another program inside it makes the samples invalid."""

import torch

from profiling.machine import nvml
from profiling.metrics import latency
from profiling.metrics.latency import TimedWindowMonitor
from profiling.metrics.sampling import Warmup
from profiling.trace.counters import CompileCounters

WARMUP = Warmup(iterations=10, seconds=1.0, settled=True)


def test_lower_clocks_are_a_condition_with_their_share(monkeypatch):
    readings = iter([set(), {"power cap"}, {"power cap"}, {"power cap", "thermal slowdown"}])
    clocks = iter([1980, 1500, 1700, 1600])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": 0})
    monkeypatch.setattr(nvml, "throttle_reasons", lambda device: frozenset(next(readings)))
    monkeypatch.setattr(nvml, "clock_mhz", lambda device, which: next(clocks))
    monitor = TimedWindowMonitor(torch.device("cuda", 0))
    monitor.read_clocks()
    monitor.read_clocks()
    conditions = monitor.conditions(WARMUP, cold=False)
    assert conditions.throttled_share == {"power cap": 0.75, "thermal slowdown": 0.25}
    assert (conditions.sm_clock_min_mhz, conditions.sm_clock_max_mhz) == (1500, 1980)
    assert monitor.invalid_reason() is None


def test_an_allocator_retry_and_a_compile_are_another_program(monkeypatch):
    retries = iter([3, 5])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": next(retries)})
    monkeypatch.setattr(nvml, "throttle_reasons", lambda device: frozenset())
    monkeypatch.setattr(nvml, "clock_mhz", lambda device, which: None)
    counters = iter([CompileCounters(), CompileCounters(compiles=2, recompiles=1)])
    monkeypatch.setattr(latency, "snapshot", lambda: next(counters))
    reason = TimedWindowMonitor(torch.device("cuda", 0)).invalid_reason()
    assert reason is not None
    assert reason.startswith("1 compile, 1 recompile; 2 allocator retries")


def test_waits_for_a_cpu_are_recorded_in_milliseconds(monkeypatch):
    monkeypatch.setattr(latency.RunQueueMonitor, "wait_ms", lambda self: 12.5)
    conditions = TimedWindowMonitor(torch.device("cpu")).conditions(WARMUP, cold=True)
    assert (conditions.run_queue_wait_ms, conditions.cold, conditions.settled) == (12.5, True, True)
    assert conditions.throttled_share == {}
    assert conditions.sm_clock_min_mhz is None
