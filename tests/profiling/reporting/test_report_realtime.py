"""Hand-written loops of frames: known times, deadlines and bytes in, known cells and words out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from profiling.reporting.classic import render_classic
from profiling.reporting.realtime import realtime_tables
from profiling.reporting.realtime_words import LEGEND, realtime_legend, realtime_lines
from profiling.reporting.render import render_console, render_markdown, write_report
from profiling.results.records import Record

Section = dict[str, Any]
Loop = Callable[..., Section]
MakeLoop = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]
Row = dict[str, str]

MIB = 2**20
DASH = "–"
FRAMES, BUDGET, DEADLINES, SLOW, SLOWEST, MEMORY = (
    "Frames",
    "Stage budget, medians; share: of device time, or of host time where no device ran",
    "Deadlines",
    "Slow frames",
    "Slowest frames",
    "Memory over the frames",
)


def titled(records: Sequence[Record]) -> dict[str, list[Row]]:
    """Return the rows of the Markdown tables by title; all lines of a table must have as many cells."""
    found = {}
    for title, table in realtime_tables(records, markdown=True):
        lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
        header, rule, *body = lines
        assert set("".join(rule)) <= set(":-")
        assert {len(line) for line in lines} == {len(header)}
        found[title] = [dict(zip(header, row, strict=True)) for row in body]
    return found


def values(row: Row) -> list[str]:
    return list(row.values())[2:]


def test_frames_hold_the_planted_numbers(make_loop: MakeLoop) -> None:
    costs = {"memory": {"peak_held": 2048 * MIB}, "prepare": {"seconds": 28.0}, "parity": {"rel_l2": 0.004}}
    (row,) = titled([make_loop("cuda_graph", **costs)])[FRAMES]
    assert row == {
        **{"component": "realtime", "variant": "cuda_graph", "status": "ok"},
        **{"frame p50 ms": "9.000", "frame p95 ms": "9.050", "frame p99 ms": "9.100", "frame max ms": "9.500"},
        **{"latency p50 ms": "9.200", "latency p99 ms": "9.400", "late of frames": "0 of 600"},
        **{"holds 24 FPS": "yes", "holds 30 FPS": "yes", "holds 60 FPS": "yes", "holds 120 FPS": "no"},
        **{"sustained FPS": "109.2", "video FPS": "110.2", "audio real-time factor": "1.47×"},
        **{"peak held MiB": "2048", "prepare s": "28.0", "parity rel. L2": "4.0e-03"},
    }


def test_a_target_of_its_own_has_a_column(make_loop: MakeLoop, loop: Loop) -> None:
    section = loop(target_fps=59.94)
    section["deadlines"]["59.94"] = {"fps": 59.94, "budget_ms": 16.68, "holds": False}
    first, second = titled([make_loop("baseline", section), make_loop("compile")])[FRAMES]
    assert [header for header in first if header.startswith("holds")] == [
        f"holds {rate} FPS" for rate in ("24", "30", "59.94", "60", "120")
    ]
    assert (first["holds 59.94 FPS"], second["holds 59.94 FPS"]) == ("no", DASH)


def test_what_was_not_measured_is_a_dash_and_a_measured_zero_is_none(make_loop: MakeLoop, loop: Loop) -> None:
    bare = loop()
    for key in ("audio_rtf", "late", "sustained_fps", "latency_ms", "underruns"):
        del bare[key]
    del bare["deadlines"]["60"]["misses"]
    records = [make_loop("baseline", bare), make_loop("compile")]
    first, second = titled(records)[FRAMES]
    for header in ("audio real-time factor", "late of frames", "sustained FPS", "latency p50 ms"):
        assert first[header] == DASH != second[header]
    deadlines = titled(records)[DEADLINES]
    assert values(deadlines[2]) == ["60", "16.67", "yes", DASH, "0", "0.000", DASH, DASH, DASH, DASH]
    assert values(deadlines[6]) == ["60", "16.67", "yes", "0", "0", "0.000", "3", "1", "0", "0"]
    assert "audio real-time factor" not in titled(records[:1])[FRAMES][0], "nobody made a sound"


def test_the_budget_has_a_row_a_stage(make_loop: MakeLoop) -> None:
    rows = titled([make_loop("cuda_graph")])[BUDGET]
    assert [values(row) for row in rows] == [
        ["world", "4.000", "0.5000", "24.0%"],
        ["picture", "3.000", "0.2500", "18.0%"],
        ["sound", "1.000", "0.1250", "6.0%"],
        ["deliver", "0.2500", "0.06250", "1.5%"],
        ["wait", DASH, "7.500", "45.0%"],
        ["rest", DASH, "0.2000", "1.2%"],
    ]


def test_stages_are_those_of_the_record(make_loop: MakeLoop, loop: Loop) -> None:
    parts = {"whole": {"host_ms": 2.0, "share": 0.12}, "deliver": {"host_ms": 0.5, "share": 0.03}}
    rows = titled([make_loop("one_graph", loop(budget={"parts": parts}))])[BUDGET]
    assert [values(row) for row in rows] == [["whole", "2.000", "12.0%"], ["deliver", "0.5000", "3.0%"]]


def test_deadlines_ascend_and_only_the_target_has_a_player(make_loop: MakeLoop, loop: Loop) -> None:
    section = loop()
    section["deadlines"] = dict(reversed(section["deadlines"].items()))
    rows = titled([make_loop("cuda_graph", section)])[DEADLINES]
    assert [row["FPS"] for row in rows] == ["24", "30", "60", "120"]
    assert values(rows[2])[-4:] == ["3", "1", "0", "0"]
    assert values(rows[3]) == ["120", "8.333", "no", "600", "600", "1.250", DASH, DASH, DASH, DASH]


def test_slow_frames_by_cause_and_the_slowest(make_loop: MakeLoop, stalled: Section) -> None:
    found = titled([make_loop("baseline", stalled), make_loop("cuda_graph")])
    assert [values(row) for row in found[SLOW]] == [
        ["garbage collection", "9", "12", "10.80"],
        ["not attributed", "3", "12", "10.80"],
        ["recompile 0/1", "1", "12", "10.80"],
        [DASH, DASH, "0", "10.80"],
    ]
    assert [values(row) for row in found[SLOWEST]] == [
        ["recompile 0/1, garbage collection", "60", "45.10"],
        *(["garbage collection", str(100 + 20 * i), f"{40 - i}.00"] for i in range(4)),
    ]


def test_memory_with_its_verdict(make_loop: MakeLoop, loop: Loop) -> None:
    leak = {"first": 10 * MIB, "last": 20 * MIB, "min": 10 * MIB, "max": 21 * MIB, "bytes_per_frame": 4096.0}
    section = loop(memory={"host_rss": leak | {"ci95": [4000.0, 4200.0], "leak": True}, "reserved": {"leak": False}})
    section["memory"]["allocated"] = {"first": 0, "last": 0, "bytes_per_frame": 0.0}
    assert [values(row) for row in titled([make_loop("baseline", section)])[MEMORY]] == [
        ["allocated", "0", "0", DASH, DASH, "0.000", DASH, DASH],
        ["reserved", DASH, DASH, DASH, DASH, DASH, DASH, "no"],
        ["host RSS", "10", "20", "10", "21", "4096", "[4000, 4200]", "yes"],
    ]


@pytest.mark.parametrize(
    "wrong", [{"status": "invalid", "reason": "throttled"}, {"status": "ok", "parity": {"passed": False}}]
)
def test_times_that_do_not_count_are_struck_out_and_hold_nothing(
    make_loop: MakeLoop, stalled: Section, wrong: dict[str, Any]
) -> None:
    found = titled([make_loop("compile", stalled, **wrong)])
    (frames,) = found[FRAMES]
    assert frames["frame p50 ms"] == "~~9.000~~"
    assert frames["late of frames"] == "~~12 of 600~~"
    assert not any(header.startswith("holds") for header in frames)
    assert values(found[BUDGET][0]) == ["world", "~~4.000~~", "~~0.5000~~", "~~24.0%~~"]
    assert "holds" not in found[DEADLINES][2]
    assert found[DEADLINES][2]["longest stall ms"] == "~~28.43~~"
    assert found[SLOWEST][0]["ms"] == "~~45.10~~"
    text = render_console([make_loop("compile", stalled, **wrong)], {}, Path())
    assert "~~Struck out~~: failed or invalid" in text


def test_words_over_the_frames(make_loop: MakeLoop, loop: Loop) -> None:
    drifting = loop(
        steady={"from_frame": 0, "settled": False, "p50": 9.5, "p99": 12.0},
        slope={"us_per_frame": 12.0, "ci95": [11.5, 12.5], "growing": True},
        spikes={"period": 50, "count": 12, "first": 49},
        throttle_reasons=["power cap", "heat"],
    )
    del drifting["budget"]
    invalid = {"status": "invalid", "reason": "throttled"}
    assert realtime_lines([make_loop("cuda_graph"), make_loop("compile", drifting, **invalid)]) == (
        "realtime.cuda_graph: steady from frame 12 on, p50 8.990 ms, p99 9.080 ms; "
        "slope −0.0100 µs a frame [−0.100, +0.0800]: not growing by 1% over the run; "
        "0.750 ms of a frame (8.3%) beside the longest path of its stages.",
        "realtime.compile (invalid, its times do not count): its frame times never settled, p50 9.500 ms, "
        "p99 12.00 ms; slope +12.0 µs a frame [+11.5, +12.5]: growing; "
        "a spike every 50 frames, 12 times, first at frame 49; clocks held down: power cap, heat.",
    )
    assert realtime_lines([make_loop("baseline", {"frames": 0})]) == ()


def test_how_the_loops_were_run_is_said_once(make_loop: MakeLoop, loop: Loop) -> None:
    first, second = make_loop("baseline"), make_loop("cuda_graph")
    settings = "600 frames, 60 warm-up frames before them, 1 step a frame, commit fused, schedule {}, pace free"
    fused, overlap = (f"{settings.format(word)}, deliver host." for word in ("sequential", "overlap"))
    assert realtime_legend([first, second]) == (fused, *LEGEND)
    third = make_loop("compile", loop(schedule="overlap"))
    assert realtime_legend([first, second, third])[:2] == (f"baseline and cuda_graph: {fused}", f"compile: {overlap}")


def test_a_loop_is_not_shown_as_a_forward_pass(
    make_loop: MakeLoop, make: Callable[..., Record], tmp_path: Path
) -> None:
    loops = [make_loop("cuda_graph"), make("compile", target="realtime", status="failed", reason="no kernel")]
    for text in (render_console(loops, {}, tmp_path), render_markdown(loops, {}, tmp_path)):
        assert "wall" not in text
        assert "frames per call" not in text
        assert "realtime: 1,093,823,296 parameters, bfloat16, cuda:0" in text
    both = render_console([make("baseline", 28.7), *loops], {}, tmp_path)
    table = both[both.index("wall ms") : both.index("Times are wall clock")]
    assert "baseline" in table
    assert not re.search(r"cuda_graph|compile", table)


def test_records_without_a_loop_change_nothing(three: tuple[Record, ...], tmp_path: Path) -> None:
    assert realtime_tables(three, markdown=True) == realtime_legend(three) == realtime_lines(three) == ()
    for render in (render_console, render_markdown):
        text = render(three, {}, tmp_path)
        assert not re.search(r"Deadlines|Over the frames|deliver|late", text)
        assert "Times are wall clock" in text


def test_report_and_console_show_the_same_tables_once(make_loop: MakeLoop, stalled: Section, save: Save) -> None:
    records = [make_loop("baseline", stalled), make_loop("cuda_graph")]
    run = save(records)
    console, report = write_report(run), (run / "report.md").read_text(encoding="utf-8")
    for title, table in realtime_tables(records, markdown=True):
        assert report.count(f"### {title}\n\n{table}") == 1
    for title, table in realtime_tables(records, markdown=False):
        assert console.count(f"{title}:\n\n{table}") == 1
    assert "### Over the frames\n\n- realtime.baseline: steady" in report
    assert realtime_lines(records)[1] in console


def test_names_cannot_break_the_tables(make_loop: MakeLoop, stalled: Section, tmp_path: Path) -> None:
    stalled["slow"]["causes"] = {"a|b\n*c*": 2}
    stalled["slow"]["frames"] = [{"frame": 1, "ms": 20.0, "causes": ["a|b\n*c*"]}]
    stalled["budget"]["parts"] = {"w|x\n": {"host_ms": 1.0}}
    stalled["commit"] = "<b>*fused*\nlater"
    record = make_loop("x*y|z", stalled, component="a|b*c*")
    found = titled([record])
    for rows in found.values():
        assert (rows[0]["component"], rows[0]["variant"]) == ("a\\|b\\*c\\*", "x\\*y\\|z")
    assert found[SLOW][0]["cause"] == found[SLOWEST][0]["causes"] == "a\\|b \\*c\\*"
    assert found[BUDGET][0]["stage"] == "w\\|x"
    report = render_markdown([record], {}, tmp_path)
    assert "commit \\<b\\>\\*fused\\* later" in report
    assert "- a\\|b\\*c\\*.x\\*y\\|z: holds 60 FPS: no" in report


def test_classic_block_of_a_loop(make_loop: MakeLoop) -> None:
    assert render_classic([make_loop("cuda_graph")]).splitlines()[:3] == [
        "* CUDA Graph - Realtime",
        "  Mean: 9.00 ms, Min: 8.50 ms, Max: 9.50 ms, Std: 0.10 ms",
        "  Avg FPS: 110.2",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"deadlines": 3},
        {"deadlines": {"60": [1], "x": {"fps": "NaN"}, "y": {"fps": True}}},
        {"frame_ms": [9.0], "latency_ms": 3, "frames": "many", "late": "NaN"},
        {"budget": {"parts": [1], "overhead_ms": "NaN"}},
        {"budget": {"parts": {"world": 3, "sound": {"host_ms": float("nan"), "share": "much"}}}},
        {"slow": {"count": 3, "causes": [1], "frames": [None, 3, {"frame": 1}, {"ms": 2.0}]}},
        {"slow": {"count": "NaN", "causes": {"a": "b"}, "frames": [{"frame": 1, "ms": 2.0, "causes": 7}]}},
        {"memory": {"allocated": 3, "reserved": {"first": "NaN", "ci95": [1, "x"], "leak": "no"}}},
        {"steady": 3, "slope": [1], "spikes": "often", "throttle_reasons": "heat", "underruns": [3]},
        {"steps": "one", "commit": 3, "schedule": None, "stages": 7},
    ],
)
def test_hostile_sections_do_not_break_the_others(
    make_loop: MakeLoop, loop: Loop, tmp_path: Path, changes: Section
) -> None:
    records = [make_loop("cuda_graph"), make_loop("odd", loop(**changes))]
    found = titled(records)
    assert found[FRAMES][0]["frame p99 ms"] == "9.100"
    assert found[BUDGET][0]["stage"] == "world"
    for render in (render_console, render_markdown):
        assert not re.search(r"\b(nan|inf|None)\b", render(records, {}, tmp_path))


def test_the_sound_line_says_what_is_decoded_and_how_near_less_would_come(loop: Loop, make_loop: MakeLoop) -> None:
    facts = {"window": "exact", "decoded": 120, "of": 120, "snr_db": {"30": 8.27, "60": 11.36}, "snr_bar_db": 40}
    (line,) = realtime_lines([make_loop("cuda_graph", loop(sound=facts))])
    assert (
        "; sound exact, 120 of 120 latents (newest latents alone, dB to the whole window: 30 at 8.3, 60 at 11.4)"
        in line
    )
    (line,) = realtime_lines([make_loop("cuda_graph", loop(sound={"window": "exact"}))])
    assert "sound" not in line
