"""Hand-written loops of frames: known times, deadlines and bytes in, known cells, words and charts out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from report_records import build, build_loop, cells, drawn, frame_loop, run_data, summary, titled

from profiling.report.answer import notes_section
from profiling.report.charts import POINTS
from profiling.report.realtime import realtime_section, verdict
from profiling.report.run_data import RunData
from profiling.results.frames import series_file
from profiling.results.record import Record

Section = dict[str, Any]
HOLDS = (
    "60 FPS: yes. All 600 frames meet their 16.7 ms budget (p50 9.0, p99 9.1). Holds 24, 30 and 60 FPS. Does not hold "
    "120 FPS. The stage world takes 4.00 of 9.00 ms."
)


def tables(*records: Record) -> dict[str, list[dict[str, str]]]:
    return titled(realtime_section(run_data(*records)))


def test_what_was_not_measured_is_a_dash() -> None:
    bare = frame_loop()
    for key in ("audio_rtf", "late", "sustained_fps", "latency_ms", "underruns"):
        del bare[key]
    first, second = cells(build_loop("baseline", bare), build_loop("compile"))
    for header in ("audio real-time factor", "late frames", "sustained FPS", "latency p50 ms"):
        assert first[header] == "–" != second[header]


def test_times_of_a_wrong_loop_are_struck_and_hold_nothing() -> None:
    wrong = build_loop("compile", status="invalid", reason="recompiled")
    found = tables(wrong, build_loop("cuda_graph"))
    assert cells(wrong, build_loop("cuda_graph"))[0]["sustained FPS"] == "~~109~~"
    assert found["Stage budget, medians"][0]["GPU ms"] == "~~4.000~~"


def test_a_loop_that_holds_and_one_that_stalls(stalled: Section) -> None:
    assert verdict(build_loop("cuda_graph")) == HOLDS
    assert verdict(build_loop("baseline", stalled)) == (
        "60 FPS: no. 12 of 600 frames miss their 16.7 ms budget (p50 9.0, p99 31.2), the longest by 28.4 ms. "
        "Holds 24 and 30 FPS. Does not hold 60 and 120 FPS. The stage world takes 4.00 of 9.00 ms."
    )


def test_what_others_may_have_prevented_is_not_judged(stalled: Section) -> None:
    record = build_loop("baseline", {**stalled, "cpu_lost_share": 0.38})
    assert verdict(record).startswith(
        "60 FPS: undecided: 12 of 600 late; a quiet machine would tell. 12 of 600 frames miss their 16.7 ms budget "
        "(p50 9.0, p99 31.2), the longest by 28.4 ms. Holds 24 and 30 FPS. Undecided: 120 FPS. "
    )
    slow = build_loop("baseline", frame_loop(20.0, late=600, cpu_lost_share=0.38))
    assert "Holds 24, 30 and 60 FPS. Does not hold 120 FPS." in verdict(slow), (
        "without others a frame would take 12.4 ms"
    )


def test_every_frame_may_miss_its_budget() -> None:
    section = frame_loop(23.4, late=600)
    section["deadlines"]["60"] |= {"misses": 600, "bursts": 1}
    section["frame_ms"]["p99"] = 23.8
    assert "60 FPS: no. Every frame misses its 16.7 ms budget (p50 23.4, p99 23.8)." in verdict(
        build_loop("x", section)
    )


def test_a_p99_next_to_its_budget_keeps_the_digits_that_tell_them_apart() -> None:
    near = frame_loop()
    near["frame_ms"]["p99"] = 16.69
    assert "16.67 ms budget (p50 9.00, p99 16.69)" in verdict(build_loop("baseline", near))


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((24, 30, 60, 120), "Holds 24, 30, 60 and 120 FPS."),
        ((24,), "Holds 24 FPS. Does not hold 30, 60 and 120 FPS."),
        ((), "Does not hold 24, 30, 60 and 120 FPS."),
    ],
)
def test_the_rates_that_hold(held: tuple[int, ...], words: str) -> None:
    section = frame_loop()
    for rate in (24, 30, 60, 120):
        late = 0 if rate in held else 600
        section["deadlines"][str(rate)] |= {"misses": late, "bursts": min(late, 1)}
    assert words in verdict(build_loop("baseline", section))


def test_growth_and_leaks_only_where_found() -> None:
    stages = {"world": {"host": 8.0, "device": 11.5}, "sound": {"device": 2.0}}
    section = frame_loop(
        slope={"us_per_frame": 12.0, "ci95": [11.0, 13.0], "growing": True, "stages": stages},
    )
    section["memory"]["allocated"] |= {"bytes_per_frame": 4096.0, "leak": True}
    said = verdict(build_loop("cuda_graph", section))
    assert said == HOLDS + (
        " Frames grow longer by +12.0 µs a frame [+11.0, +13.0], with it world on the host +8.00, world on the device "
        "+11.5 and sound on the device +2.00. It leaks memory: allocated +4096 bytes a frame."
    )


def test_a_wrong_loop_claims_no_rate_and_still_leaks() -> None:
    section = frame_loop(slope={"us_per_frame": 12.0, "ci95": [11.0, 13.0], "growing": True})
    section["memory"]["allocated"] |= {"bytes_per_frame": 4096.0, "leak": True}
    assert verdict(build_loop("compile", section, status="invalid", reason="recompiled")) == (
        "invalid, its times do not count. 600 frames were timed. It leaks memory: allocated +4096 bytes a frame."
    )
    wrong = {"reference": "fp32 eager", "passed": False}
    assert (
        verdict(build_loop("compile", parity=wrong)) == "parity failed, its times do not count. 600 frames were timed."
    )
    crashed = build("compile", target="realtime", component="realtime", status="failed", reason="no kernel")
    assert verdict(crashed) == "failed, its times do not count."
    nothing = build_loop("compile", {"frames": 0, "target_fps": 60.0, "pace": "free"})
    assert verdict(nothing) == "no frame was compared with a deadline."


def test_the_report_says_what_limits_the_clocks_and_how_old_inputs_are() -> None:
    ages = {"keys": summary(16.5, 600, samples=[])}
    loop = build_loop("a", frame_loop(input_age_ms=ages, limited_share={"power cap": 0.25}))
    (row,) = cells(loop)
    assert (row["age of keys ms"], row["clocks limited by"]) == ("16.50", "power cap 25%")


def test_sound_that_is_made_too_slowly_runs_dry() -> None:
    slow = build_loop("a", frame_loop(audio_rtf=0.9))
    assert "Audio runs dry: it is made at 0.900× real time." in verdict(slow)


@pytest.mark.parametrize(("late", "said"), [(0, ""), (5, "Undecided whether audio runs dry"), (60, "Audio runs dry")])
def test_a_loop_that_is_paced_by_its_sound_keeps_up_where_it_holds_that_rate(late: int, said: str) -> None:
    """A late frame delays all later ones by a period, so late frames decide the rate of the sound, not the median."""
    rates = frame_loop()["deadlines"] | {
        "60": {"fps": 60.0, "budget_ms": 1000 / 60, "misses": late, "bursts": late, "longest_run": 1}
        | {"longest_stall_ms": 1.0}
    }
    paced = frame_loop(pace="realtime", wall_fps=59.4, audio_rtf=0.99, late=late, deadlines=rates)
    words = verdict(build_loop("a", paced))
    assert said in words
    assert ("udio" in words) == bool(said)


def kept(data: RunData, frames: np.ndarray) -> RunData:
    """Leave the series of a loop where a run leaves it."""
    path = data.folder / series_file("realtime.cuda_graph")
    path.parent.mkdir()
    np.savez_compressed(path, frame_ms=frames)
    return data


def test_frames_stand_against_the_deadline_with_their_causes(stalled: Section, tmp_path: Any) -> None:
    frames = 9 + 0.1 * np.random.default_rng(0).standard_normal(100_000)
    frames[61], frames[49_999] = 45.1, 1.5  # primes: no stride meets both
    data = kept(run_data(build_loop("cuda_graph", stalled), folder=tmp_path), frames)
    chart = realtime_section(data).charts[0]
    figure, series = drawn(chart)
    assert {(61, 45.1), (49_999, 1.5)} <= set(series["frame time"])
    assert len(series["frame time"]) <= POINTS
    assert "lowest and highest of each stretch" in chart.note
    assert series["slow: recompile"] == [(60, 45.1)], "at its place, however long"
    assert sorted(frame for frame, _ in series["slow: garbage collection"]) == [60, *(100 + 20 * i for i in range(8))]
    assert (figure.level, figure.shaded_to) == ((1000 / 60, "deadline, 60 FPS"), 12)


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_frames_that_cannot_be_read_cost_a_line(content: bytes | None, tmp_path: Any) -> None:
    data = run_data(build_loop("cuda_graph"), folder=tmp_path)
    if content is not None:
        (tmp_path / "cells").mkdir()
        (tmp_path / series_file("realtime.cuda_graph")).write_bytes(content)
    section = realtime_section(data)
    assert not section.charts[0]
    assert any(line.startswith("no frames to draw: cells/realtime.cuda_graph") for line in section.legend)


def test_each_network_of_a_loop_says_how_to_get_weights() -> None:
    hints = {"world": "none", "picture": "fetch it"}
    lines = notes_section(run_data(build_loop("a", weights_hint=None, weights_hints=hints))).lines
    assert lines == ("realtime: random weights; world: none", "realtime: random weights; picture: fetch it")
