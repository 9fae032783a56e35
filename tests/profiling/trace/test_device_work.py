"""What a call made the GPU do, out of hand-made events of a trace."""

import pytest

from profiling.trace.device_work import summarize
from profiling.trace.events import timeline

MARK = {"cat": "user_annotation", "name": "profiling/call/trace/0", "ts": 0, "dur": 1000}


def event(cat, name, ts, dur):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def test_two_calls():
    events = [
        {**MARK, "dur": 250},
        {**MARK, "ts": 250, "dur": 750},
        event("kernel", "a", 10, 4),
        event("kernel", "b", 12, 4),  # on another stream, over half of the one before
        event("kernel", "c", 100, 10),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 200, 20),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 300, 6),
        event("gpu_memset", "Memset (Device)", 310, 2),
        event("gpu_user_annotation", "a span drawn on the device's row", 0, 900),
        event("cpu_op", "aten::add", 1, 5),
        *(event("cuda_runtime", name, 20, 1) for name in ("cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync")),
        event("cuda_driver", "cuLaunchKernel", 30, 1),
        event("cuda_runtime", "cudaStreamSynchronize", 40, 15),
        event("cuda_runtime", "cudaEventRecord", 41, 1),
        event("cuda_runtime", "cudaDeviceSynchronize", 1001, 50),
        event("cuda_runtime", "cudaStreamSynchronize", 1100, 1),  # behind the calls: the pass's own
        {"cat": "kernel", "name": "an event without a length", "ts": 1},
    ]
    work = summarize(timeline(events))
    assert work is not None
    assert work.kernels == 6 / 2
    assert work.launches == 4 / 2
    assert work.waits == 1 / 2
    assert work.busy_ms == pytest.approx((6 + 10 + 20 + 6 + 2) / 2e3)
    assert work.transfer_ms == pytest.approx(20 / 2e3)
    assert work.median_us == 4
    assert work.short_ms == pytest.approx(6 / 2e3), "two of 4 µs, half of it side by side"


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaEventSynchronize", "cuCtxSynchronize", "cudaMemcpy"])
def test_every_wait_of_a_call_counts(call):
    asked = [event("cuda_runtime", call, ts, 5) for ts in (10, 20, 1001)]  # the last one is the pass's own
    work = summarize(
        timeline([MARK, event("kernel", "a", 12, 4), *asked, event("cuda_runtime", "cudaMemcpyAsync", 30, 1)])
    )
    assert work is not None
    assert work.waits == 2


def test_a_short_kernel_beside_a_long_one_costs_nothing():
    beside = [event("kernel", "short", begin, 4) for begin in (10, 15, 20)]
    work = summarize(timeline([MARK, event("kernel", "long", 0, 30), *beside, event("kernel", "short", 40, 3)]))
    assert work is not None
    assert work.short_ms == pytest.approx(3e-3)


def test_without_gpu_work_there_is_no_result():
    assert summarize(timeline([MARK, event("cuda_runtime", "cudaLaunchKernel", 2, 1)])) is None


def test_copies_alone_have_a_length_too():
    work = summarize(timeline([MARK, event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 10, 2000)]))
    assert work is not None
    assert work.median_us == 2000
    assert work.short_ms == 0
    assert work.transfer_ms == 0
