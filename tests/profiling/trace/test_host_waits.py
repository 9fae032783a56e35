"""Waits and copies, and the lines that made them."""

import pytest
from hand_made_events import copy, host, span, work
from stored_traces import stored

from profiling.trace.events import timeline
from profiling.trace.host_waits import waits_and_copies


def events(*, shift=0.0, lines=()):
    """A step that waits in line 2 and copies in line 3; the pass around it waits for the whole device at the end."""
    found = [
        span(0, 100, "c/v/trace/0"),
        host(5, 6, correlation=1),
        work(10, 20, correlation=1),
        host(30, 40 + shift, name="cudaStreamSynchronize"),
        host(60, 70, correlation=2, name="cudaMemcpyAsync"),
        copy(62, 66, correlation=2, way="DtoH (Device -> Pageable)", size=400),
        host(80, 81, name="cudaStreamIsCapturing"),
        host(110, 150, name="cudaDeviceSynchronize"),
    ]
    return timeline([*found, *lines])


def test_planted_waits_name_their_lines_on_a_gpu(tmp_path):
    trace = stored("faulty.eager_hooks")
    waits, copies = waits_and_copies(stored("faulty.eager"), trace, tmp_path)
    assert {(row.what, row.line, row.count) for row in waits} == {
        ("cudaStreamSynchronize", "planted/net.py:23", 1),  # .item()
        ("cudaStreamSynchronize", "planted/net.py:24", 1),  # .cpu()
    }
    assert {(row.what, row.bytes, row.line) for row in copies} == {
        ("device to pinned host", 2, "planted/net.py:23"),
        ("device to pageable host", 2 * 32 * 64 * 64 * 2, "planted/net.py:24"),
    }


def test_a_step_without_faults_has_none(tmp_path):
    assert waits_and_copies(stored("net.eager"), stored("net.eager_hooks"), tmp_path) == ((), ())


def test_lines_come_from_one_trace_and_times_from_the_other(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def forward(x):\n    x.item()  # waits\n    return x.cpu()\n")
    lines = [
        span(1, 95, f"line: {tmp_path}/outer.py:9"),
        span(25, 55, f"line: {file}:2"),
        span(56, 75, f"line: {file}:3"),
    ]
    waits, copies = waits_and_copies(events(), events(shift=9, lines=lines), tmp_path)
    (wait,), (copied,) = waits, copies
    assert (wait.what, wait.count, wait.ms) == ("cudaStreamSynchronize", 1, pytest.approx(0.010))
    assert (wait.line, wait.code) == ("net.py:2", "x.item()  # waits")
    assert (copied.line, copied.code) == ("net.py:3", "return x.cpu()")
    assert (copied.ms, copied.host_ms, copied.bytes) == (pytest.approx(0.004), pytest.approx(0.010), 400)


def test_without_lines_waits_and_copies_are_listed(tmp_path):
    for lined in (None, events()):
        waits, copies = waits_and_copies(events(), lined, tmp_path)
        assert [(row.line, row.host_ms is None, row.bytes) for row in (*waits, *copies)] == [
            (None, True, None),
            (None, False, 400),
        ]


def test_what_a_compiled_graph_does_has_no_line(tmp_path):
    graph = span(28, 45, "## Call CompiledFxGraph fabc ##")
    around = [span(1, 95, "line: a.py:1"), graph, span(58, 75, "line: a.py:2")]
    (wait,), (copied,) = waits_and_copies(events(), events(lines=around), tmp_path)
    assert wait.line is None
    assert copied.line == "a.py:2"


def test_one_more_wait_in_one_trace_does_not_shift_the_lines_of_the_rest(tmp_path):
    more = timeline(
        [
            span(0, 100, "c/v/trace/0"),
            host(5, 6, correlation=1),
            work(10, 20, correlation=1),
            host(22, 23, name="cudaEventSynchronize"),
            host(30, 40, name="cudaStreamSynchronize"),
            span(21, 24, "line: a.py:1"),
            span(25, 55, "line: a.py:2"),
        ]
    )
    (wait,), _ = waits_and_copies(events(), more, tmp_path)
    assert wait.line == "a.py:2"
