"""Conditions of a timed window are recorded; only another program inside it makes the samples invalid."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from profiling.machine import nvml, run_queue
from profiling.machine.memory import malloc_cost
from profiling.metrics import latency
from profiling.metrics.latency import TimedWindowMonitor
from profiling.metrics.monitor import CallMonitor
from profiling.metrics.sampling import Warmup
from profiling.trace.counters import CompileCounters

CUDA = torch.device("cuda", 0)
WARMUP = Warmup(iterations=10, seconds=1.0, settled=True)


@pytest.fixture
def calls():
    with closing(CallMonitor(torch.device("cpu"))) as monitor:
        yield monitor


def test_clocks_and_the_share_of_limited_time_are_conditions(monkeypatch, calls):
    before, after = {"power cap": 5_000_000_000, "power brake": 7}, {"power cap": 6_500_000_000, "power brake": 7}
    counters = iter([before, before, before, after])
    clocks = iter([1700, 1600])  # at the begin and the end of a window
    seconds = iter([0.0, 0.0, 100.0, 102.0])  # a moment before the window, then the window
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": 0})
    monkeypatch.setattr(nvml, "limited_ns", lambda device: next(counters))
    monkeypatch.setattr(nvml, "sm_clock_mhz", lambda device: next(clocks))
    monkeypatch.setattr(nvml, "perf_counter", lambda: next(seconds))
    monitor = TimedWindowMonitor(CUDA, calls)
    with monitor.window():
        pass
    conditions = monitor.conditions(WARMUP, cold=False)
    assert conditions.limited_share == {"power cap": 0.75}
    assert conditions.sm_clock_median_mhz == 1650
    assert monitor.invalid_reason() is None


@pytest.mark.parametrize(("seconds", "counters"), [(0.9, {"power cap": 1}), (5.0, {})], ids=["short", "no counters"])
def test_the_share_of_limited_time_is_absent_where_it_is_not_known(monkeypatch, seconds, counters):
    times = iter([0.0, seconds])
    monkeypatch.setattr(nvml, "limited_ns", lambda device: counters)
    monkeypatch.setattr(nvml, "perf_counter", lambda: next(times))
    assert nvml.ClockMonitor(CUDA).conditions().limited_share is None


def test_counters_of_the_driver_are_read_by_the_ids_that_it_knows(monkeypatch):
    def field(number):
        known = {74: 5, 251: 6, 271: 7}
        value = SimpleNamespace(ullVal=known.get(number, 99))
        return SimpleNamespace(fieldId=number, nvmlReturn=0 if number in known else 3, value=value)

    monkeypatch.setattr(nvml, "handle_of", lambda device: object())
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetFieldValues", lambda handle, ids: [*map(field, ids)])
    assert nvml.limited_ns(CUDA) == {"power cap": 5, "software thermal slowdown": 6, "power brake": 7}


def test_an_allocator_retry_and_a_compile_are_another_program(monkeypatch, calls):
    retries = iter([3, 5])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": next(retries)})
    monkeypatch.setattr(nvml, "limited_ns", lambda device: {})
    monkeypatch.setattr(nvml, "sm_clock_mhz", lambda device: None)
    counters = iter([CompileCounters(), CompileCounters(compiles=2, recompiles=1)])
    monkeypatch.setattr(latency, "snapshot", lambda: next(counters))
    monitor = TimedWindowMonitor(CUDA, calls)
    with monitor.window():
        pass
    reason = monitor.invalid_reason()
    assert reason is not None
    assert reason.startswith("1 compile, 1 recompile; 2 allocator retries")


def test_waits_for_a_cpu_are_recorded(monkeypatch, calls):
    monkeypatch.setattr(latency.RunQueueMonitor, "lost_share", lambda self: 0.25)
    monitor = TimedWindowMonitor(torch.device("cpu"), calls)
    for _ in range(2):
        with monitor.window():
            pass
        assert monitor.windows[-1].cpu_lost_share == 0.25
    conditions = monitor.conditions(WARMUP, cold=True)
    assert (conditions.cold, conditions.settled) == (True, True)
    assert conditions.limited_share is None
    assert conditions.sm_clock_median_mhz is None


@pytest.mark.parametrize(("running", "share"), [([1, 2, 3], 0.25), ([1, 2], 0.0), ([1], 0.0), ([2, 3], None)])
def test_the_share_of_others_is_known_only_where_this_process_can_be_told(monkeypatch, running, share):
    """This is process 1; 2 is a cell of the same run, which waits for its turn; 3 is somebody else's."""
    busy = ((1, 90, 5), (2, 40, 6), (2, 80, 7), (3, 25, 7))
    samples = [SimpleNamespace(pid=pid, smUtil=use, timeStamp=at) for pid, use, at in busy if pid in running]
    processes = [SimpleNamespace(pid=pid) for pid in running]
    monkeypatch.setattr(nvml, "handle_of", lambda device: object())
    monkeypatch.setattr(nvml.os, "getpid", lambda: 1)
    monkeypatch.setattr(nvml, "OF_RUN", set())
    monkeypatch.setattr(nvml, "processes_of_run", lambda: frozenset({1, 2}))
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetProcessUtilization", lambda handle, since: samples)
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: processes)
    assert nvml.share_of_others(CUDA, 0.1) == share
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetProcessUtilization", lambda *_: refused())
    assert nvml.share_of_others(CUDA, 0.1) == (share and None), "unknown where the driver does not tell"


def refused():
    raise nvml.pynvml.NVMLError(nvml.pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_the_cells_of_a_run_know_each_other(monkeypatch):
    """A cell leads a session, and the run is its ancestor, maybe behind a fork server; nothing else counts."""
    monkeypatch.setenv(run_queue.RUN_PROCESS, str(os.getpid()))
    program = "from profiling.machine.run_queue import processes_of_run; print(*processes_of_run())"
    start = "subprocess.Popen(['sleep', '60'], start_new_session=True).pid"
    started = f"import subprocess; print({start}, flush=True); input()"
    server = subprocess.Popen([sys.executable, "-c", started], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    behind = int(server.stdout.readline())
    cell, other = (subprocess.Popen(["sleep", "60"], start_new_session=session) for session in (True, False))
    try:
        for session in (True, False):
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, capture_output=True, check=True, start_new_session=session, text=True)
            known = {int(pid) for pid in done.stdout.split()}
            assert known >= {cell.pid, behind} if session else len(known) == 1, "without a session of its own: no cell"
            assert not known & {other.pid, server.pid}
    finally:
        os.kill(behind, signal.SIGKILL)
        for each in (cell, other, server):
            each.kill()
            each.communicate()


@pytest.mark.gpu
def test_a_busy_gpu_reports_its_clocks_and_limits():
    device = torch.device("cuda", 0)
    matrix, monitor = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16), nvml.ClockMonitor(device)
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
        monitor.read()
    conditions = monitor.conditions()
    assert conditions.sm_clock_median_mhz > 0
    assert conditions.limited_share is not None, "the driver has counters"
    assert all(0 < share <= 1 for share in conditions.limited_share.values())


@pytest.mark.gpu
@pytest.mark.alone
def test_a_malloc_takes_longer_the_larger_it_is():
    per_call, per_byte = malloc_cost(CUDA)
    assert 0 < per_call + 2**26 * per_byte < 1000
    before = torch.cuda.mem_get_info(0)[0]
    malloc_cost.__wrapped__(CUDA)
    assert torch.cuda.mem_get_info(0)[0] == before, "what was allocated is free again"
