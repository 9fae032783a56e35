"""`python -m profiling.history`: the fastest correct variant of every run, in order, as tables and as a chart."""

import re
from datetime import datetime
from pathlib import Path

import plotly.graph_objects as go
import pytest
from msgspec.structs import replace
from parsed_page import Parsed
from planted_runs import ENVIRONMENT, WARM, WRONG, cell, dated, failed, loop, noisy, write_run

from profiling import history
from profiling.compare import command
from profiling.history import _section, history_text, main, read_history
from profiling.report.table import WIDTH
from profiling.results.loop import SoundWindow

RESULTS = Path(__file__).parents[3] / "docs" / "results"
DATES = ("2026-01-01T23:30:00+00:00", "2026-01-03T00:30:00+02:00", "2026-01-09T00:00:00+00:00")


@pytest.fixture
def runs(tmp_path):
    """Three runs, written in another order than they were made in: 8 ms, then 4 ms, then 5 ms."""
    wrong = cell("wrong", noisy(1), parity=WRONG)
    (tmp_path / "deep").mkdir()
    days = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3)]
    last, first, second = dated(days[2], "c", dirty=True), dated(days[0], "a"), dated(days[1], "b")
    write_run(tmp_path / "a", cell("v", noisy(5)), cell("w", noisy(9)), environment=last)
    write_run(tmp_path / "deep" / "b", cell("v", noisy(8)), wrong, failed("failed"), environment=first)
    write_run(tmp_path / "c", cell("v", noisy(8)), cell("w", noisy(4)), environment=second)
    return tmp_path


def test_the_fastest_correct_variant_run_by_run(runs):
    ((title, series),) = read_history(runs).items()
    assert title == "net · generic_forward · GPU of 2026 · float32 · full"
    assert [(point.run, point.variant, point.revision) for point in series] == [
        ("deep/b", "v", "a" * 7),
        ("c", "w", "b" * 7),
        ("a", "v", "c" * 7 + "+"),
    ]
    assert [point.p50_ms for point in series] == pytest.approx([8, 4, 5], rel=0.01)
    assert [point.vs_first for point in series] == [None, pytest.approx(2, rel=0.02), pytest.approx(1.6, rel=0.02)]
    assert series[2].vs_previous == pytest.approx(0.8, rel=0.02)


def test_a_run_of_schema_1_has_the_revision_of_the_tool(tmp_path):
    old = {"captured_at": DATES[0], "git": {"revision": "c" * 40, "dirty": True}}
    write_run(tmp_path / "run", cell(samples=noisy(1)), environment=old)
    (((point,),)) = read_history(tmp_path).values()
    assert point.revision == f"tool {'c' * 7}+"


def test_a_disturbed_run_is_a_hollow_point_without_speedups(runs):
    busy = cell("v", noisy(6))
    conditions = replace(WARM, cpu_lost_share=0.38)
    busy = replace(busy, metrics=replace(busy.metrics, latency=conditions))
    write_run(runs / "d", busy, environment=dated("2026-01-04T00:00:00+00:00", "d"))
    history = read_history(runs)
    ((*others, point),) = history.values()
    assert point.disturbed == "other processes took 38% of the CPU"
    assert (point.vs_first, point.vs_previous) == (None, None)
    assert not any(each.disturbed for each in others)
    assert "! disturbed" in history_text(history, as_markdown=False)
    (chart,) = _section(history).charts
    symbols = {trace["name"]: trace["marker"].get("symbol") for trace in chart.views[0].figure["data"][1:]}
    assert symbols == {"v": ["circle", "circle", "circle-open"], "w": "square"}


@pytest.mark.parametrize(
    ("other_ms", "says", "marks"),
    [
        (5.025, "cannot tell (v)", None),  # by 0.5%, as equal code may
        (5.0, "v", "! tied"),
        (6.0, "v", None),
    ],
)
def test_where_a_run_cannot_tell_the_fastest_history_does_not_either(other_ms, says, marks, tmp_path):
    write_run(tmp_path / "run", *(cell(name, noisy(ms, spread=1e-4)) for name, ms in (("v", 5.0), ("w", other_ms))))
    history = read_history(tmp_path)
    ((point,),) = history.values()
    assert (point.fastest, point.marks) == (says, marks)
    text = history_text(history, as_markdown=False)
    assert ("could not tell which variant is fastest" in text) is (says != "v")
    assert ("tied: another variant" in text) is (marks == "! tied")


def test_what_does_not_compare_has_a_series_of_its_own(runs):
    write_run(runs / "d", cell("v", noisy(0.1), scale="tiny"), environment=dated(DATES[0], "d"))
    write_run(runs / "e", cell("v", noisy(0.1), dtype="bfloat16"), environment=None)
    write_run(runs / "f", cell("v", noisy(0.1), parameters=2))
    write_run(runs / "g", cell("v", noisy(0.1), frames_per_call=2))
    assert sorted(map(len, read_history(runs).values())) == [1, 1, 1, 1, 3]


@pytest.mark.parametrize(
    "option",
    [
        *({"steps": 1}, {"guidance": 3.0}, {"deliver": "device"}, {"commit": "separate"}, {"pace": "realtime"}),
        {"sound": SoundWindow(window="windowed", decoded=15, window_latents=120)},
    ],
)
def test_a_loop_of_different_work_has_a_series_of_its_own(tmp_path, option):
    for number, options in enumerate(({}, option, {"schedule": "overlap"})):
        write_run(tmp_path / str(number), loop(**options), environment=dated(f"2026-01-0{number + 1}"))
    series = read_history(tmp_path).values()
    assert sorted([point.run for point in points] for points in series) == [["0", "2"], ["1"]]


def test_autocast_has_a_series_of_its_own():
    """Two committed runs of one training step differ in autocast alone; their records have the dtype of the weights."""
    training = [title for title in read_history(RESULTS) if title.startswith("resnet50_training")]
    assert sorted("autocast bfloat16" in title for title in training) == [False, False, True]


@pytest.mark.parametrize("text", ['{"schema": 1, "target"', "garbage\n", "[1, 2]\n"])
def test_a_run_that_cannot_be_read_is_skipped_with_a_line(runs, capsys, text):
    (runs / "killed").mkdir()
    (runs / "killed" / "results.jsonl").write_text(text)
    assert main([str(runs)]) == 0
    printed = capsys.readouterr()
    assert [date in printed.out for date in ("2026-01-01", "2026-01-02", "2026-01-03")] == [True, True, True]
    assert printed.err.startswith(f"skipped {runs / 'killed'}: ")
    assert len(printed.err.splitlines()) == 1


def test_an_unexpected_error_skips_the_run_that_raised_it(runs, capsys, monkeypatch):
    load = history.read_run

    def fails_once(run):
        if run.name == "c":
            raise ValueError("planted")
        return load(run)

    monkeypatch.setattr(history, "read_run", fails_once)
    assert main([str(runs)]) == 0
    printed = capsys.readouterr()
    assert "2026-01-02" not in printed.out
    assert "ValueError: planted" in printed.err


def test_the_table(runs, capsys):
    assert main([str(runs)]) == 0
    (last,) = [line for line in capsys.readouterr().out.splitlines() if "2026-01-03" in line]
    assert last.split()[-2:] == ["1.60×", "0.800×"], "8 / 5 and 4 / 5"
    assert not list(runs.glob("*.svg"))


def test_the_committed_runs_fit_the_console(capsys):
    assert main([str(RESULTS)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= WIDTH
    assert "h200_realtime_overlap" in printed


def test_no_runs_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "holds no runs" in capsys.readouterr().err
    write_run(tmp_path / "run", failed("v"))
    assert main([str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def write_runs(folder, dates):
    """Write a run a date: v at 8, 4 and 5 ms, w at 9, 3 and 6."""
    for i, (date, v, w) in enumerate(zip(dates, (8, 4, 5), (9, 3, 6), strict=True)):
        cells = (cell("v", noisy(v, seed=i)), cell("w", noisy(w, seed=9 + i)))
        write_run(folder / f"run{i}", *cells, environment=dated(date, "abc"[i], dirty=i == 2))
    return folder


@pytest.fixture
def page(tmp_path):
    """Return the page of the history of three runs of these dates."""

    def make(*dates):
        assert main([str(write_runs(tmp_path, dates)), "--html", str(tmp_path / "page.html")]) == 0
        parsed = Parsed((tmp_path / "page.html").read_text(encoding="utf-8"))
        for figure in parsed.specs()["history"]:
            go.Figure(figure)  # raises where a property is misspelt or out of its range
        return parsed

    return make


def test_the_chart_draws_the_points_of_the_table(page, tmp_path, capsys):
    (figure,) = page(*DATES).specs()["history"]
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("run") and "2026" in line]
    through, *variants = figure["data"]
    assert {trace["name"]: len(trace["x"]) for trace in variants} == {"v": 2, "w": 1}
    assert len({trace["marker"]["symbol"] for trace in variants}) == 2
    ((series),) = read_history(tmp_path).values()
    assert through["y"] == pytest.approx([point.p50_ms for point in series], rel=1e-5)
    for trace in variants:
        for i, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
            place = through["x"].index(x)
            run, date, time, git, variant, ms = rows[place][:6]
            assert (variant, float(ms)) == (trace["name"], pytest.approx(y, rel=1e-3))
            for text in (f"{date} {time}", git, run, variant, ms):
                assert text in trace["text"][i]
            low, high = series[place].ci95
            assert y - trace["error_y"]["arrayminus"][i] == pytest.approx(low, rel=1e-4)
            assert y + trace["error_y"]["array"][i] == pytest.approx(high, rel=1e-4)


def test_dates_are_drawn_at_their_time_in_utc(page):
    (figure,) = page(*DATES).specs()["history"]
    assert figure["layout"]["xaxis"]["type"] == "date"
    assert [datetime.fromisoformat(x).isoformat() for x in figure["data"][0]["x"]] == [
        *("2026-01-01T23:30:00", "2026-01-02T22:30:00", "2026-01-09T00:00:00")
    ]


@pytest.mark.parametrize("dates", [(*DATES[:2], None), (*DATES[:2], "yesterday"), (DATES[0],) * 3])
def test_runs_without_different_dates_are_drawn_in_their_order(page, dates):
    (figure,) = page(*dates).specs()["history"]
    assert figure["layout"]["xaxis"]["type"] == "category"
    places = figure["data"][0]["x"]
    assert [place.split(":")[0] for place in places] == ["1", "2", "3"]
    assert sorted(x for trace in figure["data"][1:] for x in trace["x"]) == places


def test_the_page_shows_the_tables_of_the_text_and_does_not_change_it(page, tmp_path, capsys):
    page(*DATES)
    printed = capsys.readouterr()
    assert printed.err == f"open in a browser: {tmp_path / 'page.html'}\n"
    text = (tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)]
    lines = [line for line in printed.out.splitlines() if line.startswith("run") and "2026" in line]
    assert [" ".join(row).split() for row in rows[1:]] == [line.split() for line in lines]
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == printed.out


def test_a_page_that_cannot_be_written_is_code_two_below_the_text(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    folder, file = write_runs(tmp_path, DATES), tmp_path / "page.html"
    monkeypatch.setattr(command, "write_text", full)
    assert main([str(folder), "--html", str(file)]) == 2
    printed = capsys.readouterr()
    assert "2026-01-09" in printed.out
    assert "No space left on device" in printed.err
    assert not file.exists()


def test_a_page_without_a_folder_is_refused_first(tmp_path, capsys):
    folder = write_runs(tmp_path, DATES)
    assert main([str(folder), "--html", str(tmp_path / "nowhere" / "page.html")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"mkdir -p {tmp_path / 'nowhere'}" in printed.err


def test_an_environment_that_is_missing_leaves_the_times(tmp_path):
    write_run(tmp_path / "run", cell(samples=noisy(1)), environment=None)
    (((point,),)) = read_history(tmp_path).values()
    assert (point.date, point.revision) == (None, None)
    assert ENVIRONMENT["captured_at"] is not None
