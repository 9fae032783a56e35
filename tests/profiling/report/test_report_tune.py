"""The report of a search: the winner, what its steps contribute, and the front."""

from pathlib import Path

import pytest
from report_records import build, clocks, faster, run_data, titled

from profiling.report.answer import answer_section, notes_section
from profiling.report.targets import starts_section
from profiling.report.tune import contributions, front, tune_section

STEPS = "What the steps of the winner contribute"


def recipe(name, ms, error=0.004, seconds=28.0, preparing=None, **changes):
    parity = {"reference": "fp32 eager", "rel_l2": error, "tolerance": 0.05, "passed": error < 0.05}
    known = {"parity": parity, "prepare": preparing or {"seconds": seconds}}
    known |= {} if name == "baseline" else {"speedup": faster(10.0 / ms)}
    return build(name, ms, target="tune", **(known | changes))


RECORDS = (
    recipe("baseline", 10.0, seconds=0.1),
    recipe("compile", 5.0, seconds=30.0),
    recipe("cuda_graph", 4.0, seconds=2.0),
    recipe("compile+cuda_graph", 2.0, seconds=31.0),
    recipe("compile+pdl+cuda_graph", 1.999, seconds=33.0),
    recipe("slow+cuda_graph", 6.0, seconds=3.0),
    recipe("int8+cuda_graph", 1.5, error=0.03, seconds=5.0),
    recipe("int4+cuda_graph", 1.0, error=0.3, seconds=5.0),
    build("fp8", target="tune", status="skipped", reason="it needs a device"),
)


def test_contributions_refer_to_the_nearest_recipe_that_was_measured():
    rows = contributions(RECORDS, RECORDS[3])
    found = {row.steps: (row.without.variant, pytest.approx(row.ratio.ratio)) for row in rows}
    assert found == {("compile",): ("cuda_graph", 2.0), ("cuda_graph",): ("compile", 2.5)}
    (row,) = contributions(RECORDS[:1], RECORDS[3])
    assert (row.steps, row.without.variant) == (("compile", "cuda_graph"), "baseline")


def test_the_front_is_of_time_error_and_preparation():
    """On a CPU equal code differs by 4% between processes: that 4.1 ms are more than 4.0 is not known."""
    names = ["int8+cuda_graph", "compile+pdl+cuda_graph", "compile+cuda_graph", "cuda_graph", "baseline"]
    assert [each.variant for each in front(RECORDS)] == names
    winner, line = tune_section(run_data(*RECORDS, folder=Path("run"))).lines
    assert "the winner is int8+cuda_graph (tried: 7 recipes). To use it: --config-dir=RUN" in winner
    assert line.endswith(f"to prepare: {', '.join(names[:-1])} and baseline.")
    records = (recipe("a", 4.0, seconds=2.0), recipe("near", 4.1, seconds=3.0), recipe("far", 6.0, seconds=3.0))
    assert [each.variant for each in front(records)] == ["a", "near"]


def test_what_started_from_the_cache_of_another_recipe_is_not_cheap_to_prepare():
    """The compiler of both is the same: the second one prepares in 2 s, and would take 32 s from an empty cache."""
    warm = {"seconds": 2.0, "cold_s": 32.0, "cache": "from compile"}
    both = recipe("compile", 5.0, seconds=30.0), recipe("compile+pdl", 4.0, preparing=warm)
    assert [each.variant for each in front(both)] == ["compile+pdl", "compile"]
    steps = titled(tune_section(run_data(RECORDS[0], *both)))[STEPS]
    assert {row["step"]: row["adds to preparing s"] for row in steps}["pdl"] == "~2.00"


def test_a_warm_start_is_not_called_one_from_an_empty_cache():
    """With compile_cache=shared: inductor's own cache had the code of the winner, and nothing says what it takes."""
    warm = {"seconds": 2.0, "cache_hits": 3, "phases": {"inductor": 1.0}}
    both = recipe("compile", 5.0, seconds=30.0), recipe("compile+pdl", 4.0, preparing=warm)
    data = run_data(RECORDS[0], *both)
    assert "world_model.compile+pdl: warm start" in notes_section(data).lines[0]
    assert not [row for row in titled(tune_section(data))[STEPS] if "adds to preparing s" in row]
    (row,) = titled(starts_section(data))["Preparation by phase"]
    assert row["in this run s"] == "2.00"


BUSY = {"latency": {"cold": False, "warmup_seconds": 0.1, "settled": True, "cpu_lost_share": 0.7}}


def test_that_no_recipe_is_faster_is_said_only_of_a_quiet_search():
    for conditions, says in (({}, "no recipe is"), (BUSY, "it is undecided whether a recipe is")):
        slower = recipe("compile", 13.0, metrics=clocks(13.0) | conditions)
        wrong = recipe("wrong", 1.0, status="failed", reason="parity")
        line, _ = tune_section(run_data(recipe("baseline", 10.0), slower, wrong)).lines
        assert f"{says} faster than eager" in line


def test_a_winner_that_may_be_no_faster_than_eager_is_said_to():
    for ms, said in ((9.9, True), (5.0, False)):
        line, _ = tune_section(run_data(recipe("baseline", 10.0), recipe("compile", ms))).lines
        assert "the winner is compile (tried: 1 recipe)" in line
        assert ("whether it is faster than baseline is undecided" in line) is said


def test_beside_other_processes_a_search_claims_what_is_left_without_them():
    records = (recipe("baseline", 10.0), recipe("compile", 7.0, metrics=clocks(7.0) | BUSY))
    assert titled(answer_section(run_data(*records)))["Cells"][1]["speedup vs baseline"] == "≥ 1.39×"
    (row,) = contributions(records, records[1])
    assert row.ratio.answer() == "slower"
