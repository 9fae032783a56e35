"""The search of recipes, on planted times, errors and preparations, and on a fake clock."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
from fake_cells import FakeCells, Plan, dies, ends, interrupts, rows
from planted_recipes import EAGER_MS, LOAD_S, Plans, prepared, searched, space_of

from profiling.report.tune import contributions
from profiling.results.verdicts import compare_records, fastest_correct
from profiling.run.events import End
from profiling.tune.__main__ import finished, joined, searching
from profiling.tune.search import GRACE, NOT_TRIED, SPENT

STEPS = ("wrong", "half", "slower", "fifth_off", "nothing", "together")
FACTORS = {"wrong": 0.1, "half": 0.5, "slower": 1.3, "fifth_off": 0.8, "nothing": 1.005, "together": 1.05}
FACTORS["half+together"] = 0.7


def cells_of(factors=FACTORS, seconds=None, **plans):
    return FakeCells(Plans(factors, seconds or {}, **plans))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A search that has ended: its folder, cells and records."""
    folder, cells = tmp_path_factory.mktemp("complete") / "run", cells_of()
    return folder, cells, searched(folder, space_of(*STEPS), cells)[1]


def test_the_best_recipe_wins_and_each_of_its_steps_is_explained(complete):
    _, _, records = complete
    best = fastest_correct(records.values())
    assert best.variant == "half+fifth_off+together"
    assert best.wall_p50 == pytest.approx(EAGER_MS * 0.5 * 0.8 * 1.05 * 0.7, rel=0.01)
    rows = {row.steps: row for row in contributions(records.values(), best)}
    expected = {("half",): 1 / (0.5 * 0.7), ("fifth_off",): 1 / 0.8, ("together",): 1 / (1.05 * 0.7)}
    assert rows.keys() == expected.keys()
    for steps, factor in expected.items():
        assert rows[steps].ratio.ratio == pytest.approx(factor, rel=0.01), steps
        assert rows[steps].ratio.in_turns, steps
    assert len(best.turns.controls) == len(records["baseline"].turns.controls) == 1, "by how much processes differ"


def test_recipes_are_prepared_once_wrong_ones_fall_out_at_once_and_survivors_are_measured_longer(complete):
    _, cells, records = complete
    assert max(Counter(prepared(cells)).values()) == 1
    assert cells.held == {}
    assert (records["wrong"].status, len(records["wrong"].turns.windows)) == ("failed", 1)
    assert [name for name in prepared(cells) if name.startswith("wrong+")] == [], "none is built on it"
    windows = {name: len(record.turns.windows) for name, record in records.items() if record.turns is not None}
    assert windows["half"] > windows["slower"]
    assert windows["baseline"] >= windows["half+fifth_off+together"] > windows["slower"]


def test_resuming_a_complete_search_measures_nothing(complete):
    folder, _, before = complete
    again = cells_of()
    _, records, took = searched(folder, space_of(*STEPS), again, resume=str(folder))
    assert (prepared(again), took) == ([], 0)
    assert {name: each.wall_p50 for name, each in records.items()} == {n: each.wall_p50 for n, each in before.items()}


DID_NOTHING = "transform idle: asked for, did nothing: Net has no linear layer."


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (ends("skipped", "transform T changes nothing"), "transform T changes nothing"),
        (ends("failed", DID_NOTHING, bad_input=True), "transform idle changes nothing: Net has no linear layer."),
        (ends("failed", DID_NOTHING), "transform idle changes nothing: Net has no linear layer."),
    ],
)
def test_a_step_that_changes_nothing_falls_out_before_it_is_timed(end, says, tmp_path):
    """The recipes have a capture: what fails in those may yet run with a compiler."""
    folder, space = tmp_path / "run", space_of("idle", "half", idle={"kind": "capture"})
    idle = Plan(happens={"ready": end})
    run, records, _ = searched(folder, space, cells_of(**{"idle": idle, "half+idle": idle}))
    assert (f"skipped: idle ({says})" in run.progress.said) == ("Net" in says)
    assert (records["idle"].status, records["idle"].reason, records["idle"].bad_input) == ("skipped", says, False)
    assert records["idle"].turns is None
    assert set(records) == {"baseline", "half+idle", "idle", "half"}, "none is built on it but all together"
    again = cells_of()
    searched(folder, space, again, resume=str(folder))
    assert prepared(again) == []


@pytest.mark.parametrize(("noise", "is_close"), [(0.65, True), (0.001, False)])
def test_what_is_left_of_the_budget_tells_the_first_two_apart(noise, is_close, tmp_path):
    """They differ by 6%, and their windows by far more: a few show no difference."""
    options = {"prepare_s": 3.0, "noise": noise, "limits": {"pinned": True}}
    plans = {name: Plan(ms, **options) for name, ms in (("half", 5.0), ("third", 4.7), ("slower", 9.0))}
    space = space_of("half", "third", "slower", half={"group": "g"}, third={"group": "g"}, slower={"group": "g"})
    _, records, took = searched(tmp_path / "run", space, cells_of(**plans), budget=100.0)
    assert took <= 100.0
    assert fastest_correct(records.values()).variant == "third"
    assert compare_records(records["half"], records["third"]).answer() == "slower"
    timed = [len(records[name].turns.windows) for name in ("half", "third")]
    assert (min(timed) >= 40) is is_close, timed
    assert len(records["slower"].turns.windows) < 50


def test_beside_other_processes_the_rest_of_the_budget_is_not_spent(tmp_path):
    busy = {"prepare_s": 3.0, "noise": 1.0, "lost": lambda _: 0.5}
    plans = {"baseline": Plan(10.0, **busy), "half": Plan(9.99, **busy), "third": Plan(9.98, **busy)}
    space = space_of("half", "third", half={"group": "g"}, third={"group": "g"})
    _, _, took = searched(tmp_path / "run", space, cells_of(**plans), budget=600.0)
    assert took < 100.0


def test_a_step_that_may_contribute_nothing_is_said_to(tmp_path):
    """Times of equal code differ by 4% between processes of a CPU, so that a gain of 2% is not known."""
    cells = cells_of({"half": 0.5, "nothing": 0.98})
    _, records, _ = searched(tmp_path / "run", space_of("half", "nothing"), cells)
    best = fastest_correct(records.values())
    assert best.variant == "half+nothing", "the lowest estimate, as in every other table"
    answers = {row.steps: row.ratio.answer() for row in contributions(records.values(), best)}
    assert answers == {("half",): "slower", ("nothing",): "undecided"}


def test_nothing_is_built_on_a_step_that_contributes_nothing_before_all_others_were_tried(tmp_path):
    """Four steps are tried first; a lead of half a percent does not take the budget from the fifth."""
    idle = ("idle", "nothing", "slower", "together")
    cells = cells_of({"half": 0.5, "nothing": 0.995, **dict.fromkeys(("idle", "slower", "together"), 1.01)})
    _, records, _ = searched(tmp_path / "run", space_of(*idle, "half"), cells, budget=70.0)
    assert prepared(cells)[:6] == ["baseline", *idle, "half"]
    assert "half" in fastest_correct(records.values()).variant


def test_recipes_keep_to_what_steps_need_and_have_one_of_alternatives(tmp_path):
    groups = {"half": {"group": "g"}, "third": {"group": "g"}}
    space = space_of("half", "tuned", "third", tuned={"needs": ["half"]}, **groups)
    cells = cells_of({"half": 0.5, "tuned": 0.6, "third": 0.45})
    _, records, _ = searched(tmp_path / "run", space, cells)
    assert set(records) == {"baseline", "half", "third", "half+tuned"}
    best = fastest_correct(records.values())
    assert [row.steps for row in contributions(records.values(), best)] == [("half", "tuned"), ("tuned",)]


def test_steps_that_pay_only_together_are_found(tmp_path):
    """Three steps are slower alone and fast together. Two further ones change nothing beside them, and are left out."""
    slower = {"layout": 1.6, "norm": 1.1, "conv": 1.05}
    cells = cells_of({**slower, "graph": 0.8, "layout+norm+conv": 0.2, "compile": 0.6}, {"compile": 20.0})
    rest = "+compile+graph"
    for name, step in (("passes+idle", "passes"), ("passes", "passes"), ("idle", "idle")):
        says = f"transform {step} changes nothing" if step == "passes" else DID_NOTHING
        cells.plans[f"layout+norm+conv+{name}{rest}"] = Plan(happens={"ready": ends("skipped", says)})
    rules = {"graph": {"kind": "capture", "group": "capture"}, "compile": COMPILER}
    space = space_of(*slower, "passes", "idle", "compile", "graph", **rules)
    _, records, _ = searched(tmp_path / "run", space, cells, budget=200.0)
    together = [f"layout+norm+conv{each}{rest}" for each in ("+passes+idle", "+idle", "")]
    assert prepared(cells)[:4] == ["baseline", *together]
    best = fastest_correct(records.values())
    assert best.variant == f"layout+norm+conv{rest}"
    assert len(contributions(records.values(), best)) == 5


@pytest.mark.parametrize("refused", [True, False])
def test_where_all_steps_together_fail_the_compiled_module_is_tried(refused, tmp_path):
    cells = cells_of({"half": 0.5, "compile": 0.6, "graph": 0.9}, {"compile": 20.0})
    together = "half+together+compile+graph"
    cells.plans[together] = Plan(happens={"ready": ends("failed", "cannot be traced", bad_input=refused)})
    rules = {"graph": {"kind": "capture", "group": "capture"}, "compile": COMPILER}
    space = space_of("half", "together", "compile", "graph", **rules)
    _, records, _ = searched(tmp_path / "run", space, cells)
    assert prepared(cells)[1:3] == [together, "compile+graph"]
    assert fastest_correct(records.values()).variant == "half+compile+graph"


def test_cheap_recipes_come_first_and_the_budget_is_kept(tmp_path):
    seconds = {"half": 50.0, "fifth_off": 5.0, "nothing": 1.0, "together": 500.0}
    space = space_of(*seconds, **{name: {"seconds": value} for name, value in seconds.items()})
    cells = cells_of(seconds=seconds)
    _, records, took = searched(tmp_path / "run", space, cells, budget=200.0)
    assert prepared(cells)[:4] == ["baseline", "nothing", "fifth_off", "half"]
    assert took <= 200.0
    assert fastest_correct(records.values()).variant == "half+fifth_off"
    not_tried = {name for name, record in records.items() if record.reason == NOT_TRIED}
    assert "half+fifth_off+together" in not_tried
    assert "together" not in prepared(cells)


COMPILER = {"kind": "compiler", "seconds": 30.0}


@pytest.mark.parametrize(("takes", "not_tried"), [(7.0, set()), (31.0, {"compile", "half"})])
def test_a_compiler_is_tried_although_its_guess_is_too_long(takes, not_tried, tmp_path):
    """The guess is one for a large network, and what transforms take says nothing about compilers."""
    cells = cells_of({"half": 0.9, "compile": 0.5}, {"half": 1.5, "compile": takes})
    space = space_of("half", "compile", half={"seconds": 1.0}, compile=COMPILER)
    _, records, _ = searched(tmp_path / "run", space, cells, budget=40.0)
    assert {"baseline", "half+compile"} <= set(prepared(cells))
    assert {name for name, record in records.items() if record.reason == NOT_TRIED} == not_tried


@pytest.mark.parametrize("compile_cache", ["fresh", "shared"])
def test_what_a_filled_cache_saves_is_expected(compile_cache, tmp_path):
    """The winner without its graph is the same compiled code: there is time to measure what the graph contributes."""
    graphed = Plan(1.0, prepare_s=37.0, phases={"inductor": 31.0})
    cells = cells_of({"graph": 0.5, "compile": 0.4}, **{"compile+graph": graphed, "compile": Plan(4.0, prepare_s=8.0)})
    few = {name: {"seconds": 1.0} for name in ("a", "b", "c")}
    graph = {"kind": "capture", "seconds": 1.0}
    space = space_of(*few, "graph", "compile", **few, graph=graph, compile=COMPILER)
    _, records, _ = searched(tmp_path / "run", space, cells, budget=100.0, compile_cache=compile_cache)
    rows = contributions(records.values(), fastest_correct(records.values()))
    assert {row.steps: row.without.variant for row in rows} == {("compile",): "graph", ("graph",): "compile"}


def test_a_preparation_that_does_not_end_is_stopped(tmp_path):
    cells = cells_of(seconds={"slower": 10_000.0})
    space = space_of("half", "slower", half={"seconds": 1.0}, slower={"seconds": 2.0})
    _, records, took = searched(tmp_path / "run", space, cells, budget=100.0)
    assert took <= 100.0 + GRACE + 1
    assert records["slower"].status == "failed"
    assert fastest_correct(records.values()).variant == "half"


def test_without_memory_for_another_one_the_slower_recipes_make_room(tmp_path):
    cells = FakeCells(Plans(FACTORS, {}), memory=3.5e9)
    _, records, _ = searched(tmp_path / "run", space_of("half", "fifth_off", "nothing", "slower"), cells)
    assert fastest_correct(records.values()).variant == "half+fifth_off"
    assert all(record.status == "ok" for record in records.values())


def needs_room(cells, others, step="ready"):
    """Return what happens at a step of a cell that fits beside so many others: beside more, it runs out of memory."""
    end = ends(reason="CUDA out of memory", out_of_memory=True)
    return {step: lambda on_event: end(on_event) if len(cells.held) > 1 + others else None}


@pytest.mark.parametrize(("others", "step"), [(0, "ready"), (1, "ready"), (0, 3), (1, "finish")])
def test_a_recipe_that_runs_out_of_memory_beside_others_is_tried_alone(others, step, tmp_path):
    cells = cells_of({"large": 0.2, "half": 0.5, "fifth_off": 0.8})
    cells.plans["large"] = Plan(2.0, prepare_s=3.0, happens=needs_room(cells, others, step))
    space = space_of("half", "fifth_off", "large", large={"seconds": 9.0})
    _, records, _ = searched(tmp_path / "run", space, cells)
    assert {record.status for record in records.values()} == {"ok"}, records["large"].reason
    assert cells.held == {}
    if (others, step) == (1, "ready"):
        assert "large" in fastest_correct(records.values()).variant
    else:
        assert ("large", "alone") in cells.log
        assert "alone: together with other variants it ran out of memory" in records["large"].notes[0]


def test_without_budget_to_try_it_alone_its_row_says_so(tmp_path):
    folder, space = tmp_path / "run", space_of("half", "large")
    cells = cells_of({"half": 0.5})
    cells.plans["large"] = Plan(2.0, prepare_s=50.0, happens=needs_room(cells, 0))
    _, records, _ = searched(folder, space, cells, budget=100.0)
    assert ("large", "alone") not in cells.log
    assert (records["large"].status, records["large"].reason) == ("skipped", NOT_TRIED)
    assert fastest_correct(records.values()).variant == "half"


def test_recipes_that_fail_cost_their_rows(tmp_path):
    happens = {"dies": {"ready": dies}, "later": {3: dies}, "last": {"finish": ends()}}
    happens["misfit"] = {"ready": ends(bad_input=True)}
    cells = cells_of(**{name: Plan(8.0, prepare_s=1.0, happens=each) for name, each in happens.items()})
    _, records, _ = searched(tmp_path / "run", space_of(*happens, "half"), cells)
    assert {records[name].status for name in happens} == {"failed"}
    assert {records[name].status for name in ("baseline", "half")} == {"ok"}
    assert "half" in fastest_correct(records.values()).variant


@pytest.mark.parametrize(("factor", "winner"), [(0.5, "half"), (1.5, "baseline")])
def test_beside_a_winner_a_recipe_that_fails_gives_exit_code_1(factor, winner, tmp_path):
    space, source = space_of("half", "other"), {"component": {"net": {}}}
    for code, happens in ((0, {}), (1, {"ready": dies})):
        cells = cells_of({"half": factor}, other=Plan(15.0, prepare_s=3.0, happens=happens))
        run, records, _ = searched(tmp_path / str(code), space, cells, source=source)
        assert fastest_correct(records.values()).variant == winner
        assert finished(run, space) == code


def test_without_a_baseline_nothing_is_searched(tmp_path):
    cells = cells_of(baseline=Plan(happens={"ready": dies}))
    _, records, _ = searched(tmp_path / "run", space_of("half"), cells)
    assert prepared(cells) == ["baseline"]
    assert fastest_correct(records.values()) is None


def test_steps_that_cannot_run_here_have_a_row_and_are_in_no_recipe(tmp_path):
    cells = cells_of()
    cells.not_run = {"half": End("skipped", "it needs a device")}
    space = space_of("half", "together", "fifth_off", together={"device": "cuda"}, fifth_off={"device": "cpu"})
    run, records, _ = searched(tmp_path / "run", space, cells)
    reasons = {"half": "it needs a device", "together": "changes nothing on cpu: the step is for cuda"}
    for step, why in reasons.items():
        assert (records[step].status, records[step].reason) == ("skipped", why)
    said = [line for line in run.progress.said if line.startswith("skipped")]
    assert sorted(said) == [f"skipped: {step} ({why})" for step, why in reasons.items()]
    assert sorted(prepared(cells)) == ["baseline", "fifth_off"]


def test_steps_that_are_refused_together_have_a_row_and_are_in_no_larger_recipe(tmp_path):
    refused = Plan(happens={"ready": ends("failed", "they refuse each other", bad_input=True)})
    cells = cells_of(**{"half+fifth_off": refused})
    run, records, _ = searched(tmp_path / "run", space_of("half", "fifth_off", "nothing"), cells)
    row = records["half+fifth_off"]
    assert (row.status, row.reason, row.bad_input) == ("skipped", "they refuse each other", False)
    assert "skipped: half+fifth_off (they refuse each other)" in run.progress.said
    assert not [name for name in prepared(cells) if {"half", "fifth_off", "nothing"} == {*name.split("+")}]
    assert records["half+nothing"].status == "ok", "an error of these two is none of the component"


def test_resuming_measures_what_is_missing(tmp_path):
    folder, space = tmp_path / "run", space_of(*STEPS)
    plans = {"half+together": Plan(3.7, prepare_s=3.0, happens={"ready": interrupts})}
    cells = cells_of(**plans)
    with pytest.raises(KeyboardInterrupt):
        searched(folder, space, cells)
    ended = {name for name, each in rows(folder).items() if each.status == "ok" or name == "wrong"}
    assert {"slower", "wrong"} <= ended < set(prepared(cells))
    again = cells_of()
    _, records, _ = searched(folder, space, again, resume=str(folder))
    assert fastest_correct(records.values()).variant == "half+fifth_off+together"
    assert ended & set(prepared(again)) == set()
    assert {"baseline", "half+together"} <= set(prepared(again))


def test_what_the_earlier_attempt_used_up_counts_wherever_it_ended(tmp_path):
    """It is noted before each preparation, for nothing can be noted when the search is killed."""
    folder, space, seconds = tmp_path / "run", space_of("half", "slower"), {"half": 30.0, "slower": 30.0}
    noted = lambda: json.loads((folder / SPENT).read_text())["seconds"]  # noqa: E731

    def attempt(**options):
        seen = []
        half = Plan(5.0, prepare_s=30.0, happens={"ready": lambda _: seen.append(noted())})
        slower = Plan(13.0, prepare_s=30.0, happens={"ready": interrupts})
        cells = cells_of(seconds=seconds, half=half, slower=slower)
        with pytest.raises(KeyboardInterrupt):
            searched(folder, space, cells, budget=200.0, **options)
        return cells.seconds, seen

    used, seen = attempt()
    assert seen == [pytest.approx(LOAD_S)]
    assert noted() == pytest.approx(used)
    used += attempt(resume=str(folder))[0]
    assert used > 120
    again = cells_of(seconds=seconds)
    _, _, took = searched(folder, space, again, budget=200.0, resume=str(folder))
    assert used + took < 200 + GRACE


def test_each_device_searches_its_own_steps_and_the_first_one_goes_on_with_all(tmp_path):
    """The second device is twice as slow: recipes are compared with the baseline on their own device."""
    folder, rules = tmp_path / "run", {"half": {"group": "g"}, "third": {"group": "g"}, "wrong": {"group": "g"}}
    factors = {"half": 0.5, "third": 0.33, "fifth_off": 0.8, "wrong": 0.1, "third+slower": 0.5, "slower": 1.3}
    space = space_of("half", "third", "wrong", "fifth_off", "slower", **rules)
    own, other = space.shares(2)
    devices = FakeCells(Plans({**factors, "": 2.0}, {}))
    _, theirs, _ = searched(folder / "devices" / "b", other, devices, 480.0)
    assert theirs["baseline"].wall_p50 == pytest.approx(2 * EAGER_MS, rel=0.01)
    assert {name for name in prepared(devices) if {"half", "wrong"} & {*name.split("+")}} == set()
    cells, before_it_waits = cells_of(factors), []
    waits = SimpleNamespace(wait=lambda seconds: before_it_waits.extend(prepared(cells)))
    _, records, _ = searched(folder, space, cells, own=own, others=partial(joined, folder / "devices", [waits]))
    assert before_it_waits
    assert not any("third" in name.split("+") for name in before_it_waits)
    best = fastest_correct(records.values())
    assert best.variant == "third+fifth_off+slower"
    assert records["third"].speedup.wall == pytest.approx(1 / 0.33, rel=0.01)
    assert records["wrong"].status == "failed"
    assert records["baseline"].wall_p50 == pytest.approx(EAGER_MS, rel=0.01)
    again = {name for name in prepared(cells) if name in theirs and theirs[name].status == "ok"}
    assert {name for name in again if "third" in name.split("+")} <= {best.variant}, "no recipe is tried twice"


def test_what_another_device_did_not_try_is_tried_by_the_first_one(tmp_path):
    folder, rules = tmp_path / "run", {"half": {"group": "g"}, "third": {"group": "g", "seconds": 200}}
    space = space_of("half", "third", **rules)
    own, other = space.shares(2)
    _, theirs, _ = searched(folder / "devices" / "b", other, cells_of(), 20.0)
    assert theirs["third"].reason == NOT_TRIED
    others = partial(joined, folder / "devices", [])
    _, records, _ = searched(folder, space, cells_of({"half": 0.5, "third": 0.33}), own=own, others=others)
    assert fastest_correct(records.values()).variant == "third"


def test_a_search_on_another_device_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tune", "component=[image_decoder]", "scale=tiny"])
    said = list[str]()
    with searching(tmp_path / "devices", {"cuda:77": ["compile"]}, 60.0, said.append) as joined_:
        assert joined_(0.0) == []
    assert len(said) == 1
    assert "the search on cuda:77 ended with exit code 2" in said[0]


KILLED = """
import os, signal, sys
from pathlib import Path
from profiling.tune.__main__ import searching
with searching(Path(sys.argv.pop()), {"cpu:0": ["regional"]}, 480.0, print) as joined:
    _, (search,) = joined.args
    print(search.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_searches_on_other_devices_end_with_a_process_that_is_killed(tmp_path):
    started = [sys.executable, "-c", KILLED, "component=[image_decoder]", "scale=tiny", str(tmp_path)]
    killed = subprocess.run(started, stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    other, deadline = int(killed.stdout), time.monotonic() + 10
    while psutil.pid_exists(other) and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        assert not psutil.pid_exists(other)
    finally:
        with suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)
