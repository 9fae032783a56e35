"""Turns: balanced order, the rule that ends them, what the record keeps, on fake cells and on a fake clock."""

import itertools
from functools import partial

import pytest
from as_user import outcome_of
from fake_cells import FakeCells, Plan, dies, rows, run_of

from profiling.metrics.sampling import LONGEST, Ready, window_of
from profiling.results.jsonl import read_records
from profiling.results.judge import DEFAULT_SPREADS, FEWEST, LOOKS
from profiling.results.measured import LEAST_VALUES
from profiling.results.verdicts import answer_on, compare_records, holds_rate, spread_of
from profiling.run import in_turns, runner
from profiling.run.turns import CONTROL_AFTER, Placement, take_turns

LIMITS = {"min_iterations": 20, "max_iterations": 2000, "max_seconds": 10.0}


def placements(cells):
    waiting = []
    for variant in cells.plans:
        session = cells.session({}, f"net.{variant}", lambda event: None)
        ready = next(session).ready
        waiting.append(Placement(variant, ready, lambda turn, session=session: session.send(turn).window))
    return waiting


def turns(cells, seconds=None):
    waiting = placements(cells)
    take_turns(waiting, seconds, seed=1, now=lambda: cells.seconds)
    return waiting


def blocks(cells):
    """The order of each block, from the log."""
    windows = [(variant, step) for variant, step in cells.log if isinstance(step, int)]
    return [[variant for variant, _ in block] for _, block in itertools.groupby(windows, lambda window: window[1])]


def test_each_second_block_has_the_order_of_the_one_before_reversed():
    cells = FakeCells({name: Plan(noise=0.5) for name in "abcd"})
    turns(cells, seconds=20.0)
    order = blocks(cells)
    assert all(sorted(block) == list("abcd") for block in order)
    pairs = list(zip(order[::2], order[1::2], strict=False))
    assert all(two == one[::-1] for one, two in pairs)
    assert len({tuple(one) for one, _ in pairs}) > 2, "drawn anew: turned round each time, there would be two"


@pytest.mark.parametrize(("least", "look"), [(20, 6), (251, 75)])
def test_a_clear_answer_ends_the_turns_at_the_first_look_at_which_there_are_enough_samples(least, look):
    cells = FakeCells(
        {
            "baseline": Plan(10.0, limits={"min_iterations": least, "max_iterations": 10**5}),
            "fast": Plan(2.0, limits={"max_iterations": 10**5}),
        }
    )
    waiting = turns(cells)
    assert {placement.stopped_by for placement in waiting} == {"decided"}
    assert [len(placement.windows) for placement in waiting] == [look, look]
    assert look in LOOKS


def test_turns_go_on_while_the_ratio_is_not_known():
    quiet, noisy = (FakeCells({name: Plan(noise=noise) for name in ("baseline", "same")}) for noise in (0.01, 1.5))
    assert {placement.stopped_by for placement in turns(quiet)} == {"decided"}
    assert {placement.stopped_by for placement in turns(noisy)} == {"time"}
    assert quiet.seconds < noisy.seconds <= 21


def records_of(folder, cells, **options):
    run = run_of(folder, cells, **options)
    assert run.execute() == 0
    return run, rows(run.folder)


def busy(share):
    """Others take that share of the CPU all the time."""
    return lambda seconds: share


@pytest.mark.parametrize(("factor", "said"), [(1.05, "undecided"), (5.0, "faster")])
def test_on_a_busy_machine_turns_end_and_only_what_others_cannot_explain_is_claimed(tmp_path, factor, said):
    plans = {name: Plan(ms, lost=busy(0.4)) for name, ms in (("baseline", 1.0), ("v", 1.0 / factor))}
    cells = FakeCells(plans)
    base, fast = records_of(tmp_path / "run", cells)[1].values()
    assert base.turns.stopped_by == "decided"
    assert len(base.turns.windows) == min(LOOKS), "more windows would not tell more"
    assert answer_on(fast, (base, fast)) == said
    assert {window.cpu_lost_share for window in base.turns.windows} == {0.4}


def test_limits_end_the_turns():
    cells = FakeCells({name: Plan(noise=0.5) for name in "abc"})
    turns(cells, seconds=5.0)
    assert 5.0 <= cells.seconds <= 5.0 + 3 * LONGEST
    for placement in turns(FakeCells({name: Plan(5000.0) for name in "ab"}), seconds=1.0):
        assert (len(placement.windows), placement.stopped_by) == (FEWEST, "time"), "what a claim needs"
    cells = FakeCells({name: Plan(0.05, limits={"min_iterations": 2000}) for name in ("baseline", "same")})
    for placement in turns(cells, seconds=1000.0):
        assert (placement.stopped_by, placement.samples(), len(placement.windows)) == ("iterations", 2000, 20), "spread"


def test_turns_with_the_next_cell_have_limits_of_their_own():
    cells = FakeCells({name: Plan(0.05, limits={"min_iterations": 2000}) for name in "abc"})
    baseline, one, two = placements(cells)
    for other in (one, two):
        take_turns([baseline, other], 1000.0, seed=1, now=lambda: cells.seconds)
        assert (other.samples(), len(other.windows), other.stopped_by) == (2000, 20, "iterations")
    assert baseline.samples() == 4000


def test_a_short_budget_has_room_for_an_interval():
    ready = Ready(used={}, free={}, **(LIMITS | {"max_seconds": 0.3}))
    assert LEAST_VALUES * window_of(ready).seconds <= 0.3


def test_the_warm_up_before_the_first_window_is_no_time_in_turns():
    counts = []
    for warm_s in (0.0, 20.0):
        cells = FakeCells({name: Plan(noise=0.5, warm_s=warm_s) for name in "ab"})
        counts.append([len(each.windows) for each in turns(cells, seconds=5.0)])
    assert counts[0] == counts[1]


def test_turns_end_after_so_many_blocks():
    cells = FakeCells({name: Plan(noise=0.5) for name in "ab"})
    waiting = placements(cells)
    take_turns(waiting, 1000.0, seed=1, now=lambda: cells.seconds, most_turns=3)
    assert [(len(each.windows), each.stopped_by) for each in waiting] == [(3, "time"), (3, "time")]


def test_a_run_prepares_all_variants_then_gives_turns_then_lets_each_finish(tmp_path):
    cells = FakeCells({"baseline": Plan(10.0), "fast": Plan(5.0), "slow": Plan(20.0)})
    _, records = records_of(tmp_path / "run", cells)
    steps = [step for _, step in cells.log]
    assert steps[:3] == ["ready"] * 3
    assert steps[-3:] == ["finish"] * 3
    assert [variant for variant, _ in cells.log[-3:]] == ["baseline", "fast", "slow"]
    base, fast, slow = (records[name] for name in cells.plans)
    assert fast.turns.beside == ("baseline", "slow")
    assert fast.turns.began == base.turns.began
    assert [window.block for window in fast.turns.windows] == list(range(len(fast.turns.windows)))
    assert sum(window.n for window in fast.turns.windows) == fast.metrics.wall_ms.n
    assert fast.speedup.wall == pytest.approx(2.0, rel=0.005)
    assert slow.speedup.wall == pytest.approx(0.5, rel=0.005)
    assert compare_records(slow, fast).ratio == pytest.approx(4.0, rel=0.005)
    assert base.rounds is None


def test_lines_of_a_finished_run_are_in_the_order_of_its_cells(tmp_path, monkeypatch):
    """On many cores what compiles begins before what does not."""
    cells = FakeCells({name: Plan() for name in ("baseline", "slow", "v")})
    run, prepare_all = run_of(tmp_path / "run", cells), in_turns.CellsInTurns.prepare_all
    backwards = lambda turns, due, later=(), most=1: prepare_all(turns, due[::-1], later, most)  # noqa: E731
    monkeypatch.setattr(in_turns.CellsInTurns, "prepare_all", backwards)
    assert run.execute() == 0
    assert cells.log[0] == ("v", "ready")
    assert [record.variant for record in read_records(run.folder).records] == ["baseline", "slow", "v"]


def test_a_drift_of_the_machine_does_not_change_the_speedup(tmp_path):
    """Both get twice as slow in a minute: one cell after the other would compare an early with a late one."""
    plans = {name: Plan(ms, drift=1.0) for name, ms in (("baseline", 10.0), ("v", 8.0))}
    _, records = records_of(tmp_path / "run", FakeCells(plans))
    assert records["v"].speedup.wall == pytest.approx(1.25, rel=0.01)


NEAR = {"baseline": Plan(10.0), "best": Plan(5.0), "near": Plan(5.5), "far": Plan(7.0)}


def test_the_baseline_the_best_and_those_that_may_be_as_fast_have_a_second_process(tmp_path):
    run, records = records_of(tmp_path / "run", FakeCells(NEAR))
    controls = {name: record.turns.controls for name, record in records.items()}
    assert {name: len(each) for name, each in controls.items()} == {"baseline": 1, "best": 1, "near": 1, "far": 0}
    for record in records.values():
        blocks = [window.block for window in record.turns.windows]
        for control in record.turns.controls:  # which has no part in what tells if the best cell holds a frame rate
            assert [window.block for window in control.windows] == blocks[CONTROL_AFTER : min(LOOKS)]
        assert record.metrics.wall_ms.n == sum(window.n for window in record.turns.windows), "not its samples"
    assert records["best"].turns.spread.learned == 3
    assert len(run.cells.spreads.pairs["CPU"]) == 3


@pytest.mark.parametrize(("control_ms", "wider"), [(None, False), (13.0, True)])
def test_by_how_much_controls_differ_widens_or_narrows_the_interval(tmp_path, control_ms, wider):
    plans = {"baseline": Plan(10.0, control_ms=control_ms), "v": Plan(10.0)}
    _, records = records_of(tmp_path / "run", FakeCells(plans))
    stored = spread_of(records["v"])
    assert (stored.freedom, stored.learned) == (DEFAULT_SPREADS["CPU"].freedom + 2, 2)
    assert (stored.std > DEFAULT_SPREADS["CPU"].std) is wider


@pytest.mark.parametrize("step", ["ready", 3])
def test_a_control_that_fails_costs_nothing(tmp_path, step):
    plans = {"baseline": Plan(10.0, control_happens={step: dies}), "v": Plan(5.0)}
    _, records = records_of(tmp_path / "run", FakeCells(plans))
    assert [record.status for record in records.values()] == ["ok", "ok"]
    assert [len(record.turns.controls) for record in records.values()] == [0, 1]
    assert records["v"].speedup.wall == pytest.approx(2.0, rel=0.005)


def test_controls_are_prepared_as_far_as_memory_allows(tmp_path):
    cells = FakeCells({name: Plan() for name in ("baseline", "v")}, memory=3.5e9)
    _, records = records_of(tmp_path / "run", cells)
    assert [len(record.turns.controls) for record in records.values()] == [1, 0]
    assert cells.held == {}


def test_rounds_repeat_only_cells_that_took_no_turns(tmp_path):
    cells = FakeCells({"baseline": Plan(), "v": Plan()})
    _, records = records_of(tmp_path / "run", cells, rounds=3)
    assert sum(step == "ready" for _, step in cells.log) == 2
    assert [record.rounds for record in records.values()] == [None, None]
    single = FakeCells({"baseline": Plan()})
    _, records = records_of(tmp_path / "single", single, rounds=3)
    assert single.log == [("baseline", "alone")] * 3
    assert (records["baseline"].turns, len(records["baseline"].rounds)) == (None, 3)


@pytest.mark.parametrize(
    ("plan", "stopped_by", "windows"),
    [
        (Plan(10.0), "decided", min(LOOKS)),  # holds 60 FPS, as further calls alone show
        (Plan(10.0, noise=0.5, limits={"max_iterations": 400}), "iterations", None),
        (Plan(40.0, limits={"max_seconds": 30.0}), "decided", None),
    ],
)
def test_a_single_variant_has_all_turns_until_its_time_and_its_rates_are_known(plan, stopped_by, windows, tmp_path):
    cells = FakeCells({"baseline": plan})
    _, records = records_of(tmp_path / "run", cells)
    (record,) = records.values()
    assert record.turns.stopped_by == stopped_by
    assert record.turns.beside == record.turns.controls == ()
    if windows is not None:
        assert len(record.turns.windows) >= windows
    if stopped_by == "decided":
        assert {holds_rate(record, each).answer for each in record.deadlines} <= {"yes", "no"}


def test_seconds_are_those_of_a_component_however_many_cells_the_memory_holds(tmp_path, monkeypatch):
    plans = {name: Plan(10.0, noise=0.5) for name in ("baseline", "v", "w", "x", "y")}
    spent = []
    for memory in (1e15, 3e9):
        cells = FakeCells(plans, memory=memory)
        clock = partial(in_turns.CellsInTurns, now=lambda cells=cells: cells.seconds)
        monkeypatch.setattr(runner, "CellsInTurns", clock)
        _, records = records_of(tmp_path / f"{memory:g}", cells, seconds=10.0)
        turns = [record.turns for record in records.values()]
        windows = [window for each in turns for timed in (each, *each.controls) for window in timed.windows]
        spent.append(sum(window.n * window.p50 for window in windows) / 1e3)
    assert spent == pytest.approx([10.0, 10.0], rel=0.3)


def test_where_the_memory_holds_two_cells_the_baseline_stays_for_each_of_the_others(tmp_path):
    cells = FakeCells({name: Plan() for name in ("baseline", "v", "w")}, memory=3 * 10**9)
    base, one, two = records_of(tmp_path / "run", cells)[1].values()
    assert (base.turns.beside, one.turns.beside, two.turns.beside) == (("v", "w"), ("baseline",), ("baseline",))
    assert [one.speedup.wall, two.speedup.wall] == pytest.approx([1, 1], rel=0.01)
    assert blocks_of(one).isdisjoint(blocks_of(two)), "also where the leader had windows alone, for its frame rates"
    assert min(len(blocks_of(base) & blocks_of(each)) for each in (one, two)) >= min(LOOKS)
    assert base.metrics.wall_ms.n == sum(window.n for window in base.turns.windows)


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    """The records of a run in one process, two of whose variants compile the same code."""
    folder = tmp_path_factory.mktemp("compiled")
    variants = ("variant=[baseline,again,compile,compiled_alike]", "metric=[parity,latency]", "isolation=none")
    outcome = outcome_of(folder / "run", "component=[net]", *variants)
    assert outcome.code == 0, outcome.err
    return {variant: record for (_, variant), record in outcome.records.items()}


def blocks_of(record):
    return {window.block for window in record.turns.windows}


def test_in_one_process_cells_that_compile_take_turns_with_the_baseline_one_by_one(in_one_process):
    """Two of them would share what the compiler keeps; none may be compiled anew in its windows, either."""
    base, again, one, other = in_one_process.values()
    assert base.turns.controls == again.turns.controls == (), "a second placement here says nothing about processes"
    assert blocks_of(base) > blocks_of(again)
    assert blocks_of(one).isdisjoint(blocks_of(other))
    assert one.prepare.graphs == other.prepare.graphs == 1
    assert compare_records(base, again).in_turns
    assert not compare_records(one, other).in_turns, "they had no windows side by side"


def test_cells_of_a_run_share_a_cold_compile(in_one_process):
    cold, warm = (in_one_process[variant].prepare for variant in ("compile", "compiled_alike"))
    assert (cold.cache, cold.cache_hits) == ("cold", 0)
    assert warm.cache == "from compile"
    assert warm.cache_hits > 0
    assert warm.phases["inductor"] < cold.phases["inductor"]
    assert warm.from_cold == pytest.approx(warm.seconds + cold.phases["inductor"] - warm.phases["inductor"])
    for prepare in (cold, warm):
        assert 0 < sum(prepare.phases.values()) < prepare.seconds
