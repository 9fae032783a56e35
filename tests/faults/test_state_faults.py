"""State that calls change."""

import pytest
from as_user import outcome_of
from table import promise


def stateful(*kinds: str) -> tuple[str, ...]:
    words = ["component=[]", "isolation=none", "metric.latency.max_iterations=200"]
    for kind in kinds:
        words.append(f"+component.{kind}.module={{_target_: stateful_nets.Steps, kind: {kind}}}")
        words.append(f"+component.{kind}.inputs={{x: {{shape: [2, 8]}}}}")
    return tuple(words)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Records of modules with state of every kind, and of their compiled form where calls can be compared."""
    folder, found = tmp_path_factory.mktemp("stateful"), {}
    for run, words in (
        ("right", (*stateful("cache", "hidden", "dropout"), "variant=[baseline,compile]")),
        ("wrong", (*stateful("random_length", "global"), "variant=[baseline]")),
    ):
        found |= outcome_of(folder / run, *words).records
    return found


@promise("growing state")
@pytest.mark.parametrize("kind", ["cache", "hidden"])
def test_state_in_attributes(records, kind):
    """A cache has room for 64 calls and is timed in hundreds; a hidden state is assigned anew by each call."""
    for variant in ("baseline", "compile"):
        record = records[kind, variant]
        assert record.status == "ok", record.reason
        assert record.state is not None
        assert record.state.calls == record.parity.calls == 8
        assert any("cache['at']" in effect for effect in record.state.effects) is (kind == "cache")
        assert record.metrics.wall_ms.n % 8 == 0, "whole trajectories"


@promise("other weights")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("random_length", "random numbers that choose a shape? pass them as an input"),
        ("global", "two eager calls from the same inputs and state differ"),
    ],
)
def test_a_module_whose_calls_cannot_be_compared(records, kind, words):
    record = records[kind, "baseline"]
    assert record.status == "failed", record.reason
    assert words in (record.reason or "")
    assert any(note.startswith("nondeterministic: ") for note in record.notes), record.notes


@promise("other weights")
def test_dropout_in_train_mode(records):
    baseline, compiled = (records["dropout", name] for name in ("baseline", "compile"))
    assert baseline.status == "ok", baseline.reason
    assert (compiled.reason or "").startswith("parity: cannot tell: nondeterministic"), compiled.reason
    assert "+step.compile.options.fallback_random=true" in compiled.reason


def test_dropout_of_a_compiler_that_draws_the_numbers_of_eager(profile):
    option = "+step.compile.options.fallback_random=true"
    done = profile(*stateful("dropout"), option, "variant=[baseline,compile]")
    assert done.code == 0, done.out


@promise("other weights")
def test_a_check_says_that_calls_cannot_be_compared(profile):
    done = profile(*stateful("dropout", "random_length"), "check=true")
    assert done.code == 0, done.err
    for record in done.records.values():
        (call,) = record.check.calls.values()
        assert call.obstacles[0].hinders == "parity"
    assert " ".join(done.out.split()).count(", parity: nondeterministic: two eager calls") == 2


@promise("option")
@pytest.mark.parametrize(
    ("state", "words"), [("reset", "has no method reset()"), ("snapshots", "is none of snapshot, reset, none")]
)
def test_a_wrong_policy(profile, state, words):
    done = profile(*stateful("cache"), f"+component.cache.state={state}", "variant=[baseline]")
    assert done.code == 2
    assert words in done.out + done.err
