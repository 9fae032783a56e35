"""Verdicts on records: the same numbers give the same answer, whatever else a record holds."""

import numpy as np
import pytest
from make_record import record, summary
from msgspec.structs import replace

from profiling.results.explanations import RecipeStep
from profiling.results.judge import DEFAULT_SPREADS
from profiling.results.measured import (
    Control,
    LatencyConditions,
    Metrics,
    Parity,
    Round,
    RoundSummary,
    Spread,
    Turns,
    Window,
)
from profiling.results.stats import rates_of_calls, summarize
from profiling.results.verdicts import (
    answer_on,
    compare_records,
    holds_rate,
    interval_of,
    placements_of,
    ranking,
    speedup,
    spread_kind,
    spread_of,
    taken,
    work_of,
)

WRONG = Parity(reference="fp32 eager", passed=False)
CONDITIONS = LatencyConditions(cold=False, warmup_seconds=0.1, settled=True)


def windows(ms, n=20, seed=0, noise=0.002, taken=0.0, first=0):
    times = ms * np.exp(noise * np.random.default_rng(seed).standard_normal(n))
    return tuple(
        Window(block=first + place, start_s=float(place), n=5, p50=float(each), cpu_lost_share=taken)
        for place, each in enumerate(times)
    )


def timed(variant, ms, *, began="now", taken=0.0, std=0.002, noise=0.002, seed=0, controls=(), **more):
    """A record in turns, whose windows take about `ms`."""
    of = windows(ms, seed=seed, noise=noise, taken=taken)
    turns = Turns(began=began, beside=(), windows=of, controls=controls)
    metrics = Metrics(wall_ms=summary(ms), latency=replace(CONDITIONS, cpu_lost_share=taken))
    made = record(variant, ms, turns=turns, **{"metrics": metrics, **more})
    return replace(made, turns=replace(turns, spread=Spread(std=std, freedom=20.0, kind=spread_kind(made))))


def test_records_that_took_turns_are_compared_by_their_windows():
    times = {"baseline": 4.0, "fast": 2.0, "equal": 2.0}
    group = [timed(name, ms, seed=seed) for seed, (name, ms) in enumerate(times.items(), 1)]
    fast = group[1]
    assert (speedup(fast, group).ratio, speedup(fast, group).in_turns) == (pytest.approx(2.0, rel=0.01), True)
    assert [answer_on(each, group) for each in group] == [None, "faster", "faster"]
    ranked = ranking(group)
    assert {ranked.leader, *ranked.named("same")} == {"fast", "equal"}
    assert ranked.named("slower") == ["baseline"]
    one, of_another_run = timed("a", 1.03, seed=1), timed("b", 1.0, began="before", seed=2)
    near, apart = (compare_records(one, other) for other in (timed("b", 1.0, seed=2), of_another_run))
    assert (near.answer(), apart.in_turns) == ("slower", False)
    (low, high), (near_low, near_high) = apart.interval(), near.interval()
    assert high - low > 1.5 * (near_high - near_low), "two runs are known worse than turns"


def test_what_is_undecided_among_many_is_undecided_against_the_baseline():
    """2.6% with a spread of 0.8% is beyond chance for one pair, and not for one of fifteen."""
    eager, fast = timed("baseline", 1.026, std=0.008, seed=1), timed("fast", 1.0, std=0.008, seed=2)
    others = [timed(f"v{n}", 3.0, std=0.008, seed=3 + n) for n in range(4)]
    assert answer_on(fast, (eager, fast)) == "faster"
    group = (eager, fast, *others)
    assert ranking(group).named("undecided") == ["baseline"]
    assert answer_on(fast, group) == "undecided"
    low, high = speedup(fast, group).interval()
    assert low < 1 < high
    assert [answer_on(each, group) for each in others] == ["slower"] * 4
    second = timed("second", 1.001, std=0.008, seed=9)
    assert answer_on(second, (eager, second)) == "faster"
    assert answer_on(second, (*group, second)) == "undecided", "nor is one that does not lead"


def test_controls_and_rounds_are_placements_and_samples_are_windows_where_there_were_no_turns():
    control = Control(windows=windows(2.0, seed=9, first=2))
    placed = placements_of(timed("a", 2.0, controls=(control,)))
    assert [(each.ms.size, int(each.turns[0])) for each in placed] == [(20, 0), (20, 2)]
    assert placed[0].session == placed[1].session
    samples = tuple(np.random.default_rng(0).normal(10.0, 0.1, 120))
    alone = record("a", 10.0, metrics=Metrics(wall_ms=summary(10.0, samples=samples)))
    (whole,) = placements_of(alone)
    assert (whole.ms.size, whole.session) == (24, "")
    rounds = tuple(Round(wall_ms=RoundSummary(n=40, p50=10.0)) for _ in range(3))
    assert [each.ms.size for each in placements_of(replace(alone, rounds=rounds))] == [24] * 3


CAPTURE = (RecipeStep(kind="capture", name="CudaGraph", seconds=1.0),)


def test_what_decides_how_much_processes_differ():
    for device, host, recipe, cores, kind in (
        *(("cpu", None, None, (), "CPU"), ("cpu", None, None, (1,), "CPU, pinned")),
        *(("cuda:0", 9.0, None, (), "host-bound"), ("cuda:0", 1.0, None, (), "device-bound")),
        ("cuda:0", 9.0, CAPTURE, (), "captured"),
    ):
        latency = replace(CONDITIONS, pinned_cores=cores)
        metrics = Metrics(wall_ms=summary(10.0), host_ms=host and summary(host), latency=latency)
        made = record("a", device=device, recipe=recipe, metrics=metrics)
        assert (spread_kind(made), spread_of(made)) == (kind, DEFAULT_SPREADS[kind])
    stored = timed("a", 1.0, std=0.5)
    assert spread_of(stored).std == 0.5, "what the run has stored"
    of_older_code = replace(stored, turns=replace(stored.turns, spread=Spread(std=0.5, freedom=20.0)))
    assert spread_of(of_older_code) == DEFAULT_SPREADS["CPU"]


def test_beside_others_the_interval_reaches_down_to_the_shortest_call_without_what_others_took():
    calm, busy = timed("a", 8.0), timed("a", 8.0, taken=0.4)
    short = replace(busy, metrics=replace(busy.metrics, wall_ms=replace(busy.metrics.wall_ms, min=0.01)))
    assert interval_of(calm)[0] > 7.9
    assert interval_of(short)[0] == pytest.approx(0.01 * (1 - 0.4))
    assert taken(busy.conditions).words == "40% of the CPU went to other processes"
    assert taken(record("a").conditions) is None


def calls(wall_ms, **more):
    metrics = Metrics(wall_ms=summarize(wall_ms), rates=rates_of_calls(wall_ms, 1))
    return record("a", metrics=replace(metrics, latency=replace(CONDITIONS, **more)))


def test_a_rate_is_held_by_the_bound_of_late_calls():
    def said(wall_ms, **more):
        made = calls(wall_ms, **more)
        return [holds_rate(made, each).answer for each in made.deadlines]

    assert said([10.0] * 600) == ["yes", "yes", "yes", "no"]
    assert said([10.0] * 100) == ["undecided", "undecided", "undecided", "no"]
    assert said([20.0] * 600, cpu_lost_share=0.6)[2] == "undecided", "without others it could be in time"
    assert said([20.0] * 600, cpu_lost_share=0.1)[2] == "no"
    # Threads that wait for each other lose more than the share that is measured: the shortest call shows it.
    assert said([1.0, *[136.0] * 599], cpu_lost_share=0.5)[0] == "undecided"
    assert said([1.0, *[136.0] * 599], cpu_lost_share=0.0)[0] == "no"
    beside, alone = (calls([10.0, 300.0] + [10.0] * 98, cpu_lost_share=share) for share in (0.6, 0.0))
    wanted = [holds_rate(each, each.deadlines[0]).wanted for each in (beside, alone)]
    assert wanted[0] == 0, "others may have caused the late call: more calls beside them tell nothing"
    assert wanted[1] > 0
    quick = calls([10.0] * 600)
    at_24 = quick.deadlines[0]
    assert holds_rate(replace(quick, late=0.001), at_24).answer == "undecided", "how many calls may be late"
    assert holds_rate(replace(quick, parity=WRONG), at_24) is None


def test_work_is_what_makes_times_comparable():
    assert work_of(record("a", scale="tiny"))["scale"] == "tiny"
    assert work_of(calls([1.0] * 6))["cold"] is False
