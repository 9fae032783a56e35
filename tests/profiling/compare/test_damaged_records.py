"""Records and environments that were edited by hand: never exit code 1, which says `slower`, and never a traceback."""

import json
import warnings
from pathlib import Path

import pytest
from hand_made import ENVIRONMENT, cell, noisy, write_run

from profiling import compare, history
from profiling.comparison import compared
from profiling.results.records import RESULTS_FILE, Record
from profiling.results.rounds import samples_by_round

ROUNDS = [{"wall_ms": {"n": 6}}, {"wall_ms": {"n": 6}}]
JUNK = ("text", 5, None, [1, 2], {}, True)


def record(path=(), value=None):
    """Return the line of a cell of two rounds in which `value` stands at `path`."""
    inside = {"kernels": [{"name": "k", "count": 1, "ms": 1.0}], "idle": {"host_ms": 1.0}}
    sources = ({"name": "k", "file": "kernels/k.py", "kind": "triton"},)
    made = cell(samples=noisy(1, n=12), rounds=tuple(ROUNDS), inside=inside, kernels=sources, parameters=7)
    content = json.loads(made.to_json())
    replace_at(content, path, value)
    return content


def replace_at(content, path, value):
    for key in path[:-1]:
        content = content[key]
    if path:
        content[path[-1]] = value


def paths_of(content, path=()):
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, inner in items:
        yield (*path, key)
        if key != "samples":
            yield from paths_of(inner, (*path, key))


def run_of(folder, content, environment=ENVIRONMENT):
    folder.mkdir(exist_ok=True)
    (folder / RESULTS_FILE).write_text(json.dumps(content) + "\n")
    (folder / "environment.json").write_text(json.dumps(environment))
    return str(folder)


@pytest.fixture
def against(tmp_path, capsys):
    """Compare a whole run with one that is given, and return (exit code, what is printed, errors)."""

    def against(content, environment=ENVIRONMENT):
        whole, other = run_of(tmp_path / "whole", record()), run_of(tmp_path / "other", content, environment)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            code = compare.main([whole, other])
        return code, *capsys.readouterr()

    return against


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("metrics", "wall_ms", "samples"), "text", "fewer than 6 samples were kept"),
        (("metrics", "wall_ms", "samples"), 5, "fewer than 6 samples were kept"),
        (("metrics", "wall_ms", "samples"), [[1.0] * 6] * 12, "12 of 12 are not finite"),
        (("metrics", "wall_ms", "samples"), [1.0] * 11 + [float("inf")], "1 of 12 is not finite"),
        (("metrics",), None, "no times in B"),
        (("metrics", "wall_ms"), "text", "no times in B"),
    ],
)
def test_samples_that_are_none_are_told(against, path, value, told):
    code, out, err = against(record(path, value))
    assert (code, err) == (2, "")
    assert told in out


@pytest.mark.parametrize(
    "rounds",
    [
        [1, 2],
        [{}, {}],
        [{"wall_ms": {}}, *ROUNDS],
        [{"wall_ms": {"n": 0}}, *ROUNDS],
        [{"wall_ms": {"n": -6}}, *ROUNDS, {"wall_ms": {"n": 6}}],
        [{"wall_ms": {"n": "6"}}] * 2,
        [{"wall_ms": {"n": 6.0}}] * 2,
        [{"wall_ms": 6}] * 2,
    ],
)
def test_rounds_that_do_not_say_how_many_samples_they_took_are_one(against, rounds):
    content = record(("rounds",), rounds)
    (samples,) = samples_by_round(Record.from_json(json.dumps(content)))
    assert samples.size == 12
    code, out, err = against(content)
    assert (code, err) == (0, "")
    assert "One round a side" in out
    assert "One round a side" not in against(record())[1]


def test_a_revision_that_is_no_text(against):
    code, out, err = against(record(), {**ENVIRONMENT, "git": {"revision": 7, "dirty": True}})
    assert (code, err) == (0, "")
    assert "7 (dirty)" in out


def cells_or_names(path):
    return path in {("component",), ("variant",), ("schema",), ("status",), ("reason",)}


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_junk_in_place_of_any_value_costs_no_judgement(against, junk):
    """What is damaged may be told as not compared; the comparison itself goes on to its end."""
    for path in paths_of(record()):
        if not cells_or_names(path):
            code, out, err = against(record(path, junk))
            readable = "(exit code" in out or "not a record" in err
            assert (code in (0, 2), readable) == (True, True), (path, code, err)


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_junk_in_an_environment_costs_no_judgement(against, junk):
    for path in paths_of(ENVIRONMENT):
        environment = json.loads(json.dumps(ENVIRONMENT))
        replace_at(environment, path, junk)
        code, out, err = against(record(), environment)
        assert (code, err) == (0, ""), (path, out, err)


@pytest.mark.parametrize("path", [("component",), ("variant",), ("status",), ("reason",), ("schema",)])
@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_a_record_without_a_name_is_one_line_or_another_cell(against, path, junk):
    code, out, err = against(record(path, junk))
    assert code in (0, 2)
    assert out or len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_what_nobody_foresaw_is_one_line_and_code_two(against, monkeypatch):
    def broken(*_):
        raise TypeError("planted\nin two lines")

    monkeypatch.setattr(compared, "changes", broken)
    code, out, err = against(record())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "TypeError: planted in two lines (test_damaged_records.py:" in err
    assert str(Path(__file__).parent) not in err, "the name of the file is enough"
    assert "--cells" in err


def test_a_page_that_nobody_could_foresee_costs_no_verdict(tmp_path, capsys, monkeypatch):
    def broken(*_):
        raise ValueError("planted")

    monkeypatch.setattr(compare, "_page", broken)
    a, b = (run_of(tmp_path / name, record()) for name in "ab")
    assert compare.main([a, b, "--html", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr()
    assert "(exit code 0)" in printed.out
    assert "page.html was not written: ValueError: planted" in printed.err


def test_a_history_says_what_nobody_foresaw_in_one_line(tmp_path, capsys, monkeypatch):
    def broken(*_):
        raise ValueError("planted")

    write_run(tmp_path / "run", cell(samples=noisy(1)))
    with monkeypatch.context() as patch:
        patch.setattr(history, "plot_history", broken)
        assert history.main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "2026-01-02" in printed.out
    assert "history.svg was not written: ValueError: planted" in printed.err
    monkeypatch.setattr(history, "timelines", broken)
    assert history.main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert "ValueError: planted" in printed.err
