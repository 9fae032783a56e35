"""What a worker reports of a cell that failed."""

import pytest

from profiling.errors import InputError
from profiling.run import worker


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_cell_that_lacked_memory_may_be_tried_again_alone(monkeypatch, error, ran_out):
    def fails(text):
        raise InputError("component net: forward failed") from error

    monkeypatch.setattr(worker.Job, "from_json", fails)
    events = []
    worker.perform({"cell": "{}"}, events.append)
    assert [event.out_of_memory for event in events] == [ran_out]
