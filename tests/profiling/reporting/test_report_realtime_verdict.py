"""The one line that says whether a loop of frames holds its rate: known sections in, exact words out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from profiling.reporting.realtime_verdict import realtime_verdicts
from profiling.reporting.realtime_words import realtime_lines
from profiling.reporting.render import render_console, render_markdown, write_report
from profiling.results.records import Record

Section = dict[str, Any]
Loop = Callable[..., Section]
Make = Callable[..., Record]
MakeLoop = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]

HOLDS = "realtime.cuda_graph: holds 60 FPS: yes, p99 9.1 of 16.7 ms, 0 of 600 late; holds 24 and 30 FPS, not 120."


def line(record: Record) -> str:
    (found,) = realtime_verdicts([record])
    return found


def test_a_loop_that_holds(make_loop: MakeLoop) -> None:
    assert line(make_loop("cuda_graph")) == HOLDS


def test_a_loop_that_stalls_names_its_causes(make_loop: MakeLoop, stalled: Section) -> None:
    assert line(make_loop("baseline", stalled)) == (
        "realtime.baseline: holds 60 FPS: no, p99 31.2 of 16.7 ms, 12 of 600 late (longest stall 28.4 ms); "
        "causes: garbage collection 9, not attributed 3, recompile 1; holds 24 and 30 FPS, not 120."
    )


@pytest.mark.parametrize("changes", [{"late": 7}, {"pace": "realtime"}])
def test_slow_frames_that_are_not_the_late_ones_are_told_apart(
    make_loop: MakeLoop, stalled: Section, changes: Section
) -> None:
    text = line(make_loop("baseline", stalled | changes))
    assert "; causes of the 12 slow frames: garbage collection 9, not attributed 3, recompile 1;" in text


def test_the_commonest_cause_comes_first_and_one_is_one(make_loop: MakeLoop, stalled: Section) -> None:
    stalled["slow"] |= {"count": 1, "causes": {"allocator retry": 1, "host descheduled": 3, "cudaMalloc": 2}}
    text = line(make_loop("baseline", stalled))
    assert "; causes of the 1 slow frame: host descheduled 3, cudaMalloc 2, allocator retry 1;" in text


def test_slow_frames_in_time_are_no_matter_of_the_verdict(make_loop: MakeLoop, loop: Loop, stalled: Section) -> None:
    assert line(make_loop("cuda_graph", loop(slow=stalled["slow"]))) == HOLDS


def test_one_late_frame_in_thousands_holds_and_is_said(make_loop: MakeLoop, loop: Loop) -> None:
    section = loop(frames=5000, late=1)
    section["deadlines"]["60"]["longest_stall_ms"] = 3.0
    text = line(make_loop("baseline", section))
    assert "holds 60 FPS: yes, p99 9.1 of 16.7 ms, 1 of 5000 late (longest stall 3.0 ms);" in text


def test_a_median_over_the_budget_is_said(make_loop: MakeLoop, loop: Loop) -> None:
    assert "; its median frame of 20.1 ms is over the budget;" in line(make_loop("baseline", loop(20.1, holds=False)))
    assert "median" not in line(make_loop("baseline", loop(16.6)))


def test_a_p99_next_to_its_budget_keeps_the_digits_that_tell_them_apart(make_loop: MakeLoop, loop: Loop) -> None:
    near = loop(frame_ms={"p99": 16.69})
    assert "p99 16.69 of 16.67 ms" in line(make_loop("baseline", near))


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((24, 30, 120), "; holds 24, 30 and 120 FPS."),
        ((24,), "; holds 24 FPS, not 30 and 120."),
        ((), "; does not hold 24, 30 and 120 FPS."),
    ],
)
def test_the_other_rates(make_loop: MakeLoop, loop: Loop, held: tuple[int, ...], words: str) -> None:
    section = loop()
    for rate in (24, 30, 120):
        section["deadlines"][str(rate)]["holds"] = rate in held
    assert line(make_loop("baseline", section)).endswith(words)


def test_another_target_stands_beside_the_usual_rates(make_loop: MakeLoop, loop: Loop) -> None:
    section = loop(target_fps=59.94)
    section["deadlines"]["59.94"] = {"fps": 59.94, "budget_ms": 16.68, "holds": True}
    text = line(make_loop("baseline", section))
    assert "holds 59.94 FPS: yes" in text
    assert text.endswith("; holds 24, 30 and 60 FPS, not 120.")


def test_growth_names_the_stages_that_grow_along(make_loop: MakeLoop, loop: Loop) -> None:
    stages = {"world": {"host": 8.0, "device": 11.5}, "sound": {"device": 2.0}}
    section = loop(slope={"us_per_frame": 12.0, "growing": True, "stages": stages})
    words = "+12.0 µs a frame, with it world on the host +8.00, world on the device +11.5 and sound on the device +2.00"
    assert line(make_loop("cuda_graph", section)) == f"{HOLDS[:-1]}; its frames grow longer: {words}."
    (text,) = realtime_lines([make_loop("cuda_graph", section)])
    assert f"slope {words.replace('frame, with', 'frame: growing, with')};" in text


def test_growth_leaks_and_spikes_only_where_found(make_loop: MakeLoop, loop: Loop) -> None:
    section = loop(
        slope={"us_per_frame": 12.0, "ci95": [11.5, 12.5], "growing": True},
        spikes={"period": 50, "count": 12, "first": 49},
    )
    section["memory"]["allocated"] |= {"bytes_per_frame": 4096.0, "leak": True}
    section["memory"]["reserved"] = {"bytes_per_frame": 1e6, "leak": False}
    section["memory"]["host_rss"] = {"bytes_per_frame": 8192.5, "leak": True}
    assert line(make_loop("cuda_graph", section)) == HOLDS[:-1] + (
        "; its frames grow longer: +12.0 µs a frame [+11.5, +12.5]"
        "; it leaks memory: allocated +4096 bytes a frame, host RSS +8192 bytes a frame"
        "; a spike every 50 frames, 12 times, first at frame 49."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "invalid", "reason": "recompiled in frame 60"}, "invalid, its times do not count: recompiled in"),
        ({"status": "failed", "reason": "out of\nmemory"}, "failed, its times do not count: out of memory."),
        ({"parity": {"passed": False}}, "parity failed, its times do not count."),
    ],
)
def test_what_is_not_right_holds_nothing(
    make_loop: MakeLoop, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    record = make_loop("compile", **changes)
    assert line(record).startswith(f"realtime.compile: {words}")
    for render in (render_console, render_markdown):
        assert not re.search(r"\byes\b|holds 60 FPS: ", render([record], {}, tmp_path))


def test_an_invalid_loop_still_leaks(make_loop: MakeLoop, loop: Loop) -> None:
    section = loop(slope={"us_per_frame": 12.0, "growing": True})
    section["memory"]["allocated"] |= {"bytes_per_frame": 4096.0, "leak": True}
    text = line(make_loop("compile", section, status="invalid", reason="throttled"))
    assert text.endswith("do not count: throttled; it leaks memory: allocated +4096 bytes a frame.")
    assert "grow" not in text, "its times do not count"


def test_a_loop_that_never_ran(make: Make, make_loop: MakeLoop) -> None:
    crashed = make("compile", target="realtime", component="realtime", status="failed", reason="no kernel")
    assert line(crashed) == "realtime.compile: failed, its times do not count: no kernel."
    skipped = make("compile", target="realtime", component="realtime", status="skipped", reason="no GPU")
    assert line(skipped) == "realtime.compile: skipped: no GPU."
    empty = make_loop("compile", {"frames": 0, "target_fps": 60.0})
    assert line(empty) == "realtime.compile: no frame was held against a deadline."


def test_only_a_verdict_is_a_leak(make_loop: MakeLoop, loop: Loop) -> None:
    assert line(make_loop("cuda_graph", loop(memory={"allocated": {"leak": "no"}}))) == HOLDS


def test_verdicts_come_first_and_other_records_have_none(make: Make, make_loop: MakeLoop, save: Save) -> None:
    records = [make("baseline", 28.7), make_loop("cuda_graph")]
    assert realtime_verdicts(records) == (HOLDS,)
    run = save(records)
    lines = write_report(run).splitlines()
    assert lines[lines.index(HOLDS) + 1].startswith("world_model: only baseline ran")
    assert f"### Verdict\n\n- {HOLDS}\n" in (run / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "section",
    [
        3,
        "text",
        {"holds": "yes", "target_fps": 60.0},
        {"holds": True, "target_fps": 0},
        {"holds": True, "target_fps": "60"},
        {"holds": False, "target_fps": 60.0, "late": "many", "deadlines": [1], "slow": 3, "memory": "much"},
        {"holds": True, "target_fps": 60.0, "deadlines": {"60": 3, "x": {"fps": None}, "y": {"fps": -1.0}}},
        {"holds": True, "target_fps": 60.0, "late": 1, "frames": 9, "slow": {"causes": {"a": None, "b": "c"}}},
        {"holds": True, "target_fps": 60.0, "spikes": [50], "slope": {"growing": True}, "memory": {"allocated": 3}},
    ],
)
def test_hostile_sections_do_not_break_the_others(make_loop: MakeLoop, tmp_path: Path, section: Any) -> None:
    records = [make_loop("cuda_graph"), make_loop("odd", section)]
    assert realtime_verdicts(records)[0] == HOLDS
    for render in (render_console, render_markdown):
        assert not re.search(r"\b(nan|inf|None)\b", render(records, {}, tmp_path))
