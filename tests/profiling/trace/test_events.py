"""Reading traces: events of a file, damaged ones included, the traced calls that they belong to, and their GPU work."""

import gzip
import json

import pytest
from hand_made_events import host, span, work

from profiling.trace.device_work import summarize
from profiling.trace.events import read_events, timeline, traced_calls

EVENTS = [{"name": "a, [b]", "args": {"x": [1, {"y": None}]}}, {"name": 'quoted "]" name', "ts": 1.5}, {"name": "c"}]


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_the_events_are_those_of_the_document(tmp_path, pack):
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "traceName": "later"}
    file = tmp_path / "trace"
    file.write_bytes(pack(json.dumps(document).encode()))
    assert read_events(file) == EVENTS
    file.write_bytes(pack(b'{"traceEvents": [{"name": "\xff"}]}'))
    assert [event["name"] for event in read_events(file)] == ["\ufffd"], "bytes that are no text cost no trace"


@pytest.mark.parametrize("text", ["{}", json.dumps({"traceEvents": EVENTS})[:-20]], ids=["no trace", "cut off"])
def test_what_is_no_whole_trace_is_refused(tmp_path, text):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ValueError, match=r"no whole Chrome trace .* Trace the cell again"):
        read_events(tmp_path / "trace.json")


@pytest.mark.parametrize("fault", [{"args": None}, {"dur": float("nan")}, {"dur": -3.0}])
def test_damaged_events_cost_only_themselves(fault):
    sound = [span(0, 100, "c/v/trace/0"), span(110, 120, "mine/trace/7")]  # the other one is the user's own
    sound += [host(12, 13, correlation=1), work(20, 30, correlation=1)]
    (call,) = traced_calls(timeline([*sound, {**work(40, 50, correlation=1), **fault}, {**host(14, 15), **fault}]))
    assert (call.span.name, call.work[0].length) == ("c/v/trace/0", 10)
    assert all(item.length >= 0 for item in call.work)


@pytest.mark.parametrize(("written", "read"), [(37, 0.37), (0, None), (None, None)], ids=str)
def test_an_occupancy_that_the_profiler_could_not_estimate_is_not_0(written, read):
    kernel = work(20, 30)
    kernel["args"]["est. achieved occupancy %"] = written
    assert timeline([kernel]).work[0].occupancy == read


MARK = {"cat": "user_annotation", "name": "profiling/call/trace/0", "ts": 0, "dur": 1000}


def event(cat, name, ts, dur):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def test_the_gpu_work_of_two_calls():
    waits = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuCtxSynchronize", "cudaMemcpy")
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
        *(event("cuda_runtime", name, 40, 15) for name in waits),  # the last one launches, too
        event("cuda_runtime", "cudaEventRecord", 41, 1),
        event("cuda_runtime", "cudaDeviceSynchronize", 1001, 50),
        event("cuda_runtime", "cudaStreamSynchronize", 1100, 1),  # behind the calls: the pass's own
        {"cat": "kernel", "name": "an event without a length", "ts": 1},
    ]
    work = summarize(timeline(events))
    assert (work.kernels, work.launches, work.waits) == (6 / 2, 5 / 2, 5 / 2)
    assert work.busy_ms == pytest.approx((6 + 10 + 20 + 6 + 2) / 2e3)
    assert work.transfer_ms == pytest.approx(20 / 2e3)
    assert work.median_us == 4
    assert work.short_ms == pytest.approx(6 / 2e3), "two of 4 µs, half of it side by side"


def test_a_short_kernel_beside_a_long_one_costs_nothing_and_copies_alone_have_a_length():
    beside = [event("kernel", "short", begin, 4) for begin in (10, 15, 20)]
    work = summarize(timeline([MARK, event("kernel", "long", 0, 30), *beside, event("kernel", "short", 40, 3)]))
    assert work.short_ms == pytest.approx(3e-3)
    work = summarize(timeline([MARK, event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 10, 2000)]))
    assert (work.median_us, work.short_ms, work.transfer_ms) == (2000, 0, 0)
    assert summarize(timeline([MARK, event("cuda_runtime", "cudaLaunchKernel", 2, 1)])) is None, "no work of the GPU"
