"""The environment keeps what it knows; generated docs are fresh; what may be concluded from records."""

import json
from pathlib import Path

import msgspec
import pytest
from make_record import record, summary
from msgspec.structs import replace

from profiling.results import schema
from profiling.results.environment import Environment, Git, decode_environment, encode_environment, read_environment
from profiling.results.judgement import (
    baseline_name,
    by_component,
    can_be_ranked,
    can_be_ranked_across_runs,
    claimed_speedup,
    comparable_samples,
    correct_baseline,
    disturbance,
    disturbance_explains,
    fastest_correct,
    intervals_overlap,
    is_disturbed,
    paired_speedup,
    same_code_explains,
    samples_by_round,
    took_turns,
    typical_ms,
    without_samples,
)
from profiling.results.measured import LatencyConditions, Metrics, Parity, Round, RoundSummary, Speedup, Turns, Window
from profiling.results.record import leaves
from profiling.results.stats import summarize

RUNS = sorted((Path(__file__).resolve().parents[3] / "docs" / "results").glob("*/environment.json"))
WRONG = Parity(reference="fp32 eager", passed=False)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_committed_environment_loses_nothing(path):
    environment = read_environment(path.parent)
    assert (environment.unreadable, environment.other) == ((), {})
    old = json.loads(path.read_text())
    if "git" in old:
        old["tool_git"] = old.pop("git")
    new = json.loads(json.dumps(encode_environment(environment)))
    assert dict(leaves(new)) == dict(leaves(old))


def test_unknown_keys_of_an_environment_are_kept():
    environment = decode_environment(b'{"seed": 3, "cluster": {"node": 4}, "git": {"revision": "ab"}}')
    assert environment == Environment(seed=3, tool_git=Git(revision="ab"), other={"cluster": {"node": 4}})
    assert decode_environment(json.dumps(encode_environment(environment)).encode()) == environment


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000])
def test_an_environment_that_is_none_is_empty(tmp_path, text):
    (tmp_path / "environment.json").write_bytes(text)
    assert not read_environment(tmp_path).is_known
    assert not read_environment(tmp_path / "absent").is_known


def test_damage_in_an_environment_costs_what_it_touches():
    environment = decode_environment(b'{"seed": 3, "device": {"name": "GPU", "l2_bytes": "large"}, "ceilings": {}}')
    assert environment.seed == 3
    assert environment.device is not None
    assert environment.device.name == "GPU"
    assert [each.partition(":")[0] for each in environment.unreadable] == ["device.l2_bytes", "ceilings"]


def test_the_generated_docs_are_fresh():
    stale = [path for path, content in schema.files().items() if not path.is_file() or path.read_text() != content]
    assert not stale, "run: python -m profiling.results.schema"


def test_every_field_says_what_it_means():
    structs = schema.json_schema()["$defs"]
    silent = [
        f"{name}.{field}"
        for name, struct in structs.items()
        for field, content in struct["properties"].items()
        if field != "schema" and not content.get("description")
    ]
    assert not silent


def test_a_speedup_is_claimed_only_between_correct_records():
    baseline, fast = record("baseline", 4.0), record("fast", 2.0, speedup=Speedup(vs="baseline", wall=2.0))
    wrong = record("wrong", 1.0, speedup=Speedup(vs="baseline", wall=4.0), parity=WRONG)
    group = (baseline, fast, wrong)
    assert baseline_name(group) == "baseline"
    assert correct_baseline(group) == baseline
    assert fastest_correct(group) == fast
    assert [claimed_speedup(each, group) for each in group] == [None, 2.0, None]
    assert claimed_speedup(fast, (record("baseline", 4.0, parity=WRONG), fast)) is None
    assert fastest_correct((record("a"), wrong)) is None
    assert by_component((baseline, record("a", component="other"), fast))["net"] == (baseline, fast)


@pytest.mark.parametrize(
    ("clock", "wall", "claimed"),
    [
        pytest.param(1980, 1.05, 1.05, id="same clock"),
        pytest.param(2020, 1.01, 1.01, id="clocks within 3%"),
        pytest.param(2200, 1.05, None, id="a higher clock could make it faster"),
        pytest.param(2200, 1.5, 1.5, id="faster than the clock could make it"),
        pytest.param(1800, 1.05, 1.05, id="faster at a lower clock"),
        pytest.param(1800, 0.95, None, id="a lower clock could make it slower"),
        pytest.param(None, 1.05, 1.05, id="clock not known"),
    ],
)
def test_a_speedup_that_the_clocks_could_make_is_not_claimed(clock, wall, claimed):
    baseline, fast = (
        record(name, 4.0, speedup=speedup, metrics=Metrics(wall_ms=summary(4.0), latency=at_clock(mhz)))
        for name, speedup, mhz in (("baseline", None, 1980), ("fast", Speedup(vs="baseline", wall=wall), clock))
    )
    assert claimed_speedup(fast, (baseline, fast)) == claimed


def at_clock(mhz):
    return LatencyConditions(cold=False, warmup_iterations=1, warmup_seconds=0.1, settled=True, sm_clock_median_mhz=mhz)


def test_intervals_overlap():
    def timed(low, high):
        return record(metrics=Metrics(wall_ms=summary(1.0, ci95=(low, high))))

    assert intervals_overlap(timed(1.0, 2.0), timed(1.5, 3.0)) is True
    assert intervals_overlap(timed(1.0, 2.0), timed(2.5, 3.0)) is False
    assert intervals_overlap(timed(1.0, 2.0), record()) is None


def in_conditions(p50=1.0, n=100, **shares):
    """A record of n calls that took p50 each, while others took these shares."""
    conditions = LatencyConditions(cold=False, warmup_iterations=1, warmup_seconds=0.1, settled=True, **shares)
    return record(metrics=Metrics(wall_ms=summary(p50, n=n), latency=conditions))


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"cpu_lost_share": 0.38, "descheduled": 0}, "other processes took 38% of the CPU"),
        ({"cpu_lost_share": 0.01, "gpu_lost_share": 0.4}, "other processes took 40% of the GPU"),
        ({"cpu_lost_share": 0.04, "descheduled": 90}, ""),
        ({"run_queue_wait_ms": 20.0}, "other processes took up to 20% of the CPU"),
        ({"run_queue_wait_ms": 4.0, "descheduled": 50}, ""),
        ({"descheduled": 10}, "other processes took up to 40% of the CPU"),
        ({"descheduled": 1}, ""),
        ({}, ""),
    ],
)
def test_a_record_is_disturbed_by_the_time_that_others_took(shares, words):
    """100 calls of 1 ms: older records have the wait, or only how often they were interrupted, at most 4 ms each."""
    judged = in_conditions(**shares)
    assert is_disturbed(judged) == bool(words)
    assert (taken.words if (taken := disturbance(judged)) else "") == words
    assert not is_disturbed(record(p50=1.0))


def test_eight_interruptions_of_sixty_long_calls_are_no_disturbance():
    assert not is_disturbed(in_conditions(50.0, n=60, descheduled=8))


def test_disturbance_explains_no_difference_that_is_larger_than_what_others_took():
    quiet, busy = in_conditions(1.0, cpu_lost_share=0.0), in_conditions(2.6, cpu_lost_share=0.6)
    assert disturbance_explains(quiet, busy) is not None, "calls of up to 1.1 ms against 2.34 ms: without others 0.94"
    assert disturbance_explains(quiet, in_conditions(2.6, cpu_lost_share=0.3)) is None
    assert disturbance_explains(busy, in_conditions(3.0, cpu_lost_share=0.0)) is not None
    assert disturbance_explains(busy, in_conditions(3.5, cpu_lost_share=0.0)) is None, "alone it would be faster still"


def in_windows(variant, shares, ms, taken_ms=1.0):
    """A record of turns, two calls a window of `ms` each, of which others took `shares`; those take longer."""
    samples = tuple(each for share in shares for each in (ms + (share > 0.05) * taken_ms,) * 2)
    windows = tuple(
        Window(block=block, start_s=0.1 * block, n=2, cpu_lost_share=share) for block, share in enumerate(shares)
    )
    conditions = LatencyConditions(
        cold=False, warmup_iterations=1, warmup_seconds=0.1, settled=True, cpu_lost_share=sum(shares) / len(shares)
    )
    metrics = Metrics(wall_ms=summarize(samples), latency=conditions)
    return record(variant, metrics=metrics, turns=Turns(began="now", beside=(), windows=windows))


def test_cells_are_compared_by_the_windows_that_nobody_disturbed_where_enough_remain():
    quiet, busy = [0.0] * 8, [0.0, 0.4, 0.0, 0.4, 0.0, 0.0, 0.0, 0.0]
    one, other = in_windows("one", quiet, 1.0), in_windows("other", busy, 1.25)
    assert paired_speedup(one, other) == (pytest.approx(1.25), pytest.approx((1.25, 1.25)))
    assert comparable_samples(other) == ((1.25, 1.25),) * 6
    assert (typical_ms(other), is_disturbed(other), disturbance(other)) == (1.25, True, None)
    assert can_be_ranked(one, other)
    assert not intervals_overlap(one, other)


def test_without_enough_undisturbed_windows_nothing_is_ranked():
    quiet, busy = [0.0] * 8, [0.4, 0.4, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0]
    one, other = in_windows("one", quiet, 1.0), in_windows("other", busy, 1.01)
    assert len(comparable_samples(other)) == 8
    assert disturbance(other).words == "other processes took 15% of the CPU"
    assert not can_be_ranked(one, other)
    assert not can_be_ranked(other, one)
    shifted = in_windows("other", busy[::-1], 1.01)
    assert not can_be_ranked(in_windows("one", busy, 1.0), shifted), "each has five, and they share only two"


def test_a_few_windows_that_nobody_disturbed_are_no_disturbance():
    """A short budget: four windows, too few for an interval, but not because of others."""
    one, other = in_windows("one", [0.0] * 4, 1.0), in_windows("other", [0.0] * 4, 1.25)
    assert disturbance_explains(one, other) is None
    assert intervals_overlap(one, other) is None


def test_cells_of_one_group_that_share_no_window_did_not_take_turns():
    """A cell that ended before another began: their windows lie apart, and are paired with nothing."""
    one, later = in_windows("one", [0.0] * 8, 1.0), in_windows("later", [0.0] * 8, 1.25)
    assert took_turns(one, later)
    windows = tuple(msgspec.structs.replace(each, block=each.block + 8) for each in later.turns.windows)
    later = msgspec.structs.replace(later, turns=msgspec.structs.replace(later.turns, windows=windows))
    assert not took_turns(one, later)
    assert not took_turns(later, one)


@pytest.mark.parametrize("busy", [[0.0] * 8, [0.4, 0.0] * 2 + [0.0] * 4, [0.4] * 3 + [0.0] * 4, [0.4] * 8])
@pytest.mark.parametrize("ms", [1.01, 1.03, 1.3, 3.0])
def test_without_samples_a_cell_is_judged_against_cells_of_other_runs_as_with_them(busy, ms):
    one, later = in_windows("one", [0.0] * 8, 1.0), in_windows("other", busy, ms)
    other = msgspec.structs.replace(later, turns=msgspec.structs.replace(later.turns, began="later"))
    thin = [without_samples(each) for each in (one, other)]
    assert [typical_ms(each) for each in thin] == [typical_ms(one), typical_ms(other)]
    assert [disturbance(each) for each in thin] == [disturbance(one), disturbance(other)]
    assert can_be_ranked_across_runs(*thin) == can_be_ranked_across_runs(one, other)
    assert thin[0].metrics.wall_ms.samples == ()
    assert thin[0].turns.windows == ()


def test_few_windows_rank_two_cells_whose_calls_are_all_apart():
    quiet = [0.0] * 4
    one, near, far = (in_windows(name, quiet, ms) for name, ms in (("one", 1.0), ("near", 1.002), ("far", 1.3)))
    assert paired_speedup(one, far) == (pytest.approx(1.3), None)
    assert can_be_ranked(one, far)
    assert can_be_ranked(far, one)
    assert not can_be_ranked(one, near)
    assert not can_be_ranked(one, in_windows("far", [0.0] * 2, 1.3)), "four calls"


def test_an_order_that_the_windows_contradict_is_a_tie():
    """The machine gets slower; `other` has most of its calls at the end, and is always faster than its neighbour."""

    def drifting(variant, factor, counts):
        samples = tuple(factor * (1 + block) for block, n in enumerate(counts) for _ in range(n))
        windows = tuple(Window(block=block, start_s=float(block), n=n) for block, n in enumerate(counts))
        turns = Turns(began="now", beside=(), windows=windows)
        return record(variant, metrics=Metrics(wall_ms=summarize(samples)), turns=turns)

    one, other = drifting("one", 1.0, [2] * 8), drifting("other", 0.98, [2] * 7 + [50])
    assert one.median_ms < other.median_ms
    assert paired_speedup(one, other)[0] == pytest.approx(0.98)
    assert intervals_overlap(one, other) is intervals_overlap(other, one) is True


def timed_beside(variant, ms, device, *, one_process=False, **conditions):
    windows = tuple(Window(block=block, start_s=0.1 * block, n=2) for block in range(8))
    turns = Turns(began="now", beside=("baseline", "other"), one_process=one_process, windows=windows)
    speedup = Speedup(vs="baseline", wall=1.0 / ms) if variant != "baseline" else None
    latency = LatencyConditions(cold=False, warmup_iterations=1, warmup_seconds=0.1, settled=True, **conditions)
    metrics = Metrics(wall_ms=summarize((ms,) * 16), latency=latency)
    return record(variant, metrics=metrics, turns=turns, device=device, speedup=speedup)


@pytest.mark.parametrize(
    ("ms", "device", "conditions", "claimed"),
    [
        (0.994, "cuda:0", {}, False),
        (0.992, "cuda:0", {}, True),
        (0.98, "cuda:0", {"l2_share": 1.5}, False),
        (1.023, "cuda:0", {"l2_share": 1.5}, False),
        (0.97, "cuda:0", {"l2_share": 1.5}, True),
        (0.992, "cuda:0", {"l2_share": 6.0}, True),
        (0.98, "cuda:0", {"one_process": True}, False),
        (0.92, "cpu", {}, False),
        (0.88, "cpu", {}, True),
        (0.98, "cpu", {"pinned_cores": (1,)}, False),
        (0.95, "cpu", {"pinned_cores": (1,)}, True),
    ],
)
def test_a_difference_that_equal_code_shows_is_no_claim(ms, device, conditions, claimed):
    """The shares by which equal code differed are in docs/measuring.md, with what measured them."""
    baseline = timed_beside("baseline", 1.0, device, **conditions)
    other = timed_beside("other", ms, device, **conditions)
    assert can_be_ranked(baseline, other) is can_be_ranked(other, baseline) is claimed
    assert (claimed_speedup(other, (baseline, other)) is not None) is claimed


@pytest.mark.parametrize(("ms", "claimed"), [(0.985, False), (1.019, False), (0.975, True)])
def test_cells_that_took_no_turns_differ_as_two_runs_of_the_same_code_do(ms, claimed):
    """Their intervals are far apart, and say nothing of what the machine did between the one and the other."""
    one, other = (
        replace(timed_beside(variant, each, "cuda:0", l2_share=6.0), turns=None)
        for variant, each in (("baseline", 1.0), ("other", ms))
    )
    assert can_be_ranked(one, other) is can_be_ranked(other, one) is claimed
    assert (claimed_speedup(other, (one, other)) is not None) is claimed


def test_medians_a_hair_apart_are_a_tie_however_narrow_their_intervals_are():
    one, other, further = (timed_beside(f"v{ms}", ms, "cuda:0") for ms in (1.0, 1.002, 1.004))
    one, other, further = (replace(each, turns=None) for each in (one, other, further))
    assert intervals_overlap(one, other) is intervals_overlap(other, one) is True
    assert intervals_overlap(one, further) is False


def test_of_cells_in_turns_the_ratio_of_their_windows_counts_and_not_that_of_all_calls():
    """The machine gets 4% slower; most calls of `other` are at its end, where its neighbour was as slow."""

    def drifting(variant, factor, last):
        counts = (2,) * 8 + (last,)
        samples = tuple(factor * (1 + 0.005 * block) for block, n in enumerate(counts) for _ in range(n))
        windows = tuple(Window(block=block, start_s=float(block), n=n) for block, n in enumerate(counts))
        turns = Turns(began="now", beside=(), windows=windows)
        return record(variant, metrics=Metrics(wall_ms=summarize(samples)), turns=turns, device="cuda:0")

    one, other = drifting("one", 1.0, 2), drifting("other", 1.005, 60)
    assert other.median_ms / one.median_ms > 1.02
    assert same_code_explains(one, other)
    assert same_code_explains(other, one)


def test_samples_are_split_by_round():
    metrics = Metrics(wall_ms=summary(2.0, samples=(1.0, 2.0, 3.0)))
    rounds = tuple(Round(wall_ms=RoundSummary(n=n, mean=1.0, p50=1.0)) for n in (1, 2))
    assert samples_by_round(record(metrics=metrics, rounds=rounds)) == ((1.0,), (2.0, 3.0))
    assert samples_by_round(record(metrics=metrics, rounds=rounds[:1])) == ((1.0, 2.0, 3.0),)
    assert samples_by_round(record(metrics=metrics)) == ((1.0, 2.0, 3.0),)
    assert samples_by_round(record()) == ()
