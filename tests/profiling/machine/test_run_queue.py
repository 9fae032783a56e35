"""Run-queue waits and stolen CPU time, of prepared files and beside a busy process; pinning, as psutil reports it."""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest

from profiling.machine import run_queue
from profiling.machine.run_queue import RunQueueMonitor, ThreadWaits, pinned

ALLOWED = sorted(os.sched_getaffinity(0))


class Machine:
    """A clock, threads in queues and stolen ticks that move as the test says."""

    def __init__(self, monkeypatch, folder):
        self.now, self.steal, self.folder = 100.0, 5.0, folder
        monkeypatch.setattr(run_queue, "THREADS", folder)
        monkeypatch.setattr(run_queue.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(run_queue.threading, "get_native_id", lambda: 7)
        monkeypatch.setattr(run_queue.psutil, "cpu_count", lambda: 4)
        monkeypatch.setattr(run_queue.os, "sched_getaffinity", lambda _: {0, 1, 2})
        monkeypatch.setattr(run_queue.psutil, "cpu_times", lambda: SimpleNamespace(steal=self.steal))

    def threads(self, **ran_and_waited):
        """Set the seconds that each thread has run and waited so far."""
        for name, (ran, waited) in ran_and_waited.items():
            folder = self.folder / name.lstrip("t")
            folder.mkdir(exist_ok=True)
            (folder / "schedstat").write_text(f"{round(ran * 1e9)} {round(waited * 1e9)} 45\n")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path)


def test_the_longest_wait_of_a_thread_that_works_and_stolen_ticks(machine):
    machine.threads(t1=(1.0, 1.0), t2=(2.0, 2.0), t3=(0.0, 0.0))
    monitor = RunQueueMonitor()
    machine.now += 10
    machine.threads(t1=(10.0, 2.0), t2=(10.0, 3.5), t3=(0.01, 9.0))  # the third only woke up
    assert monitor.lost_share() == pytest.approx(0.15, abs=0.001)
    machine.steal += 8  # 2 s of each of 4 processors: a fifth more, but for a tick
    assert monitor.lost_share() == pytest.approx(0.35, abs=0.001)
    machine.threads(t1=(2.0, 200.0), t2=(2.0, 3.5))
    assert monitor.lost_share() == 1.0
    short = RunQueueMonitor()
    machine.now += 0.1
    for lost in (0, 0.025):  # a tick in a short window is none
        machine.steal += 0.01
        assert short.lost_share() == pytest.approx(lost)


@pytest.mark.parametrize(("ran", "lost"), [(7.5, 0.0), (6.0, 0.2)])
def test_more_threads_than_cores_wait_for_each_other(machine, ran, lost):
    """Three of the four cores are this process's: four threads that fill them have lost nothing to others."""
    names = ("t1", "t2", "t3", "t4")
    machine.threads(**dict.fromkeys(names, (1.0, 1.0)))
    monitor = RunQueueMonitor()
    machine.now += 10
    machine.threads(**dict.fromkeys(names, (1.0 + ran, 3.5)))
    assert monitor.lost_share() == pytest.approx(lost)


def test_threads_that_end_neither_reduce_the_wait_nor_hide_another(machine):
    machine.threads(t1=(1.0, 1.0), t2=(1.0, 2.0), t7=(0.0, 0.0))
    monitor = RunQueueMonitor()
    machine.now += 10
    machine.threads(t1=(6.0, 1.0), t2=(0.0, 0.0))  # another thread has the number
    assert monitor.lost_share() == 0.0
    machine.threads(t7=(0.1, 4.0))
    assert monitor.lost_share() == pytest.approx(0.4), "the calling thread counts although it only waited"
    (machine.folder / "1" / "schedstat").unlink()  # it ends while they are read
    machine.threads(t2=(6.0, 7.0))
    assert monitor.lost_share() == pytest.approx(0.5)
    for thread in ("2", "7"):
        (machine.folder / thread / "schedstat").unlink()
    assert monitor.lost_share() is None, "a system that counts no waits"


@pytest.mark.parametrize("text", [None, "", "1 two 3"])
def test_a_system_that_does_not_count_waits(machine, monkeypatch, text):
    machine.threads(t1=(1.0, 1.0))
    if text is None:  # a container without /proc
        monkeypatch.setattr(run_queue, "THREADS", machine.folder / "absent")
    else:
        (machine.folder / "1" / "schedstat").write_text(text)
    monitor = RunQueueMonitor()
    machine.now += 10
    assert monitor.lost_share() is None
    if text is None:
        assert ThreadWaits(workers=True).wait_ms() is None


#: Works in frames of 2 ms on one core beside a rival; prints the ms of each frame and of its wait.
FRAMES = """
import json, os, subprocess, sys, time
from profiling.machine.run_queue import ThreadWaits
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(0.3)
waits, frames = ThreadWaits(workers=True), []
for _ in range(200):
    start = time.perf_counter()
    while time.perf_counter() < start + 0.002:
        pass
    frames.append((1e3 * (time.perf_counter() - start), waits.read()[0]))
rival.kill()
print(json.dumps(frames))
"""


def test_a_frame_waits_as_long_as_a_rival_took_its_core():
    frames = json.loads(subprocess.run([sys.executable, "-c", FRAMES], capture_output=True, check=True).stdout)
    delayed = [(frame_ms, wait_ms) for frame_ms, wait_ms in frames if frame_ms > 3.5]
    assert delayed, "the rival took the core at times"
    explained = sum(wait_ms for _, wait_ms in delayed) / sum(frame_ms - 2 for frame_ms, _ in delayed)
    assert 0.7 < explained < 1.3
    assert all(wait_ms >= 0 for _, wait_ms in frames)


def test_workers_count_if_they_ran_and_the_longest_wait_is_the_frames(machine):
    machine.threads(t7=(0, 0), t2=(0, 0), t3=(0, 0))
    every, own = ThreadWaits(workers=True), ThreadWaits(workers=False)
    machine.now += 0.010
    machine.threads(t7=(0.005, 0.001), t2=(0.005, 0.003), t3=(0.0001, 0.009))  # the third only woke up
    assert (every.wait_ms(), own.wait_ms()) == (3.0, 1.0)
    machine.now += 0.010
    assert (every.wait_ms(), own.wait_ms()) == (0.0, 0.0)
    for waits in (every, own):
        waits.close()


@pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two cores")
def test_all_threads_are_pinned_inside_the_block_and_have_their_own_cores_again_after_it():
    """One before the block, one that its user has pinned (a data loader, say), one inside; the block fails."""
    done = threading.Event()

    def started(target):
        thread, began = threading.Thread(target=lambda: (target(), began.set(), done.wait())), threading.Event()
        thread.start()
        began.wait()
        return thread

    plain, own = started(lambda: None), started(lambda: os.sched_setaffinity(0, ALLOWED[:1]))
    try:
        with suppress(ZeroDivisionError), pinned(1) as cores:
            late = started(lambda: None)
            seen = {frozenset(os.sched_getaffinity(task.id)) for task in psutil.Process().threads()}
            raise ZeroDivisionError
        found = [os.sched_getaffinity(thread.native_id) for thread in (plain, own, late)]
    finally:
        done.set()
    assert len(cores) == 1
    assert seen == {frozenset(cores)}
    assert found == [set(ALLOWED), set(ALLOWED[:1]), set(ALLOWED)]
    assert sorted(psutil.Process().cpu_affinity()) == ALLOWED


@pytest.mark.parametrize("threads", [0, len(ALLOWED)])
def test_nothing_is_pinned_where_the_threads_need_all_cores(threads):
    with pinned(threads) as cores:
        assert cores == ()
        assert sorted(os.sched_getaffinity(0)) == ALLOWED


@pytest.mark.parametrize(("number", "chosen"), [(2, (5, 7)), (5, (1, 3, 5, 6, 7))])
def test_cores_that_share_a_physical_core_come_last(tmp_path, monkeypatch, number, chosen):
    monkeypatch.setattr(run_queue, "CORES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert run_queue._apart(2) == (6, 7), "without a topology each core is its own"
    for core in range(8):
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core // 2}\n")
    assert run_queue._apart(number) == chosen
