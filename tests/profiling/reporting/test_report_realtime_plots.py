"""The plots of a loop of frames: what is drawn where, how large the files are, and what a broken file costs."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from profiling.reporting.budget_plot import BUDGET_FILE, plot_budget
from profiling.reporting.frame_plot import FRAMES_FILE, envelope, plot_frames
from profiling.reporting.frame_series import frames_file
from profiling.reporting.render import write_report
from profiling.results.records import Record

Section = dict[str, Any]
Loop = Callable[..., Section]
Make = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]


def noisy(count: int, seed: int = 0) -> NDArray[np.float64]:
    """Make frame times around 9 ms, not one like the other."""
    return 9 + 0.1 * np.random.default_rng(seed).standard_normal(count)


def keep(run: Path, record: Record, frames: NDArray[np.float64]) -> None:
    """Leave the series of a loop where it leaves them."""
    (run / "cells").mkdir(exist_ok=True)
    np.savez_compressed(run / frames_file(record), frame_ms=frames, wait_ms=np.full(frames.size, np.nan))


def labelled(panel: Any) -> dict[str, Any]:
    handles, labels = panel.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def test_frames_deadline_ramp_and_slow_frames_by_cause(
    make_loop: Make, stalled: Section, figures: list[Any], tmp_path: Path
) -> None:
    record, frames = make_loop("baseline", stalled), noisy(600)
    assert plot_frames([(record, frames)], tmp_path / FRAMES_FILE)
    (panel,) = figures[0].axes
    drawn = labelled(panel)
    assert list(drawn) == [
        *("frame time", "deadline at 60 FPS", "before it settled"),
        *("recompile", "garbage collection", "not attributed"),
    ]
    assert points(drawn["frame time"]) == list(enumerate(frames))
    assert set(drawn["deadline at 60 FPS"].get_ydata()) == {1000 / 60}
    ramp = drawn["before it settled"].get_extents().transformed(panel.transData.inverted())
    assert (ramp.x0, ramp.x1) == pytest.approx((0, 12))
    assert points(drawn["recompile"]) == [(60, 45.1)]
    assert points(drawn["garbage collection"])[:2] == [(60, 45.1), (100, 40.0)], "a frame may have two causes"
    assert points(drawn["not attributed"]) == [(300, 30.0), (320, 29.0), (340, 28.0)]
    looks = {(drawn[cause].get_color(), drawn[cause].get_marker()) for cause in list(drawn)[3:]}
    assert len(looks) == 3
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == list(drawn)


def test_ten_thousand_frames_of_many_variants_stay_small(make_loop: Make, stalled: Section, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    loops = [(make_loop(f"variant_{i}", stalled), noisy(10_000, seed=i)) for i in range(8)]
    for _, frames in loops:
        frames[60] = 45.1
    assert plot_frames(loops, tmp_path / FRAMES_FILE)
    assert plot_frames(loops[:1], tmp_path / "one.svg")
    for name in (FRAMES_FILE, "one.svg"):
        assert 10_000 < (tmp_path / name).stat().st_size < 2**20
        assert ET.parse(tmp_path / name).getroot().tag.endswith("}svg")


def test_thinning_keeps_what_stands_out() -> None:
    frames = noisy(10_000)
    frames[[123, 5000, 9999]] = [40.0, 0.5, 60.0]
    frames[7000:7100] = np.nan
    places = envelope(frames, 1000)
    assert places.size <= 1000
    assert {123, 5000, 9999} <= set(places)
    assert (np.diff(places) > 0).all()
    assert not np.isnan(frames[places]).any()
    assert envelope(frames[:900], 1000).tolist() == list(range(900))


@pytest.mark.parametrize(("end", "shaded"), [({"from_frame": 0, "settled": True}, None), ({"settled": False}, 600)])
def test_the_shade_ends_where_it_settled(
    make_loop: Make, loop: Loop, figures: list[Any], tmp_path: Path, end: Section, shaded: float | None
) -> None:
    assert plot_frames([(make_loop("baseline", loop(steady=end)), noisy(600))], tmp_path / FRAMES_FILE)
    (panel,) = figures[0].axes
    drawn = labelled(panel)
    assert ("before it settled" in drawn) == (shaded is not None)
    if shaded is not None:
        ramp = drawn["before it settled"]
        assert ramp.get_extents().transformed(panel.transData.inverted()).x1 == pytest.approx(shaded)


def test_titles_say_what_does_not_count_and_what_is_not_marked(
    make_loop: Make, stalled: Section, figures: list[Any], tmp_path: Path
) -> None:
    stalled["slow"]["count"] = 81
    bad = make_loop("a $\\frac$ b", status="invalid", reason="recompiled")
    assert plot_frames([(make_loop("baseline", stalled), noisy(600)), (bad, noisy(9))], tmp_path / FRAMES_FILE)
    titles = [panel.get_title() for panel in figures[0].axes]
    assert titles[0] == "realtime.baseline, the 12 slowest of 81 slow frames marked"
    assert titles[1].endswith("b (invalid: its times do not count)")


def test_a_frame_of_seconds_does_not_flatten_the_others(make_loop: Make, figures: list[Any], tmp_path: Path) -> None:
    far = noisy(600)
    far[60] = 20_000.0
    assert plot_frames([(make_loop("a"), noisy(600)), (make_loop("b"), far)], tmp_path / FRAMES_FILE)
    assert [panel.get_yscale() for panel in figures[0].axes] == ["linear", "log"]


def test_marks_beside_the_frames_are_left_out(
    make_loop: Make, stalled: Section, figures: list[Any], tmp_path: Path
) -> None:
    assert plot_frames([(make_loop("baseline", stalled), noisy(100))], tmp_path / FRAMES_FILE)
    drawn = labelled(figures[0].axes[0])
    assert points(drawn["garbage collection"]) == [(60, 45.1)]
    assert "not attributed" not in drawn


def heights(panel: Any) -> dict[str, list[tuple[float, float, float]]]:
    """Return (middle, bottom, height) of each bar by its label."""
    return {
        bars.get_label(): [(bar.get_x() + bar.get_width() / 2, bar.get_y(), bar.get_height()) for bar in bars]
        for bars in panel.containers
    }


def test_stages_in_a_row_are_stacked_against_the_budget(
    make_loop: Make, loop: Loop, figures: list[Any], tmp_path: Path
) -> None:
    on_cpu = {"world": {"host_ms": 5.0}, "deliver": {"host_ms": 0.5}, "rest": {"host_ms": 3.0}}
    records = [make_loop("baseline"), make_loop("compile", loop(budget={"parts": on_cpu, "overhead_ms": -0.125}))]
    assert plot_budget(records[:1], tmp_path / BUDGET_FILE)
    assert plot_budget(records[1:], tmp_path / BUDGET_FILE)
    first, second = (figure.axes[0] for figure in figures)
    assert heights(first) == {
        **{"world": [(0, 0, 4.0)], "picture": [(0, 4.0, 3.0)], "sound": [(0, 7.0, 1.0)], "deliver": [(0, 8.0, 0.25)]},
        "beside the stages": [(0, 8.25, 0.75)],
    }
    assert heights(second) == {"world": [(0, 0, 5.0)], "deliver": [(0, 5.0, 0.5)], "beside the stages": [(0, 5.5, 0)]}
    assert set(labelled(first)["budget at 60 FPS"].get_ydata()) == {1000 / 60}
    assert first.get_title() == "device time of the stages, stacked, and the rest of the frame on top"
    assert second.get_title().startswith("host time of the stages, stacked")


def test_stages_that_overlap_stand_side_by_side(
    make_loop: Make, loop: Loop, figures: list[Any], tmp_path: Path
) -> None:
    overlap = make_loop("compile", loop(schedule="overlap"))
    assert plot_budget([overlap, make_loop("baseline")], tmp_path / BUDGET_FILE)
    panel = figures[0].axes[0]
    beside = panel.containers[:4]
    assert [bars[0].get_y() for bars in beside] == [0] * 4
    assert [bars[0].get_height() for bars in beside] == [4.0, 3.0, 1.0, 0.25]
    edges = [(bars[0].get_x(), bars[0].get_x() + bars[0].get_width()) for bars in beside]
    assert [end for _, end in edges[:-1]] == pytest.approx([start for start, _ in edges[1:]])
    assert (
        panel.get_title().splitlines()[1] == "device time of the stages, side by side: they overlap and do not add up"
    )


def test_only_right_loops_have_a_bar(make_loop: Make, make: Make, figures: list[Any], tmp_path: Path) -> None:
    wrong = [make_loop("invalid", status="invalid", reason="throttled"), make_loop("far", parity={"passed": False})]
    assert not plot_budget([*wrong, make("baseline", 28.7)], tmp_path / BUDGET_FILE)
    assert plot_budget([*wrong, make_loop("compile")], tmp_path / BUDGET_FILE)
    assert [text.get_text() for text in figures[0].axes[0].get_xticklabels()] == ["realtime.compile"]


def test_the_report_shows_both_plots(make_loop: Make, save: Save) -> None:
    pytest.importorskip("matplotlib")
    record = make_loop("cuda_graph")
    run = save([record])
    keep(run, record, noisy(600))
    text = write_report(run)
    assert text.endswith(f"\nplot: {run / FRAMES_FILE}\nplot: {run / BUDGET_FILE}")
    report = (run / "report.md").read_text(encoding="utf-8")
    assert f"![Frame time over frames]({FRAMES_FILE})\n\n![Stage budget]({BUDGET_FILE})" in report


def test_a_crash_leaves_its_frames(make: Make, save: Save, figures: list[Any]) -> None:
    record = make("compile", target="realtime", component="realtime", status="failed", reason="out of memory")
    run = save([record])
    keep(run, record, noisy(100))
    assert str(run / FRAMES_FILE) in write_report(run)
    assert len(labelled(figures[0].axes[0])["frame time"].get_xdata()) == 100
    assert not (run / BUDGET_FILE).exists()


def broken(path: Path, how: str) -> None:
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    if how == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "text":
        path.write_text("frames")
    elif how == "no archive":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif how == "other series":
        np.savez(path, wait_ms=np.ones(3))
    elif how == "objects":
        np.savez(path, frame_ms=np.array([{}], dtype=object))
    elif how == "unknown compression":
        path.write_bytes(whole[: directory + 10] + b"\x63" + whole[directory + 11 :])
    else:
        assert how == "missing"
        path.unlink()


@pytest.mark.parametrize(
    "how", ["missing", "cut off", "text", "no archive", "other series", "objects", "unknown compression"]
)
def test_a_broken_file_costs_a_line_and_nothing_else(make_loop: Make, save: Save, figures: list[Any], how: str) -> None:
    records = [make_loop("baseline"), make_loop("cuda_graph")]
    run = save(records)
    for record in records:
        keep(run, record, noisy(600))
    broken(run / frames_file(records[0]), how)
    lines = [line for line in write_report(run).splitlines() if line.startswith("no frames to plot: ")]
    assert len(lines) == 1
    assert "cells/realtime.baseline.frames.npz" in lines[0]
    assert [panel.get_title() for panel in figures[0].axes] == ["realtime.cuda_graph"]
    assert "realtime.baseline" in (run / "report.md").read_text(encoding="utf-8")


def test_a_plot_of_frames_that_are_gone_goes_too(make_loop: Make, save: Save) -> None:
    pytest.importorskip("matplotlib")
    record = make_loop("cuda_graph")
    run = save([record])
    keep(run, record, noisy(600))
    write_report(run)
    (run / frames_file(record)).unlink()
    write_report(run)
    assert not (run / FRAMES_FILE).exists()
    assert FRAMES_FILE not in (run / "report.md").read_text(encoding="utf-8")


def test_frames_that_are_no_numbers_are_not_drawn(make_loop: Make, save: Save) -> None:
    record = make_loop("cuda_graph")
    run = save([record])
    keep(run, record, np.full(5, np.nan))
    assert FRAMES_FILE not in write_report(run)


def test_without_matplotlib_one_line_says_so(make_loop: Make, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    record = make_loop("cuda_graph")
    run = save([record])
    keep(run, record, noisy(600))
    text = write_report(run)
    assert text.count("no plot: matplotlib is not installed") == 1
    assert "holds 60 FPS: yes" in text
    assert not list(run.glob("*.svg"))
