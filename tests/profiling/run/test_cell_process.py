"""What the process of a cell tells of itself, and what it leaves as it was."""

import gc
import os
from types import SimpleNamespace

import pytest
import torch

from profiling.machine.memory import held_before
from profiling.metrics.latency import TimedWindowMonitor
from profiling.metrics.monitor import CallMonitor
from profiling.metrics.sampling import Ready
from profiling.run import in_turns
from profiling.run.worker import _with_own_memory

CPU = torch.device("cpu")
LIMITS = {"call_s": 0.1, "min_iterations": 1, "max_iterations": 2, "max_seconds": 1.0, "free": {}}


def test_the_memory_of_a_cell_is_without_what_its_process_held_before():
    """In one process the cells before it hold some; else no second one would seem to fit."""
    told = []
    take = _with_own_memory(lambda ready, window: told.append(ready), CPU)
    held = held_before(CPU)["host"]
    take(Ready(used={"host": held + 10**9}, **LIMITS), None)
    assert told[0].used["host"] == pytest.approx(10**9, abs=10**8)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_windows_of_few_threads_run_on_as_many_cores_and_nothing_else_does():
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        monitor = TimedWindowMonitor(CPU, CallMonitor(CPU))
        assert monitor.pins
        with monitor.on_own_cores():
            assert len(os.sched_getaffinity(0)) == 1
        assert os.sched_getaffinity(0) == before
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("collecting", [True, False])
def test_a_cell_within_the_timing_of_the_baseline_collects_garbage(collecting):
    """The baseline's timing has disabled it: a module with cycles would run out of memory."""
    seen = []
    records = SimpleNamespace(begin=lambda cell: True, end=lambda cell: None)
    cell = SimpleNamespace(records=records, ran_out_of_memory=False)
    was = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(in_turns, "_perform", lambda *_: seen.append(gc.isenabled()))
            in_turns._run_beside(cell, cell, [], None)
        assert seen == [True]
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if was else gc.disable)()
