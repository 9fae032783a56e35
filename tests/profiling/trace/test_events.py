"""Reading traces: events of a file, damaged ones included, and the traced calls that they belong to."""

import gzip
import json

import pytest
from hand_made_events import host, span, work
from stored_traces import calls_of, stored

from profiling.trace.events import read_events, timeline, traced_calls

EVENTS = [{"name": "a, [b]", "args": {"x": [1, {"y": None}]}}, {"name": 'quoted "]" name', "ts": 1.5}, {"name": "c"}]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_the_events_are_those_of_the_document(tmp_path, indent, pack):
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "traceName": "later"}
    file = tmp_path / "trace"
    file.write_bytes(pack(json.dumps(document, indent=indent).encode()))
    assert read_events(file) == EVENTS


def test_bytes_that_are_no_text_cost_no_trace(tmp_path):
    (tmp_path / "trace.json").write_bytes(b'{"traceEvents": [{"name": "\xff"}]}')
    assert [event["name"] for event in read_events(tmp_path / "trace.json")] == ["\ufffd"]


@pytest.mark.parametrize("text", ["{}", json.dumps({"traceEvents": EVENTS})[:-20]], ids=["no trace", "cut off"])
def test_what_is_no_whole_trace_is_refused(tmp_path, text):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ValueError, match=r"no whole Chrome trace .* Trace the cell again"):
        read_events(tmp_path / "trace.json")


@pytest.mark.parametrize("name", ["net.eager", "net.graph", "world_model_step.cuda_graph"])
def test_calls_of_a_trace_have_the_same_work(name):
    first, *rest = calls_of(name)
    assert rest
    for call in rest:
        assert [work.name for work in call.work] == [work.name for work in first.work]
    assert sum(len(call.work) for call in (first, *rest)) == len(stored(name).work)


def test_a_span_of_a_users_own_is_no_traced_call():
    trace = timeline([span(0, 100, "c/v/trace/0"), span(200, 300, "mine/trace/7")])
    assert [call.name for call in trace.calls] == ["c/v/trace/0"]


@pytest.mark.parametrize("fault", [{"args": None}, {"dur": float("nan")}, {"dur": -3.0}])
def test_damaged_events_cost_only_themselves(fault):
    sound = [span(0, 100, "c/v/trace/0"), host(12, 13, correlation=1), work(20, 30, correlation=1)]
    (call,) = traced_calls(timeline([*sound, {**work(40, 50, correlation=1), **fault}, {**host(14, 15), **fault}]))
    assert call.work[0].length == 10
    assert all(item.length >= 0 for item in call.work)


@pytest.mark.parametrize(("written", "read"), [(37, 0.37), (0, None), (None, None)], ids=str)
def test_an_occupancy_that_the_profiler_could_not_estimate_is_not_0(written, read):
    kernel = work(20, 30)
    kernel["args"]["est. achieved occupancy %"] = written
    assert timeline([kernel]).work[0].occupancy == read
