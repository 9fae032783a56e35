"""A look without timing (check=true), and warm-up inputs."""

from pathlib import Path

import pytest
from table import promise
from test_wrong_input import is_refused, started  # noqa: F401 - a fixture

from profiling.results.jsonl import read_records

QUICK = ("device=cpu", "threads=1", "isolation=none", "check=true", "hydra.run.dir=run")

NETWORKS = (
    ("a network reads a value back in its forward (.item())", "syncs", "it waits for the GPU", "y.sum().item()"),
    ("a network makes a tensor on the CPU in its forward", "host_tensor", "makes a tensor on the CPU", "torch.arange"),
    ("the shape of a result depends on the values", "counts", "the shape of its result", "x[x[:, 0] > 0]"),
)


@promise("capture")
@pytest.mark.parametrize(("component", "reason", "code"), [pytest.param(*row[1:], id=row[0]) for row in NETWORKS])
def test_a_network_that_cannot_be_captured(started, component, reason, code):  # noqa: F811
    assert started(f"component=[{component}]", quick=QUICK)[0] == 0
    (record,) = read_records(Path("run")).records
    (found,) = (each for each in record.check.calls[component].obstacles if each.hinders == "cuda_graph")
    assert reason in found.reason
    assert code in found.code
    assert found.advice


WRONG = (
    ("an input is missing", ["component=[net]", "~component.net.inputs.gain"], "needs 'gain'"),
    ("the forward raises", ["component=[raises]"], "Raises.forward raised ValueError: this module never works"),
    (
        "a shape does not fit the network",
        ["component=[net]", "component.net.inputs.x.shape=[2,9]"],
        "Net.forward raised",
    ),
)


@promise("module")
@pytest.mark.parametrize(("overrides", "says"), [pytest.param(*row[1:], id=row[0]) for row in WRONG])
def test_a_network_that_does_not_run(started, overrides, says):  # noqa: F811
    code, err = started(*overrides, quick=QUICK)
    assert code == 2, err
    (record,) = read_records(Path("run")).records
    assert says in record.reason
    assert record.check is not None, "the report knows that nothing was to be timed"


@promise("module")
def test_a_target_without_components(started):  # noqa: F811
    assert started(target="launch_overhead", quick=QUICK)[0] == 2
    (record,) = read_records(Path("run")).records
    assert "launch_overhead runs no component" in record.reason


SHAPES = "component.remembers.warmup_inputs"
WARMUPS = (
    ("warm-up inputs of a shape that the network refuses", [f"{SHAPES}=[{{x:{{shape:[4,9]}}}}]"], f"{SHAPES}[0]: "),
    (
        "a warm-up input that is an argument of no forward",
        [f"{SHAPES}=[{{y:{{shape:[4,8]}}}}]"],
        "unexpected keyword argument 'y'",
    ),
)


@promise("module")
@pytest.mark.parametrize(("overrides", "says"), [pytest.param(*row[1:], id=row[0]) for row in WARMUPS])
def test_warmup_inputs_that_do_not_fit(started, overrides, says):  # noqa: F811
    quick = tuple(item for item in QUICK if item != "check=true")
    code, err = started("component=[remembers]", "variant=[baseline]", "ceilings=off", *overrides, quick=quick)
    assert code == 2, err
    (record,) = read_records(Path("run")).records
    assert says in record.reason


UNREADABLE = (
    ("warm-up inputs that are no list", ["+component.net.warmup_inputs={x:{shape:[4,8]}}"], "must be a list"),
    ("a warm-up input without its arguments' names", [f"{SHAPES}=[3]"], "must be a mapping"),
    ("a warm-up input without a valid shape", [f"{SHAPES}=[{{x:{{shape:[0,8]}}}}]"], "must be positive integers"),
)


@promise("option")
@pytest.mark.parametrize(("overrides", "says"), [pytest.param(*row[1:], id=row[0]) for row in UNREADABLE])
def test_warmup_inputs_that_cannot_be_read(started, overrides, says):  # noqa: F811
    is_refused(started("component=[remembers,net]", "variant=[baseline]", *overrides, quick=("device=cpu",)), says)


@promise("option")
def test_a_pipeline_that_asks_for_no_warmup(started):  # noqa: F811
    overrides = ("pipeline=remembering", "pipeline.warmup_frames=0", "variant=[baseline]")
    is_refused(
        started(*overrides, target="realtime", quick=("device=cpu",)), "pipeline.warmup_frames=0 must be a whole"
    )


@promise("growing state")
def test_state_that_grows(started):  # noqa: F811
    grows = ("component.remembers.module._target_=faulty_modules.Grows", "component.remembers.warmup_inputs=[]")
    quick = (*(item for item in QUICK if item != "check=true"), "loop.frames=40", "ceilings=off")
    code, err = started("pipeline=remembering", *grows, "variant=[baseline]", target="realtime", quick=quick)
    assert code == 0, err
    (record,) = read_records(Path("run")).records
    (sign,) = (sign for sign in record.realtime.unsteady if "state" in sign)
    assert "the state of the stage only grew" in sign
    assert "the warm-up did not reach the steady state" in Path("run/report.md").read_text()


@promise("capture")
def test_overlap_on_a_cpu(started):  # noqa: F811
    quick = (
        *(item for item in QUICK if item != "check=true"),
        "loop.frames=3",
        "ceilings=off",
        "loop.schedule=overlap",
    )
    assert started("pipeline=remembering", "variant=[baseline]", target="realtime", quick=quick)[0] == 0
    (record,) = read_records(Path("run")).records
    assert any("a CPU runs the stages in turn" in note for note in record.notes)
