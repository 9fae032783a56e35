"""State that calls change."""

import json

import pytest

KEPT = "the other cells"


def stateful(kind: str, *overrides: str) -> tuple[str, ...]:
    module = f"+component.steps.module={{_target_: stateful_nets.Steps, kind: {kind}}}"
    inputs = "+component.steps.inputs={x: {shape: [2, 8]}}"
    return ("component=[]", module, inputs, "isolation=none", "metric.latency.max_iterations=200", *overrides)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "cache",
            marks=pytest.mark.fault(
                "a cache with room for 64 calls, timed in hundreds of calls",
                happens="its position is put back after each trajectory of 8 calls",
                kept="all times",
            ),
        ),
        pytest.param(
            "hidden",
            marks=pytest.mark.fault(
                "a hidden state that each call assigns to an attribute",
                happens="it is restored before each measurement, so that parity compares equal states",
                kept="all times",
            ),
        ),
    ],
)
def test_state_in_attributes(profile, kind):
    done = profile(*stateful(kind), "variant=[baseline,compile]")
    assert done.code == 0, done.out + done.err
    for record in done.records.values():
        assert record.status == "ok"
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
            marks=pytest.mark.fault(
                "a random number chooses the length of the output",
                happens="failed: names both shapes, and random numbers as a likely cause",
                kept=KEPT,
            ),
        ),
        pytest.param(
            "global",
            "two eager calls from the same inputs and state differ",
            marks=pytest.mark.fault(
                "state outside of the module, in a global list",
                happens="failed: names state that could not be restored; says what to try",
                kept=KEPT,
            ),
        ),
    ],
)
def test_a_module_whose_calls_cannot_be_compared(profile, kind, words):
    done = profile(*stateful(kind), "variant=[baseline]")
    (record,) = done.records.values()
    assert record.status == "failed", done.out
    assert words in (record.reason or "")
    assert any(note.startswith("nondeterministic: ") for note in record.notes), json.dumps(record.notes)


@pytest.mark.fault(
    "dropout in train mode",
    happens="of a variant that draws other numbers than eager, parity cannot tell; the reason says what to try",
    kept=KEPT,
)
def test_dropout_in_train_mode(profile):
    done = profile(*stateful("dropout"), "variant=[baseline,compile]")
    baseline, compiled = (done.records["steps", name] for name in ("baseline", "compile"))
    assert baseline.status == "ok", done.out
    assert (compiled.reason or "").startswith("parity: cannot tell: nondeterministic"), done.out
    assert "compiler.options.fallback_random=true" in compiled.reason


def test_dropout_of_a_compiler_that_draws_the_numbers_of_eager(profile):
    option = "+variant.compile.compiler.options.fallback_random=true"
    done = profile(*stateful("dropout", option), "variant=[baseline,compile]")
    assert done.code == 0, done.out


@pytest.mark.fault(
    "check=true of a module whose calls differ from each other",
    happens="says that parity cannot tell, what differs and what to try, before anything is measured",
    kept="all else that the check saw",
)
@pytest.mark.parametrize("kind", ["dropout", "random_length"])
def test_a_check_says_that_calls_cannot_be_compared(profile, kind):
    done = profile(*stateful(kind), "check=true")
    (record,) = done.records.values()
    (call,) = record.check.calls.values()
    assert done.code == 0, done.err
    assert call.obstacles[0].hinders == "parity"
    assert ", parity: nondeterministic: two eager calls" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param(
            "reset",
            "has no method reset()",
            marks=pytest.mark.fault(
                "`state: reset` for a module without reset()", happens="one line, exit 2", kept="nothing is measured"
            ),
        ),
        pytest.param(
            "snapshots",
            "is none of snapshot, reset, none",
            marks=pytest.mark.fault("an unknown `state`", happens="one line, exit 2", kept="nothing is measured"),
        ),
    ],
)
def test_a_wrong_policy(profile, state, words):
    done = profile(*stateful("cache"), f"+component.steps.state={state}", "variant=[baseline]")
    assert done.code == 2
    assert words in done.out + done.err
