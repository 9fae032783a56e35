"""`python -m profiling.compare` as a CI job calls it, on the committed runs and on copies with a planted change."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from parsed_page import Parsed
from planted_runs import cell, noisy, two_runs, write_run

from profiling.compare import __main__ as command
from profiling.compare import cells
from profiling.compare.__main__ import main
from profiling.report import render
from profiling.report.table import WIDTH
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.measured import Prepare

ROOT = Path(__file__).parents[3]
WITHOUT = """
import runpy, sys
blocked, *arguments = sys.argv[1:]
for name in blocked.split(","):
    sys.modules[name] = None
sys.argv = ["compare", *arguments]
runpy.run_module("profiling.compare", run_name="__main__")
"""


def row(text, variant):
    return next(line for line in text.splitlines() if variant in line.split())


def test_the_text_needs_neither_torch_nor_jinja2(tmp_path):
    options = [*two_runs(tmp_path), "--html", tmp_path / "page.html"]
    command = [sys.executable, "-c", WITHOUT, "torch,triton,hydra,omegaconf,jinja2", *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "(exit code 1)" in done.stdout
    assert re.search(r"error: .*page\.html was not written: \w+ is not installed\. .* -m pip install", done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_a_run_and_its_results_are_the_same(tmp_path, capsys):
    run = write_run(tmp_path / "run", *(cell(name, noisy(1)) for name in "vw"))
    assert main([str(run), str(run / RESULTS_FILE)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("No cell of B is slower than A by more than 5% (exit code 0).\n2 cells: 2 same.\n")
    assert "The recorded environments and options of the runs do not differ." in printed


def test_the_conclusion_comes_first_and_what_matters_most_above_the_rest(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main([*map(str, two_runs(tmp_path, threads=8)), "--html", str(page)]) == 1
    printed = capsys.readouterr().out
    conclusion, counts, *_ = printed.splitlines()
    assert conclusion == "B is slower than A in 1 cell: the estimated slowdown is more than 2% (exit code 1)."
    assert counts == "6 cells: 1 slower, 2 undecided, 1 not compared, 1 faster, 1 same."
    variants = [line.split()[1] for line in printed.splitlines() if line.startswith("net ")]
    assert variants == ["worse", "wild", "few", "broken", "better", "unchanged"]
    assert row(printed, "worse").endswith("slower")
    assert "failed (out of memory)" in " ".join(printed.split())
    assert re.search(r"\n[- ]+\nall +threads +16 +8", printed), "which explains most"
    assert re.search(r"net.worse +peak memory MiB +100 +300", printed)
    assert set(re.findall("kernel only in .: ...", printed)) == {"kernel only in B: new", "kernel only in A: old"}
    assert max(map(len, printed.splitlines())) <= WIDTH
    parsed = Parsed(page.read_text(encoding="utf-8"))
    assert [attributes["id"] for attributes in parsed.all("section")] == ["verdict", "differences"]
    assert conclusion in parsed.text


def test_of_many_cells_those_that_are_the_same_are_left_out(tmp_path, capsys, monkeypatch):
    before = [cell(f"v{n}", noisy(10, seed=n), turns="together") for n in range(20)]
    after = [cell(f"v{n}", noisy(12 if n == 7 else 10, seed=n + 50), turns="together") for n in range(20)]
    runs = [str(write_run(tmp_path / name, *cells)) for name, cells in (("a", before), ("b", after))]
    for most, left in ((40, 8), (1, 19)):
        monkeypatch.setattr(command, "_CONSOLE", most)
        assert main(runs) == 1
        printed = capsys.readouterr().out
        assert row(printed, "v7").endswith("slower")
        assert f"{left} of 20 rows are left out here." in printed


@pytest.mark.parametrize(("options", "code"), [(("--cells=*.better",), 0), ((), 1), (("--threshold=0.1",), 2)])
def test_the_exit_code_and_a_page_that_changes_nothing(tmp_path, capsys, options, code):
    arguments = [*map(str, two_runs(tmp_path)), *options, *(["--markdown"] if code == 2 else [])]
    assert main(arguments) == code
    alone = capsys.readouterr().out
    assert f"(exit code {code})" in alone
    assert main([*arguments, "--html", str(tmp_path / "page.html")]) == code
    assert capsys.readouterr() == (alone, f"open in a browser: {tmp_path / 'page.html'}\n")


def test_runs_without_a_common_cell_say_that_nothing_was_compared(tmp_path, capsys):
    one, two = (str(write_run(tmp_path / name, cell(name, noisy(1)))) for name in "ab")
    assert main([one, two]) == 2
    assert "Nothing was compared: no cell was measured, and correct, in both" in capsys.readouterr().out
    sizes = [write_run(tmp_path / f"{size}", cell("a", noisy(1), parameters=size)) for size in (5, 6)]
    assert main([*map(str, sizes)]) == 2
    printed = capsys.readouterr().out
    assert "Nothing was compared: cells of A and B do different work" in printed
    assert "different work: parameters 5 → 6" in printed


@pytest.mark.parametrize(
    ("words", "error"),
    [
        *(("a b --threshold 2", "2%"), ("a b --threshold 5%", "=5% is no number")),
        ("a b --cells nothing.*", "There are: net.baseline"),
        ("a b --html nowhere/page.html", "in a folder that exists"),
        ("a b --html folder.html", "a file"),
        ("a b --html b/results.jsonl", "ends in .html"),
        ("a component=[net]", "B is missing"),
        ("a HEAD", "HEAD is none: there is no such folder"),
    ],
)
def test_wrong_input_is_one_line_and_code_two_and_writes_nothing(tmp_path, capsys, monkeypatch, runs, words, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    before = (tmp_path / "b" / RESULTS_FILE).read_bytes()
    assert main(words.split()) == 2
    assert error in only_line(capsys)
    assert (tmp_path / "b" / RESULTS_FILE).read_bytes() == before


def only_line(capsys):
    """Return the line on stderr, where nothing is printed."""
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_without_an_environment_the_cells_are_compared(tmp_path, capsys):
    a, b = two_runs(tmp_path)
    (a / "environment.json").unlink()
    assert main([str(a), str(b)]) == 1
    unknown = "differences in machine, versions and code are unknown"
    assert f"A has no readable environment.json: {unknown}." in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("turns", "options", "limit"),
    [
        *(("x", (), 2), ("", (), 5), ("", (), 15)),
        *(("x", ("--threshold=0.05",), 5), ("x", ("--threshold=0.032",), 3.2)),
    ],
)
def test_less_is_the_same_where_cells_took_turns(tmp_path, capsys, turns, options, limit):
    prepared = Prepare(seconds=1.0, graphs=int(limit == 15))  # compiled in each of the two runs
    a, b = (
        write_run(tmp_path / name, cell(windows_ms=noisy(ms, seed=ord(name)), turns=turns, prepare=prepared))
        for name, ms in (("a", 10.0), ("b", 10.3 if turns else 10.2))
    )
    assert main([str(a), str(b), *options]) == {2: 1, 3.2: 2, 5: 0, 15: 0}[limit]
    conclusion = capsys.readouterr().out.splitlines()[0]
    assert f"more than {limit}%" in conclusion
    assert ("(1 of them is slower)" in conclusion) == (limit == 3.2), "the verdict below it says so, too"


def test_how_cells_are_measured_in_turns_is_said_where_that_would_tell(tmp_path, capsys):
    a, same, slower = (
        str(write_run(tmp_path / name, cell("v", noisy(ms, seed=ord(name)), turns="")))
        for name, ms in (("a", 10.0), ("b", 10.05), ("c", 12.0))
    )
    for other, is_said in ((same, True), (slower, False)):
        main([a, other])
        printed = " ".join(capsys.readouterr().out.split())
        assert ("measuring both in turns" in printed) == ("python -m profiling.compare REVISION" in printed) == is_said


def test_the_conclusion_names_the_limits_of_the_cells_that_it_is_about(tmp_path, capsys):
    prepared = Prepare(seconds=1.0, graphs=1)

    def run(name, seed, ms):
        compiled = cell("w", noisy(5, seed=seed + 10), turns="", prepare=prepared)
        return str(write_run(tmp_path / name, cell("v", noisy(ms, seed=seed), turns=""), compiled))

    a, equal, slower = run("a", 1, 10.0), run("b", 2, 10.0), run("c", 3, 11.0)
    assert main([a, equal]) == 0
    assert "by more than its limit (5% or 15%)" in capsys.readouterr().out.splitlines()[0]
    assert main([a, slower]) == 1
    assert "in 1 cell: the estimated slowdown is more than 5%" in capsys.readouterr().out.splitlines()[0]


@pytest.fixture
def runs(tmp_path):
    return [str(write_run(tmp_path / name, cell(windows_ms=noisy(1, seed=ord(name))))) for name in "ab"]


def broken(*_):
    raise TypeError("planted\nin two lines")


def test_an_unexpected_error_is_one_line_and_never_exit_code_one(runs, capsys, monkeypatch):
    monkeypatch.setattr(cells, "cell_changes", broken)
    assert main(runs) == 2
    line = only_line(capsys)
    assert "TypeError: planted" in line
    assert "--cells" in line


def full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("name", "fault", "error"),
    [("write_text", full, "No space left on device"), ("render_page", broken, "TypeError: planted")],
)
def test_a_page_that_fails_costs_neither_text_nor_exit_code(tmp_path, capsys, monkeypatch, name, fault, error):
    a, b = two_runs(tmp_path)
    monkeypatch.setattr(render, name, fault)
    assert main([str(a), str(b), "--html", str(tmp_path / "page.html")]) == 1
    printed = capsys.readouterr()
    assert "(exit code 1)" in printed.out
    assert error in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()
