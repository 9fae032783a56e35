"""Places of jobs: whole physical cores near the GPU, held by one process until its last child is gone."""

import os
import subprocess
import sys
import threading
import time

import pytest
from msgspec.structs import replace

from profiling.machine import places
from profiling.machine.places import Place, held_place, physical_cores, visible_gpus
from profiling.results.sweep import Sweep, SweepJob, read_job, write_job, write_sweep
from profiling.run.sweep_job import JobTask


@pytest.fixture
def machine(monkeypatch):
    """Two sockets of two cores of two CPUs, a GPU next to each socket."""
    cores = [(0, 4), (1, 5), (2, 6), (3, 7)]
    gpus = {"GPU-a": (0, "H200", frozenset({0, 1, 4, 5})), "GPU-b": (1, "H200", frozenset({2, 3, 6, 7}))}
    monkeypatch.setattr(places, "physical_cores", lambda: cores)
    monkeypatch.setattr(places, "host_gpus", lambda: gpus)
    monkeypatch.setattr(places, "POLL_SECONDS", 0.01)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_jobs_get_whole_cores_next_to_their_gpu(machine, tmp_path, monkeypatch):
    gpus = [("GPU-a",), ("GPU-b",)]
    with held_place(tmp_path, gpus, 4) as first, held_place(tmp_path, gpus, 4) as second:
        assert (first.gpus, first.cpus, first.label) == (("GPU-a",), (0, 4, 1, 5), "cuda:0 H200")
        assert (second.gpus, second.cpus) == (("GPU-b",), (2, 6, 3, 7))
        assert first.variables() == {"CUDA_VISIBLE_DEVICES": "GPU-a", "OMP_NUM_THREADS": "2"}
    with held_place(tmp_path, [("GPU-b",)], 4) as place:
        assert place.cpus == (2, 6, 3, 7)
    with held_place(tmp_path, [()], 1) as one, held_place(tmp_path, [()], 1) as other:
        assert (one.cpus, other.cpus) == ((0, 4), (1, 5))
        assert one.label == "CPU cores 0,4"
    with held_place(tmp_path, [()], None) as place:
        assert place == Place()
        assert (place.label, place.variables()) == (None, {})
    monkeypatch.setattr(places, "physical_cores", lambda: [(0, 4)])
    with held_place(tmp_path, gpus, 2) as first, held_place(tmp_path, gpus, 2) as second:
        assert (first.gpus, first.cpus) == (("GPU-a",), (0, 4))
        assert (second.gpus, second.cpus) == (("GPU-b",), ()), "it waits for no core, and may use all of its process"


@pytest.mark.parametrize(("gpus", "cpus"), [([("GPU-a",)], None), ([("GPU-b",)], 8)], ids=["GPU", "cores"])
def test_a_place_in_use_is_waited_for_which_is_said_once(machine, tmp_path, monkeypatch, gpus, cpus):
    """Also by a job of another sweep that wants other numbers of the same cores."""
    monkeypatch.setattr(places, "SAID_SECONDS", 0.0)
    order, lines = [], []

    def second():
        with held_place(tmp_path, [("GPU-a",)], 2, lines.append):
            order.append("second")

    with held_place(tmp_path, gpus, cpus, lines.append):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    (line,) = lines
    assert "GPUs" in line
    assert str(tmp_path) in line


def test_a_place_is_held_until_the_last_process_is_gone(machine, tmp_path):
    """A worker that is killed may leave its job for a moment; nobody else gets the device before it has ended."""
    with held_place(tmp_path, [("GPU-a",)], None) as place:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=place.locks)
    given_after_the_kill, killed = [], threading.Event()

    def second():
        with held_place(tmp_path, [("GPU-a",)], None):
            given_after_the_kill.append(killed.is_set())

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.2)
    killed.set()
    child.kill()
    child.communicate()
    thread.join(10)
    assert given_after_the_kill == [True]


def test_processes_run_on_the_cpus_of_their_place():
    before = os.sched_getaffinity(0)
    cpu = min(before)
    with Place(cpus=(cpu,)).on_its_cpus():
        code = "import os; print(os.sched_getaffinity(0))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{{{cpu}}}"
    assert os.sched_getaffinity(0) == before
    assert sorted(cpu for core in physical_cores() for cpu in core) == sorted(before)


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        (None, ["GPU-a", "GPU-b"]),
        ("1,0", ["GPU-b", "GPU-a"]),
        ("GPU-b,MIG-2", ["GPU-b", "MIG-2"]),
        ("0,2,1", ["GPU-a"]),
        ("", []),
        ("0,-1,1", ["GPU-a"]),
    ],
)
def test_visible_gpus(machine, monkeypatch, given, gpus):
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus() == gpus


def test_a_job_that_was_run_while_it_waited_for_its_place_is_not_run_again(tmp_path, monkeypatch):
    planned = SweepJob(number=0, folder="0", overrides=("seed=0",))
    argv = ("--multirun", "seed=0")
    write_sweep(tmp_path, Sweep(target="t", launcher="local", began="now", argv=argv, jobs=(planned,)))
    program = (sys.executable, "-c", "import pathlib; pathlib.Path('ran').touch()")
    task = JobTask(str(tmp_path), program, str(tmp_path), "", str(tmp_path / "locks"), gpus=("GPU-a",))
    with held_place(tmp_path / "locks", [("GPU-a",)], None):
        waiting = threading.Thread(target=task, args=(0,))
        waiting.start()
        time.sleep(0.3)
        (tmp_path / "0").mkdir()
        write_job(tmp_path, replace(planned, state="done", exit_code=0, tries=1))
    waiting.join(60)
    assert not (tmp_path / "ran").exists()
    assert read_job(tmp_path, planned).tries == 1
