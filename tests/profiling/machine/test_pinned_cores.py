"""Pinning a process to some of its cores, which psutil and the kernel confirm."""

import os
import threading

import psutil
import pytest

from profiling.machine import run_queue
from profiling.machine.run_queue import pinned

ALLOWED = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two cores")


@several
def test_all_threads_are_pinned_inside_the_block_and_only_there():
    began, done, seen = threading.Event(), threading.Event(), []

    def worker():
        began.set()
        done.wait()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=worker)
    thread.start()
    began.wait()
    with pinned(1) as cores:
        assert psutil.Process().cpu_affinity() == list(cores)
        assert {frozenset(os.sched_getaffinity(task.id)) for task in psutil.Process().threads()} == {frozenset(cores)}
        done.set()
        thread.join()
    assert len(cores) == 1
    assert seen == [set(cores)], "a thread that was there before"
    assert sorted(psutil.Process().cpu_affinity()) == ALLOWED


@several
def test_each_thread_has_its_own_cores_again_after_the_block():
    """Those of a data loader, say, that its user has pinned."""
    began, done = threading.Event(), threading.Event()

    def worker():
        os.sched_setaffinity(0, ALLOWED[:1])
        began.set()
        done.wait()

    thread = threading.Thread(target=worker)
    thread.start()
    began.wait()
    with pinned(1):
        late = threading.Thread(target=done.wait)
        late.start()
    found = [os.sched_getaffinity(each.native_id) for each in (thread, late)]
    done.set()
    assert found == [set(ALLOWED[:1]), set(ALLOWED)]


@several
def test_an_error_inside_the_block_ends_the_pinning():
    with pytest.raises(ZeroDivisionError), pinned(1):
        raise ZeroDivisionError
    assert sorted(os.sched_getaffinity(0)) == ALLOWED


@pytest.mark.parametrize("threads", [0, len(ALLOWED), len(ALLOWED) + 1])
def test_nothing_is_pinned_where_the_threads_need_all_cores(threads):
    with pinned(threads) as cores:
        assert cores == ()
        assert sorted(os.sched_getaffinity(0)) == ALLOWED


@pytest.mark.parametrize(("number", "chosen"), [(1, (7,)), (2, (5, 7)), (4, (1, 3, 5, 7)), (5, (1, 3, 5, 6, 7))])
def test_cores_that_share_a_physical_core_come_last(tmp_path, monkeypatch, number, chosen):
    for core in range(8):
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{core // 2 * 2}-{core // 2 * 2 + 1}\n")
    monkeypatch.setattr(run_queue, "_CORES", tmp_path)
    assert run_queue._apart(range(8), number) == chosen


def test_without_a_topology_each_core_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(run_queue, "_CORES", tmp_path)
    assert run_queue._apart(range(4), 2) == (2, 3)
