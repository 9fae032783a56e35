"""What the process of a cell is told, what it tells of itself, and what it leaves as it was."""

import dataclasses
import gc
import os

import pytest
import torch
from make_job import make_job
from playing import component_of

from profiling.components.build import use_threads
from profiling.components.spec import ComponentSpec
from profiling.errors import InputError
from profiling.machine.memory import held_before
from profiling.metrics.latency import Latency, TimedWindowMonitor
from profiling.metrics.metric import Subject
from profiling.metrics.monitor import CallMonitor
from profiling.metrics.sampling import Ready, Turn, WindowSamples
from profiling.run import worker
from profiling.run.process import InProcess, copied_log
from profiling.run.task import Cell, Counters, Probe, Start, read_task, write_task
from profiling.run.worker import _with_own_memory
from profiling.variants.variant import Step

CPU = torch.device("cpu")
JOB = make_job()
LIMITS = {"min_iterations": 1, "max_iterations": 2, "max_seconds": 1.0, "free": {}}
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def test_the_memory_of_a_cell_is_without_what_its_process_held_before():
    """In one process the cells before it hold some; else no second one would seem to fit."""
    told = []
    take = _with_own_memory(lambda ready, window: told.append(ready), CPU)
    held = held_before(CPU)["host"]
    take(Ready(used={"host": held + 10**9}, **LIMITS), None)
    assert told[0].used["host"] == pytest.approx(10**9, abs=10**8)


def test_the_number_of_threads_is_set_only_where_it_differs(monkeypatch):
    """The call alone makes MKL use all threads for small operations, unlike in an application."""
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    for number in (torch.get_num_threads(), torch.get_num_threads() + 1):
        use_threads(number)
    assert asked == [torch.get_num_threads() + 1]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@TWO_CORES
def test_windows_of_few_threads_run_on_as_many_cores_and_nothing_else_does(one_thread):
    before = os.sched_getaffinity(0)
    monitor = TimedWindowMonitor(CPU, CallMonitor(CPU))
    assert monitor.pins
    with monitor.on_own_cores():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


@TWO_CORES
def test_a_call_is_timed_on_the_cores_that_its_record_names(one_thread):
    before, seen = os.sched_getaffinity(0), []
    step = Step(lambda: seen.append(os.sched_getaffinity(0)))
    limits = {"min_iterations": 3, "max_iterations": 3, "warmup_max_iterations": 10, "warmup_max_seconds": 1}
    measured = Latency(**limits).measure(Subject(component_of(torch.relu), step, None, None, 0))
    cores = set(measured.sections["latency"].pinned_cores)
    assert len(cores) == 1
    assert [each for each in seen if each != cores] == [], "the warm-up, too"
    assert os.sched_getaffinity(0) == before


def test_cells_that_wait_in_this_process_leave_it_as_they_found_it_and_end_in_any_order(monkeypatch, tmp_path):
    """A cell times without garbage collection and under inference mode; what runs while it waits must not."""
    seen = []

    def perform(task, emit, take_turns):
        gc.disable()
        os.environ["PLANTED"] = task.job.variant
        with torch.inference_mode():
            take_turns(Ready(used={}, free={}), lambda turn: WindowSamples(start_s=0.0, wall_ms=(1.0,)))
            seen.append((os.environ["PLANTED"], gc.isenabled(), torch.is_inference_mode_enabled()))
        gc.enable()

    monkeypatch.setattr(worker, "perform", perform)
    executor, window = InProcess(tmp_path, trace=False), Turn(seconds=1.0, calls=1)
    jobs = [dataclasses.replace(JOB, variant=name) for name in ("one", "two")]
    one, two = (executor.session(Cell(job=job), job.name, lambda event: None) for job in jobs)
    for session in (one, two):
        assert next(session).ready is not None
    for session in (one, two, one):
        assert session.send(window).window.wall_ms == (1.0,)
        assert (gc.isenabled(), torch.is_inference_mode_enabled(), "PLANTED" in os.environ) == (True, False, False)
    for session in (one, two):
        with pytest.raises(StopIteration):
            session.send(Turn())
        assert (gc.isenabled(), torch.is_inference_mode_enabled(), "PLANTED" in os.environ) == (True, False, False)
    assert seen == [("one", False, True), ("two", False, True)]


def test_the_process_of_a_waiting_cell_can_be_given_up(monkeypatch, tmp_path):
    ended = []

    def perform(task, emit, take_turns):
        try:
            take_turns(Ready(used={}, free={}), lambda turn: None)
        finally:
            ended.append(task.job.variant)

    monkeypatch.setattr(worker, "perform", perform)
    session = InProcess(tmp_path, trace=False).session(Cell(job=JOB), JOB.name, lambda event: None)
    next(session)
    session.close()
    assert ended == [JOB.variant]


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_cell_that_lacked_memory_may_be_tried_again_alone(monkeypatch, error, ran_out):
    def fails(settings):
        raise InputError("component net: forward failed") from error

    monkeypatch.setattr(worker, "set_process_state", fails)
    events = []
    worker.perform(Cell(job=JOB), events.append)
    assert [event.out_of_memory for event in events] == [ran_out]


@pytest.mark.parametrize("kind", [Start, Counters, Probe])
def test_a_task_is_read_as_it_was_written(tmp_path, kind):
    options = {"scale": float("inf"), "many": 10**30, "nested": {"list": [1, None, "x"]}}
    spec = ComponentSpec("net", {"_target_": "n", **options}, {"x": {"shape": [1], "low": -2.5}})
    job = make_job(component=spec, metrics={"m": {"_target_": "x.Y"}}, **options)
    given = {"jobs": (job, job)} if kind is Probe else {"job": job}
    task = kind(**given, **({"began": 1.25} if kind is Start else {}))
    write_task(task, tmp_path / "task.json")
    assert read_task(tmp_path / "task.json") == task


def test_a_compile_log_that_cannot_be_copied_for_the_user_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path / "file"))
    assert copied_log(tmp_path / "log") == ()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "rank_0.log").write_text("compiled")
    (note,) = copied_log(tmp_path / "log")
    assert f"TORCH_TRACE={tmp_path / 'file'} (File exists). It stays in {tmp_path / 'log'}" in note
