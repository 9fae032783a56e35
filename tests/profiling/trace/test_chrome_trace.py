"""Reading traces event by event."""

import gzip
import json

import pytest

from profiling.trace.events import read_events

EVENTS = [{"name": "a, [b]", "args": {"x": [1, {"y": None}]}}, {"name": 'quoted "]" name', "ts": 1.5}, {"name": "c"}]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_the_events_are_those_of_the_document(tmp_path, indent, pack):
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "traceName": "later"}
    file = tmp_path / "trace"
    file.write_bytes(pack(json.dumps(document, indent=indent).encode()))
    assert list(read_events(file)) == EVENTS


def test_a_trace_without_events(tmp_path):
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    assert list(read_events(tmp_path / "trace.json")) == []


def test_bytes_that_are_no_text_cost_no_trace(tmp_path):
    (tmp_path / "trace.json").write_bytes(b'{"traceEvents": [{"name": "\xff"}]}')
    assert [event["name"] for event in read_events(tmp_path / "trace.json")] == ["\ufffd"]


def test_a_trace_that_was_cut_off_says_so(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": EVENTS})[:-20])
    with pytest.raises(ValueError, match=r"ends within an event. Trace the cell again"):
        list(read_events(tmp_path / "trace.json"))


def test_another_file_says_so(tmp_path):
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(ValueError, match="no Chrome trace"):
        list(read_events(tmp_path / "trace.json"))
