"""`python -m profiling.history FOLDER --html FILE`: the page holds the points and rows of the text."""

import re
import sys
from datetime import datetime

import plotly.graph_objects as go
import pytest
from hand_made import cell, dated, noisy, write_run

from profiling import history
from profiling.comparison import page_file
from profiling.comparison.timeline import timelines
from profiling.history import main

DATES = ("2026-01-01T23:30:00+00:00", "2026-01-03T00:30:00+02:00", "2026-01-09T00:00:00+00:00")


def write_runs(folder, dates):
    """Write a run a date: v at 8, 4 and 5 ms, w at 9, 3 and 6."""
    for i, (date, v, w) in enumerate(zip(dates, (8, 4, 5), (9, 3, 6), strict=True)):
        cells = (cell("v", noisy(v, seed=i)), cell("w", noisy(w, seed=9 + i)))
        write_run(folder / f"run{i}", *cells, environment=dated(date, "abc"[i], dirty=i == 2))
    return folder


@pytest.fixture
def page(tmp_path, parse):
    """Return the figures of the history of three runs of these dates."""

    def make(*dates):
        assert main([str(write_runs(tmp_path, dates)), "--html", str(tmp_path / "page.html")]) == 0
        parsed = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
        for figure in parsed.specs()["history"]:
            go.Figure(figure)  # raises where a property is misspelt or out of its range
        return parsed

    return make


def test_the_chart_draws_the_points_of_the_table(page, tmp_path, capsys):
    (figure,) = page(*DATES).specs()["history"]
    printed = capsys.readouterr().out
    line, *variants = figure["data"]
    assert {trace["name"]: len(trace["x"]) for trace in variants} == {"v": 2, "w": 1}
    assert len({trace["marker"]["symbol"] for trace in variants}) == 2
    ((stones),) = timelines(tmp_path, print).values()
    assert line["y"] == pytest.approx([stone.p50_ms for stone in stones], rel=1e-5)
    for trace in variants:
        for i, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
            place = line["x"].index(x)
            date, git, run, variant, ms = printed.splitlines()[4 + place].split()[:5]
            assert (variant, float(ms)) == (trace["name"], pytest.approx(y, rel=1e-3))
            for told in (date, git, run, variant, f"{ms} ms"):
                assert told in trace["text"][i]
            low, high = stones[place].ci95
            assert y - trace["error_y"]["arrayminus"][i] == pytest.approx(low, rel=1e-4)
            assert y + trace["error_y"]["array"][i] == pytest.approx(high, rel=1e-4)


def test_dates_are_drawn_where_they_are_in_utc(page):
    (figure,) = page(*DATES).specs()["history"]
    assert figure["layout"]["xaxis"]["type"] == "date"
    assert [datetime.fromisoformat(x).isoformat() for x in figure["data"][0]["x"]] == [
        *("2026-01-01T23:30:00", "2026-01-02T22:30:00", "2026-01-09T00:00:00")
    ]


@pytest.mark.parametrize("dates", [(*DATES[:2], None), (*DATES[:2], "yesterday"), (DATES[0],) * 3])
def test_runs_that_time_cannot_tell_apart_stand_in_their_order(page, dates):
    (figure,) = page(*dates).specs()["history"]
    assert figure["layout"]["xaxis"]["type"] == "category"
    places = figure["data"][0]["x"]
    assert [place.split(":")[0] for place in places] == ["1", "2", "3"]
    assert sorted(x for trace in figure["data"][1:] for x in trace["x"]) == places


def test_the_tables_are_those_of_the_text_and_so_is_what_is_printed(page, tmp_path, capsys):
    page(*DATES)
    printed = capsys.readouterr()
    assert printed.err == f"open in a browser: {tmp_path / 'page.html'}\n"
    text = (tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)]
    assert rows[1:] == [line.split() for line in printed.out.splitlines() if line.startswith("2026-")]
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == printed.out


def test_plot_and_page_do_not_cost_each_other(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    folder, file = write_runs(tmp_path, DATES), tmp_path / "page.html"
    with monkeypatch.context() as patch:
        patch.setattr(page_file, "write_text", full)
        assert main([str(folder), "--html", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out.endswith(f"plot: {folder / 'history.svg'}\n")
    assert "No space left on device" in printed.err
    assert not file.exists()
    monkeypatch.setattr(history, "plot_history", full)
    assert main([str(folder), "--html", str(file)]) == 2
    assert file.exists()
    file.unlink()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([str(folder), "--html", str(file)]) == 0
    assert file.exists()


def test_a_file_that_cannot_be_is_refused_before_anything_else(tmp_path, capsys):
    folder = write_runs(tmp_path, DATES)
    assert main([str(folder), "--html", str(tmp_path / "nowhere" / "page.html")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"mkdir -p {tmp_path / 'nowhere'}" in printed.err
    assert not (folder / "history.svg").exists()
