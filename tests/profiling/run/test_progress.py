"""Progress on a terminal and elsewhere."""

import io
import threading

from make_record import record
from rich.console import Console

from profiling.run.progress import Progress

OK = record(p50=1.25)


def printed(*, terminal):
    text = io.StringIO()
    progress = Progress(Console(file=text, force_terminal=terminal, width=200))
    progress.begin("run", 0, 0)
    progress.phase("probe")
    progress.begin("c · v", 1, 2)  # the probe has no line of its own at its end
    progress.phase("latency")
    progress.end(OK)
    progress.begin("c · w [x]", 2, 2)
    progress.end(OK.with_status("failed", "because of [this]"))
    progress.close()
    progress.close()
    return text.getvalue()


def test_plain_lines_elsewhere_and_a_live_line_on_a_terminal_that_leaves_its_ending():
    plain, live = printed(terminal=False), printed(terminal=True)
    assert plain.startswith("run: probing the device")
    assert "[1/2] c · v: timing" in plain
    assert "[2/2] c · w [x]: failed: because of [this]" in plain.splitlines()[-1]
    assert "\x1b" not in plain
    assert "\x1b[2K" in live, "the line is rewritten"
    for text in (plain, live):
        assert "[1/2] c · v: ok, wall p50 1.25 ms" in text
        assert "because of [this]" in text
    assert live.rstrip().endswith("s)")


def test_what_is_done_twice_has_one_line():
    text = io.StringIO()
    progress = Progress(Console(file=text, width=200))
    for cell in ("c · v", "c · w"):
        progress.begin(cell, 1, 2)
        for phase in ("load", "reference", "load", "prepare", "latency", "memory", "latency"):
            progress.phase(phase)
    said = [line.split(": ", 1)[1].split(" (")[0] for line in text.getvalue().splitlines()]
    assert said == 2 * ["loading", "computing the float32 reference", "preparing", "timing", "timing"]


def test_nothing_is_redrawn_while_calls_are_timed():
    progress = Progress(Console(file=io.StringIO(), force_terminal=True, width=200))
    before, drawing = set(threading.enumerate()), []
    progress.begin("c · v", 1, 2)
    for phase in ("load", "latency", "memory", "turns", "frames"):
        progress.phase(phase)
        threads = set(threading.enumerate()) - before
        for thread in threads:
            thread.join(1.0)
        drawing.append(any(thread.is_alive() for thread in threads))
    assert drawing == [True, False, True, False, False]
    progress.close()
