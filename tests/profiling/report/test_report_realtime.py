"""Hand-written loops of frames: known times, deadlines and bytes in, known words and charts out."""

import numpy as np
import pytest
from report_records import build, build_loop, frame_loop, rate, rates, run_data, stalled_loop, summary

from profiling.report.charts import POINTS
from profiling.report.realtime import realtime_section, verdict
from profiling.results.frames import series_file

LONGEST = "The stage world takes 4.00 of 9.00 ms."
MEET = "All 600 frames meet their 16.7 ms budget: p50 9.0, p99 9.1 ms."
HOLDS = f"60 FPS: yes, 0 of 600 late (at most 0.5%). {MEET} Holds 24, 30 and 60 FPS. Does not hold 120 FPS. {LONGEST}"
STALLS = "12 of 600 frames miss their 16.7 ms budget, the longest by 28.4 ms: p50 9.0, p99 31.2 ms."
WRONG = "invalid, its times do not count. 600 frames were timed."
LEAK = "It leaks memory: allocated +4096 bytes a frame."


def test_the_verdict_on_a_loop():
    for section, words in (
        (stalled_loop(), f"60 FPS: not held. {STALLS} Holds 24 and 30 FPS. Does not hold 60 and 120 FPS. {LONGEST}"),
        (
            stalled_loop(cpu_lost_share=0.38),
            f"60 FPS: undecided: 12 of 600 late; a quiet machine would tell. {STALLS} Holds 24 and 30 FPS. "
            f"Undecided: 120 FPS. {LONGEST}",
        ),
        (
            # Without others a frame would take 12.4 ms.
            frame_loop(late=600, cpu_lost_share=0.38, deadlines=rates(24, 30), frame_ms=summary(20.0, 600, p99=20.4)),
            "60 FPS: undecided: 600 of 600 late; a quiet machine would tell. Every frame misses its 16.7 ms budget: "
            "p50 20.0, p99 20.4 ms. Holds 24 and 30 FPS. Does not hold 120 FPS. The stage world takes 4.00 of "
            "20.00 ms.",
        ),
        (
            frame_loop(deadlines=rates(), late=600, frame_ms=summary(9.0, p99=16.69)),  # as many digits as tell
            "60 FPS: not held. Every frame misses its 16.67 ms budget: p50 9.00, p99 16.69 ms. "
            f"Does not hold 24, 30, 60 and 120 FPS. {LONGEST}",
        ),
    ):
        assert verdict(build_loop("baseline", section)) == words


def test_growth_and_leaks_only_where_found_and_a_wrong_loop_claims_no_rate():
    stages = {"world": {"host": 8.0, "device": 11.5}, "sound": {"device": 2.0}}
    section = frame_loop(slope={"us_per_frame": 12.0, "ci95": [11.0, 13.0], "growing": True, "stages": stages})
    section["memory"]["allocated"] |= {"bytes_per_frame": 4096.0, "leak": True}
    assert verdict(build_loop("cuda_graph", section)) == (
        f"{HOLDS} Frames grow longer by +12.0 µs a frame [+11.0, +13.0], with it world on the host +8.00, world on the "
        f"device +11.5 and sound on the device +2.00. {LEAK}"
    )
    invalid = build_loop("compile", section, status="invalid", reason="recompiled")
    assert verdict(invalid) == f"{WRONG} {LEAK}"
    wrong = build_loop("compile", parity={"reference": "fp32 eager", "passed": False})
    assert verdict(wrong) == WRONG.replace("invalid", "parity failed")
    crashed = build("compile", target="realtime", component="realtime", status="failed", reason="no kernel")
    assert verdict(crashed) == "failed, its times do not count."
    nothing = build_loop("compile", {"frames": 0, "target_fps": 60.0, "pace": "free"})
    assert verdict(nothing) == "no frame was compared with a deadline."


@pytest.mark.parametrize(("late", "said"), [(0, ""), (5, "Undecided whether audio runs dry"), (60, "Audio runs dry")])
def test_a_loop_that_is_paced_by_its_sound_keeps_up_where_it_holds_that_rate(late, said):
    """A late frame delays all later ones by a period, so late frames decide the rate of the sound, not the median."""
    deadlines = rates(24, 30, 60) | {"60": rate(60, late)}
    paced = frame_loop(pace="realtime", wall_fps=59.4, audio_rtf=0.99, late=late, deadlines=deadlines)
    words = verdict(build_loop("a", paced))
    assert said in words
    assert ("udio" in words) == bool(said)


def test_frames_stand_against_the_deadline_with_their_causes(tmp_path):
    frames = 9 + 0.1 * np.random.default_rng(0).standard_normal(100_000)
    frames[61], frames[49_999] = 45.1, 1.5  # primes: no stride meets both
    file = tmp_path / series_file("realtime.cuda_graph")
    file.parent.mkdir()
    np.savez_compressed(file, frame_ms=frames)
    chart = realtime_section(run_data(build_loop("cuda_graph", stalled_loop()), folder=tmp_path)).charts[0]
    (figure,) = chart.drawings.values()
    assert {(61, 45.1), (49_999, 1.5)} <= set(figure.line.points)
    assert len(figure.line.points) <= POINTS
    assert "lowest and highest of each stretch" in chart.note
    marks = {series.name: sorted(series.points) for series in figure.marks}
    assert marks["slow: recompile"] == [(60, 45.1)], "at its place, however long"
    assert [frame for frame, _ in marks["slow: garbage collection"]] == [60, *(100 + 20 * i for i in range(8))]
    assert (figure.level, figure.shaded_to) == ((1000 / 60, "deadline, 60 FPS"), 12)


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_frames_that_cannot_be_read_cost_a_line(content, tmp_path):
    if content is not None:
        (tmp_path / "cells").mkdir()
        (tmp_path / series_file("realtime.cuda_graph")).write_bytes(content)
    section = realtime_section(run_data(build_loop("cuda_graph"), folder=tmp_path))
    assert not section.charts[0]
    assert any(line.startswith("no frames to draw: cells/realtime.cuda_graph") for line in section.legend)
