"""Pinning a process to some of its cores, which psutil and the kernel confirm."""

import os
import threading
from contextlib import suppress

import psutil
import pytest

from profiling.machine import run_queue
from profiling.machine.run_queue import pinned

ALLOWED = sorted(os.sched_getaffinity(0))


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
    monkeypatch.setattr(run_queue, "_CORES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert run_queue._apart(2) == (6, 7), "without a topology each core is its own"
    for core in range(8):
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core // 2}\n")
    assert run_queue._apart(number) == chosen
