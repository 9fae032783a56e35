"""`python -m profiling.compare A B --html FILE`: the page says what the text says, and costs it nothing."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import plotly.graph_objects as go
import pytest
from hand_made import cell, noisy, two_runs, write_run

from profiling.compare import main
from profiling.comparison import page_file

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
WITHOUT_PLOTLY = """
import runpy, sys
for name in ("torch", "plotly", "jinja2"):
    sys.modules[name] = None
sys.argv = ["compare", *sys.argv[1:]]
runpy.run_module("profiling.compare", run_name="__main__")
"""


@pytest.fixture
def compare(tmp_path, capsys):
    """Return (exit code, what is printed, the page) of a comparison."""

    def run(a, b, *options):
        file = tmp_path / "page.html"
        code = main([str(a), str(b), *options, "--html", str(file)])
        printed = capsys.readouterr()
        assert printed.err == f"open in a browser: {file}\n"
        return code, printed.out, file.read_text(encoding="utf-8")

    return run


def table_rows(page):
    """Return the cells of every row below a header."""
    body = page.partition("<script")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[unescape(text) for text in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows if "<td" in row]


def text_rows(printed):
    return [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines() if not line.startswith("--")]


def points(figure):
    """Return (trace, name of the cell, ratio, interval or None) of each point."""
    names = figure["layout"]["yaxis"]["ticktext"]
    for trace in figure["data"]:
        for i, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
            error = trace.get("error_x")
            ends = (x - error["arrayminus"][i], x + error["array"][i]) if error else None
            yield trace, names[y], x, ends


def test_the_chart_draws_the_numbers_and_verdicts_of_the_text(tmp_path, compare, parse):
    code, printed, page = compare(*two_runs(tmp_path))
    ((figure,),) = parse(page).specs().values()
    go.Figure(figure)  # raises where a property is misspelt or out of its range
    rows = {row[1]: row for row in text_rows(printed) if len(row) == 8}
    drawn = {}
    for trace, name, ratio, ends in points(figure):
        *_, told, span, verdict, _ = rows[name.removeprefix("net.")]
        assert told == f"{ratio:.3f}×"
        assert span == (f"[{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "–")
        assert trace["name"] == (verdict if ends else f"{verdict}, no interval")
        drawn[name] = verdict
    assert code == 1
    assert drawn == {
        "net.unchanged": "same",
        "net.worse": "slower",
        "net.better": "faster",
        "net.wild": "can't tell",
        "net.few": "can't tell",
    }
    looks = [trace["marker"]["symbol"] for trace in figure["data"]]
    assert len(set(looks)) == len(looks) == 5, "a verdict is told by its symbol too"
    assert "In the table alone: 1 cell " in page


def test_the_band_is_as_wide_as_the_threshold_and_in_sight(tmp_path, compare, parse):
    _, _, page = compare(*two_runs(tmp_path), "--threshold", "0.3")
    ((figure,),) = parse(page).specs().values()
    band = figure["layout"]["shapes"][0]
    assert (band["x0"], band["x1"]) == pytest.approx((0.7, 1.3))
    low, high = figure["layout"]["xaxis"]["autorangeoptions"]["include"]
    assert low < 0.7 < 1.3 < high


def test_the_tables_are_those_of_the_text(tmp_path, compare):
    a, b = two_runs(tmp_path, versions={"torch": "2.12.0", "driver": "580.1"}, threads=8)
    _, printed, page = compare(a, b)
    rows = table_rows(page)
    found = text_rows(printed)
    assert [row for row in rows if row not in found] == []
    assert ["versions.torch", "2.11.0", "2.12.0"] in rows
    assert ["net", "worse", "peak allocated MiB", "100", "300"] in rows
    told = [row[2] for row in rows if len(row) == 5]
    assert "kernel appeared: new" in told
    assert "kernel vanished: old" in told
    assert len(rows) == 2 + 6 + len(told)


def test_the_verdict_stands_first_and_the_commands_last(tmp_path, compare, parse):
    _, printed, page = compare(*two_runs(tmp_path, command="python -m profiling.generic_forward rounds=5"))
    sections = [attributes["id"] for attributes in parse(page).all("section")]
    assert sections == ["verdict", "around", "cells", "changed", "commands"]
    first = unescape(re.findall(r"<li>(?!<a)(.*?)</li>", page)[0])
    assert first == printed.splitlines()[-1]
    assert first.endswith("slower by more than 2.00% (exit code 1)")
    text = page.partition('id="commands"')[2].partition("</section>")[0]
    assert re.findall(r"python .*?(?=\n|<)", text) == [
        "python -m profiling.generic_forward",
        "python -m profiling.generic_forward rounds=5",
    ]


def test_a_page_changes_neither_the_text_nor_the_exit_code(tmp_path, compare, capsys):
    a, b = two_runs(tmp_path)
    for cells, code in (("*.better", 0), ("*", 1), ("*.broken", 2)):
        for options in (("--cells", cells), ("--cells", cells, "--markdown")):
            assert main([str(a), str(b), *options]) == code
            alone = capsys.readouterr().out
            assert compare(a, b, *options)[:2] == (code, alone)


def test_nothing_to_compare_is_a_page_without_charts(compare, parse):
    code, _, page = compare(RESULTS / "h200_five_variants", RESULTS / "h200_world_model_step")
    assert code == 2
    assert parse(page).specs() == {}
    assert len(page) < 100_000, "plotly's script is left out"
    assert page.count("only in A") == 15


def test_many_cells_are_drawn_component_by_component(tmp_path, compare, parse):
    cells = [cell(f"v{i}", noisy(1 + i, seed=i), component=name) for i in range(11) for name in ("one", "two")]
    a, b = write_run(tmp_path / "a", *cells), write_run(tmp_path / "b", *cells)
    _, _, page = compare(a, b)
    views = parse(page).specs()["ratios"]
    assert [len(view["layout"]["yaxis"]["ticktext"]) for view in views] == [11, 11]
    assert re.findall(r"<option [^>]*>(.*?)</option>", page) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("nowhere/page.html", "mkdir -p"), ("folder.html", "Name a file in it"), ("b/results.jsonl", "results.html")],
)
def test_a_file_that_cannot_be_is_refused_before_anything_else(tmp_path, capsys, name, told):
    a, b = two_runs(tmp_path)
    (tmp_path / "folder.html").mkdir()
    before = (b / "results.jsonl").read_bytes()
    assert main([str(a), str(b), "--html", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert told in printed.err
    assert (b / "results.jsonl").read_bytes() == before


def test_a_page_that_is_lost_is_told_and_the_verdict_stays(tmp_path, capsys, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_file, "write_text", full)
    a, b = two_runs(tmp_path)
    for cells, code in (("*.better", 0), ("*", 1)):
        assert main([str(a), str(b), "--cells", cells, "--html", str(tmp_path / "page.html")]) == code
        printed = capsys.readouterr()
        assert f"(exit code {code})" in printed.out
        assert printed.err.startswith("error: ")
        assert "No space left on device" in printed.err


def test_without_what_a_page_needs_the_text_is_still_there(tmp_path):
    a, b = two_runs(tmp_path)
    command = [sys.executable, "-c", WITHOUT_PLOTLY, str(a), str(b), "--html", str(tmp_path / "page.html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "(exit code 1)" in done.stdout
    assert re.search(r"error: .*page\.html was not written: jinja2 is not installed\. pip install jinja2", done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()
