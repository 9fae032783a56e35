"""What a worker reports of a cell that failed."""

import pytest

from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError
from profiling.run import worker
from profiling.run.job import FORWARD, Job
from profiling.run.task import Cell, Counters, Probe, Start, read_task, write_task


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
    spec = ComponentSpec(name="net", module={"_target_": "n"}, inputs={"x": {"shape": [1]}})
    events = []
    worker.perform(Cell(job=Job("t", spec, "v", {}, {}, Settings(), "run", FORWARD)), events.append)
    assert [event.out_of_memory for event in events] == [ran_out]


@pytest.mark.parametrize("kind", [Cell, Start, Counters, Probe])
def test_a_task_is_read_as_it_was_written(tmp_path, kind):
    options = {"scale": float("inf"), "many": 10**30, "nested": {"list": [1, None, "x"]}}
    inputs = {"x": {"shape": [1], "low": -2.5}}
    spec = ComponentSpec(name="net", module={"_target_": "n", **options}, inputs=inputs)
    job = Job("t", spec, "v", options, {"m": {"_target_": "x.Y"}}, Settings(threads=3), "run", FORWARD)
    given = {"jobs": (job, job)} if kind is Probe else {"job": job}
    task = kind(**given, **({"began": 1.25} if kind is Start else {}))
    write_task(task, tmp_path / "task.json")
    assert read_task(tmp_path / "task.json") == task
