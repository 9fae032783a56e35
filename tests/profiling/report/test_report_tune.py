"""The report of a search: the winner, what its steps contribute, and the front."""

from pathlib import Path

import pytest
from report_records import build, clocks, faster, titled

from profiling.report.render import render_console, render_html, render_markdown
from profiling.report.run_data import RunData
from profiling.report.starts import starts_section
from profiling.report.tune import contributions, front, tune_section, winner
from profiling.results.environment import Environment
from profiling.results.judgement import typical_ms


def recipe(name, ms, error=0.004, seconds=28.0, preparing=None, **changes):
    parity = {"reference": "fp32 eager", "rel_l2": error, "tolerance": 0.05, "passed": error < 0.05}
    speedup = {} if name == "baseline" else {"speedup": faster(10.0 / ms)}
    return build(
        name, ms, target="tune", parity=parity, prepare=preparing or {"seconds": seconds}, **speedup, **changes
    )


RECORDS = (
    recipe("baseline", 10.0, seconds=0.1),
    recipe("compile", 5.0, seconds=30.0),
    recipe("cuda_graph", 4.0, seconds=2.0),
    recipe("compile+cuda_graph", 2.0, seconds=31.0),
    recipe("compile+pdl+cuda_graph", 1.999, seconds=33.0),
    recipe("slow+cuda_graph", 4.1, seconds=3.0),
    recipe("int8+cuda_graph", 1.5, error=0.03, seconds=5.0),
    recipe("int4+cuda_graph", 1.0, error=0.3, seconds=5.0),
    build("fp8", target="tune", status="skipped", reason="it needs a device"),
)


def test_the_winner_is_the_fastest_correct_one_without_idle_steps():
    assert winner(RECORDS).variant == "int8+cuda_graph"
    exact = [each for each in RECORDS if "int" not in each.variant]
    assert winner(exact).variant == "compile+cuda_graph", "pdl gains less than two runs of equal code differ by"
    assert winner([each for each in RECORDS if each.variant == "int4+cuda_graph"]) is None


def test_contributions_refer_to_the_nearest_recipe_that_was_measured():
    rows = contributions(RECORDS, RECORDS[3])
    assert {row.steps: row.without.variant for row in rows} == {("compile",): "cuda_graph", ("cuda_graph",): "compile"}
    assert [row.ratio.value for row in rows] == [2.0, 2.5], "from their speedups, since they took no turns"
    (row,) = contributions(RECORDS[:1], RECORDS[3])
    assert (row.steps, row.without.variant) == (("compile", "cuda_graph"), "baseline")


def test_the_front_is_of_time_error_and_preparation():
    names = [each.variant for each in front(RECORDS)]
    assert names == ["int8+cuda_graph", "compile+pdl+cuda_graph", "compile+cuda_graph", "cuda_graph", "baseline"]


def test_what_started_from_the_cache_of_another_recipe_is_not_cheap_to_prepare():
    """The compiler of both is the same: the second one prepares in 2 s, and would take 32 s from an empty cache."""
    warm = {"seconds": 2.0, "cold_s": 32.0, "cache": "from compile"}
    both = recipe("compile", 5.0, seconds=30.0), recipe("compile+pdl", 4.0, preparing=warm)
    assert [each.variant for each in front(both)] == ["compile+pdl", "compile"]
    data = RunData((RECORDS[0], *both), Environment(), Path("run"))
    tables = titled(tune_section(data))
    assert [row["prepare s"] for row in tables["Front of the recipes"]] == ["~32.0", "30.0", "0.100"]
    steps = {row["step"]: row["adds to preparing s"] for row in tables["What the steps of the winner contribute"]}
    assert steps["pdl"] == "~2.00"
    assert "prepared in 32.0 s from an empty cache" in " ".join(render_console(data).split())


def test_a_warm_start_is_not_called_one_from_an_empty_cache():
    """With compile_cache=shared: inductor's own cache had the code of the winner, and nothing says what it takes."""
    warm = {"seconds": 2.0, "cache_hits": 3, "phases": {"inductor": 1.0}}
    both = recipe("compile", 5.0, seconds=30.0), recipe("compile+pdl", 4.0, preparing=warm)
    data = RunData((RECORDS[0], *both), Environment(), Path("run"))
    text = " ".join(render_console(data).split())
    assert "prepared in 2.00 s from a filled cache" in text
    assert "From a cache that was filled before the run: compile+pdl." in text
    steps = titled(tune_section(data))["What the steps of the winner contribute"]
    assert not [row for row in steps if "adds to preparing s" in row]
    (row,) = titled(starts_section(data))["Preparation by phase"]
    assert row["this one s"] == "2.00"
    assert "from an empty cache s" not in row


def test_the_line_on_the_winner_has_the_median_of_the_tables_also_where_windows_were_disturbed():
    """A recipe of which others disturbed six of twelve windows: comparisons use the others, tables show all calls."""
    calls = [5.0] * 6 + [8.0] * 6
    windows = [{"block": n, "start_s": n, "n": 1, "cpu_lost_share": 0.0 if n < 6 else 0.4} for n in range(12)]
    timed = {**clocks(6.5), "wall_ms": {**clocks(6.5)["wall_ms"], "n": 12, "samples": calls}}
    won = recipe("compile", 6.5, metrics=timed, turns={"began": "now", "beside": [], "windows": windows})
    assert typical_ms(won) == 5.0
    (line,) = tune_section(RunData((RECORDS[0], won), Environment(), Path("run"))).lines
    assert "p50 6.500 ms" in line
    assert line.count("tried: 1 recipe)") == 1


def test_it_is_in_every_rendering():
    data = RunData(RECORDS, Environment(), Path("run"))
    for render in (render_console, render_markdown, render_html):
        text = render(data)
        assert "What the steps of the winner contribute" in text
        assert "Front of the recipes" in text
    assert "Recipes: time against error" in render_html(data)
    assert "the winner is int8+cuda_graph" in " ".join(render_console(data).split())


def test_a_faster_recipe_than_the_winner_is_named_with_why_it_did_not_win():
    exact = tuple(each for each in RECORDS if "int" not in each.variant)
    text = " ".join(render_console(RunData(exact, Environment(), Path("run"))).split())
    assert "compile+pdl+cuda_graph measured 1.999 ms, a difference that noise could explain" in text
    assert "noise could" not in " ".join(render_console(RunData(RECORDS, Environment(), Path("run"))).split())


LATENCY = {"cold": False, "warmup_iterations": 1, "warmup_seconds": 0.1, "settled": True}


@pytest.mark.parametrize(
    ("ms", "lost", "says"),
    [
        (13.0, 0.0, "no recipe was faster than eager"),
        (10.0, 0.0, "no recipe was faster than eager"),
        (13.0, 0.7, "cannot tell whether a recipe is faster than eager"),
    ],
)
def test_that_no_recipe_is_faster_is_said_only_of_a_quiet_search(ms, lost, says):
    metrics = clocks(ms) | {"latency": {**LATENCY, "cpu_lost_share": lost}}
    records = (
        build("baseline", 10.0, target="tune", metrics=clocks(10.0)),
        build("compile", ms, target="tune", metrics=metrics, speedup={"vs": "baseline", "wall": 10.0 / ms}),
        build("wrong", 1.0, target="tune", status="failed", reason="parity", metrics=metrics),
    )
    (line,) = tune_section(RunData(records, Environment(), Path("run"))).lines
    assert says in line


def test_nothing_is_claimed_of_a_disturbed_search():
    busy = {"latency": {**LATENCY, "cpu_lost_share": 0.7}}
    records = (
        build("baseline", 10.0, target="tune", metrics=clocks(10.0) | busy),
        build("compile", 7.0, target="tune", metrics=clocks(7.0) | busy, speedup={"vs": "baseline", "wall": 1.4}),
    )
    tables = titled(tune_section(RunData(records, Environment(), Path("run"))))
    assert [row["speedup vs eager"] for row in tables["Front of the recipes"]] == ["cannot tell"]
    assert winner(records).variant == "baseline", "a step that other processes may have made faster is not in it"
    (row,) = contributions(records, records[1])
    assert row.is_nothing
