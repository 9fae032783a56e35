"""Networks with state that calls change, with noise, or that cannot be captured."""

from pathlib import Path

import pytest
from as_user import outcome_of
from table import promise

from profiling.results.jsonl import read_records


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
    assert (compiled.reason or "").startswith("parity: undecided: nondeterministic"), compiled.reason
    assert "+step.compile.options.fallback_random=true" in compiled.reason


@promise("other weights")
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
def test_a_module_without_reset(profile):
    done = profile(*stateful("cache"), "+component.cache.state=reset", "variant=[baseline]")
    assert done.code == 2
    assert "has no method reset()" in done.out + done.err


#: Component, obstacle, and the line of code that is named.
NETWORKS = (
    ("syncs", "it waits for the GPU", "y.sum().item()"),
    ("host_tensor", "makes a tensor on the CPU", "torch.arange"),
    ("counts", "the shape of its result", "x[x[:, 0] > 0]"),
)


@promise("capture")
def test_networks_that_cannot_be_captured(started):
    quick = ("device=cpu", "threads=1", "isolation=none", "check=true", "hydra.run.dir=run")
    assert started(f"component=[{','.join(name for name, *_ in NETWORKS)}]", quick=quick)[0] == 0
    for record, (name, reason, code) in zip(read_records(Path("run")).records, NETWORKS, strict=True):
        (found,) = (each for each in record.check.calls[name].obstacles if each.hinders == "cuda_graph")
        assert reason in found.reason
        assert code in found.code
        assert found.advice


LOOP = ("pipeline=remembering", "variant=[baseline]", "device=cpu", "threads=1", "isolation=none", "ceilings=off")


@pytest.fixture
def looped(started):
    """Play the pipeline of a network with warm-up inputs, or of another class in its place; return the records."""

    def play(*words, kind=None):
        other = (f"component.remembers.module._target_=faulty_modules.{kind}", "component.remembers.warmup_inputs=[]")
        words = ("hydra.run.dir=run", *words, *other * (kind is not None))
        code, err = started(words, target="realtime", quick=LOOP)
        assert code == 0, err
        return {record.variant: record for record in read_records(Path("run")).records}

    return play


@promise("growing state")
def test_state_that_grows_in_a_loop(looped):
    record = looped("loop.frames=40", kind="Grows")["baseline"]
    (sign,) = (sign for sign in record.realtime.unsteady if "state" in sign)
    assert "the state of the stage only grew" in sign
    assert "the warm-up did not reach the steady state" in Path("run/report.md").read_text()


@promise("noise")
def test_a_stage_that_draws_noise(looped):
    records = looped("variant=[baseline,compile]", "loop.frames=3", kind="Noisy")
    errors = {variant: record.parity.stages["pipeline"].rel_l2 for variant, record in records.items()}
    assert errors["baseline"] == 0, "the numbers that the reference draws"
    assert errors["compile"] > 1e-3, "numbers of inductor's own"


@promise("capture")
def test_overlap_on_a_cpu(looped):
    record = looped("loop.frames=3", "loop.schedule=overlap")["baseline"]
    assert any("a CPU runs the stages in turn" in note for note in record.notes)
