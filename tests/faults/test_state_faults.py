"""State that calls change."""

import pytest
from as_user import Outcome, command, finished

KEPT = "the other cells"


def fault(planted: str, happens: str, kept: str = KEPT):
    return pytest.mark.fault(planted, happens=happens, kept=kept)


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
        ended = finished(command(folder / run, *words), folder)
        found |= Outcome(ended.returncode, ended.stdout, ended.stderr, folder / run).records
    return found


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "cache",
            marks=fault(
                "a cache with room for 64 calls, timed in hundreds of calls",
                "its position is put back after each trajectory of 8 calls",
                "all times",
            ),
        ),
        pytest.param(
            "hidden",
            marks=fault(
                "a hidden state that each call assigns to an attribute",
                "it is restored before each measurement, so that parity compares equal states",
                "all times",
            ),
        ),
    ],
)
def test_state_in_attributes(records, kind):
    for variant in ("baseline", "compile"):
        record = records[kind, variant]
        assert record.status == "ok", record.reason
        assert record.state is not None
        assert record.state.calls == record.parity.calls == 8
        assert any("cache['at']" in effect for effect in record.state.effects) is (kind == "cache")
        assert record.metrics.wall_ms.n % 8 == 0, "whole trajectories"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param(
            "random_length",
            "random numbers that choose a shape? pass them as an input",
            marks=fault(
                "a random number chooses the length of the output",
                "failed: names both shapes, and random numbers as a likely cause",
            ),
        ),
        pytest.param(
            "global",
            "two eager calls from the same inputs and state differ",
            marks=fault(
                "state outside of the module, in a global list",
                "failed: names state that could not be restored; says what to try",
            ),
        ),
    ],
)
def test_a_module_whose_calls_cannot_be_compared(records, kind, words):
    record = records[kind, "baseline"]
    assert record.status == "failed", record.reason
    assert words in (record.reason or "")
    assert any(note.startswith("nondeterministic: ") for note in record.notes), record.notes


@fault(
    "dropout in train mode",
    "of a variant that draws other numbers than eager, parity cannot tell; the reason says what to try",
)
def test_dropout_in_train_mode(records):
    baseline, compiled = (records["dropout", name] for name in ("baseline", "compile"))
    assert baseline.status == "ok", baseline.reason
    assert (compiled.reason or "").startswith("parity: cannot tell: nondeterministic"), compiled.reason
    assert "+step.compile.options.fallback_random=true" in compiled.reason


def test_dropout_of_a_compiler_that_draws_the_numbers_of_eager(profile):
    option = "+step.compile.options.fallback_random=true"
    done = profile(*stateful("dropout"), option, "variant=[baseline,compile]")
    assert done.code == 0, done.out


@fault(
    "check=true of a module whose calls differ from each other",
    "says that parity cannot tell, what differs and what to try, before anything is measured",
    "all else that the check saw",
)
def test_a_check_says_that_calls_cannot_be_compared(profile):
    done = profile(*stateful("dropout", "random_length"), "check=true")
    assert done.code == 0, done.err
    for record in done.records.values():
        (call,) = record.check.calls.values()
        assert call.obstacles[0].hinders == "parity"
    assert " ".join(done.out.split()).count(", parity: nondeterministic: two eager calls") == 2


@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param(
            "reset",
            "has no method reset()",
            marks=fault("`state: reset` for a module without reset()", "one line, exit 2", "nothing is measured"),
        ),
        pytest.param(
            "snapshots",
            "is none of snapshot, reset, none",
            marks=fault("an unknown `state`", "one line, exit 2", "nothing is measured"),
        ),
    ],
)
def test_a_wrong_policy(profile, state, words):
    done = profile(*stateful("cache"), f"+component.cache.state={state}", "variant=[baseline]")
    assert done.code == 2
    assert words in done.out + done.err
