"""The environment keeps what it knows; generated docs are fresh; what may be concluded from records."""

import json
from pathlib import Path

import pytest
from make_record import record, summary

from profiling.results import schema
from profiling.results.environment import Environment, Git, decode_environment, encode_environment, read_environment
from profiling.results.judgement import (
    baseline_name,
    by_component,
    claimed_speedup,
    correct_baseline,
    fastest_correct,
    intervals_overlap,
    is_disturbed,
    samples_by_round,
)
from profiling.results.record import LatencyConditions, Metrics, Parity, Round, RoundSummary, Speedup, leaves

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


def test_interruptions_are_counted_a_call():
    def interrupted(switches):
        conditions = LatencyConditions(
            cold=False, warmup_iterations=1, warmup_seconds=0.1, settled=True, descheduled=switches
        )
        return record(metrics=Metrics(wall_ms=summary(1.0, n=100), latency=conditions))

    assert is_disturbed(interrupted(10))
    assert not is_disturbed(interrupted(9))
    assert not is_disturbed(record(p50=1.0))


def test_samples_are_split_by_round():
    metrics = Metrics(wall_ms=summary(2.0, samples=(1.0, 2.0, 3.0)))
    rounds = tuple(Round(wall_ms=RoundSummary(n=n, mean=1.0, p50=1.0)) for n in (1, 2))
    assert samples_by_round(record(metrics=metrics, rounds=rounds)) == ((1.0,), (2.0, 3.0))
    assert samples_by_round(record(metrics=metrics, rounds=rounds[:1])) == ((1.0, 2.0, 3.0),)
    assert samples_by_round(record(metrics=metrics)) == ((1.0, 2.0, 3.0),)
    assert samples_by_round(record()) == ()
