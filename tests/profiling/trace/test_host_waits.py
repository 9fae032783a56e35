"""Waits and copies, and the lines that made them."""

import pytest
from hand_made_events import copy, host, operator, span, work
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
    assert (copied.what, copied.ms, copied.bytes) == ("device to pageable host", pytest.approx(0.004), 400)


def test_without_lines_waits_and_copies_are_listed(tmp_path):
    for lined in (None, events()):
        waits, copies = waits_and_copies(events(), lined, tmp_path)
        assert [(row.line, row.bytes) for row in (*waits, *copies)] == [(None, None), (None, 400)]
    assert waits_and_copies(stored("net.eager"), stored("net.eager_hooks"), tmp_path) == ((), ()), "without faults"


def test_what_no_span_of_a_line_is_around(tmp_path):
    """No user code called the first; `torch.tensor(..., device=...)` copies unseen, and then calls one operator."""
    seen = [span(28, 45, "line: "), span(58, 75, "line: a.py:2")]
    unseen = [operator(58, 72, "aten::copy_", 1), span(76, 78, "line: a.py:3"), span(90, 95, "line: a.py:4")]
    for spans, line in ((seen, "a.py:2"), (unseen, "a.py:3")):
        (wait,), (copied,) = waits_and_copies(events(), events(lines=spans), tmp_path)
        assert (wait.line, copied.line) == (None, line)


def test_where_the_waits_differ_in_between_none_of_those_has_a_line(tmp_path):
    names = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaStreamSynchronize", "cudaStreamSynchronize")

    def waiting(order):
        calls = [host(10 * place + 20, 10 * place + 25, name=names[each]) for place, each in enumerate(order)]
        lines = [span(10 * place + 19, 10 * place + 26, f"line: a.py:{place}") for place in range(len(order))]
        begin = [span(0, 100, "c/v/trace/0"), host(5, 6, correlation=1), work(10, 15, correlation=1)]
        return timeline([*begin, *calls, *lines])

    rows, _ = waits_and_copies(waiting([0, 1, 2]), waiting([0, 2, 3, 1]), tmp_path)
    assert {(row.what, row.line) for row in rows} == {
        ("cudaStreamSynchronize", "a.py:0"),
        ("cudaStreamSynchronize", None),
        ("cudaEventSynchronize", None),
    }
