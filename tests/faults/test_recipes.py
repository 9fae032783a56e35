"""Faults in the steps of a recipe: each costs its own row."""

from importlib.util import find_spec

import pytest
from as_user import Outcome, command, finished


def fault(planted, happens, variant, says):
    mark = pytest.mark.fault(planted, happens=happens, kept="the other rows")
    return pytest.param(variant, says, id=planted, marks=mark)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    names = "own_halved_twice,own_raising,own_nothing,own_wrong,regional,tensorrt,channels_last+compile"
    done = finished(command(folder / "run", "component=[net]", f"variant=[baseline,{names}]", "isolation=none"), folder)
    outcome = Outcome(done.returncode, done.stdout, done.stderr, folder / "run")
    return {variant: record for (_, variant), record in outcome.records.items()}


def test_a_transform_of_a_users_own_is_measured_and_recorded(records):
    record = records["own_halved_twice"]
    assert record.status == records["baseline"].status == "ok", record.reason
    assert 0 < record.parity.rel_l2 < 1e-6
    (step,) = record.recipe
    assert (step.kind, step.name, step.changed) == ("transform", "halved_twice", None)
    assert step.seconds <= record.prepare.seconds
    assert records["baseline"].recipe is None


@pytest.mark.fault(
    "torch_tensorrt is missing", happens="the row is skipped, with the command that installs it", kept="the other rows"
)
@pytest.mark.skipif(find_spec("torch_tensorrt") is not None, reason="it is installed")
def test_a_missing_extra_skips_the_row(records):
    assert records["tensorrt"].status == "skipped"
    assert "-m pip install torch_tensorrt" in records["tensorrt"].reason


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        fault(
            "a transform finds nothing to change: channels_last in a module without convolutions",
            "the row is skipped before anything is compiled, and says what the module lacks",
            "channels_last+compile",
            "transform ChannelsLast changes nothing: Net has no 2D or 3D convolution",
        ),
        fault(
            "blocks are to be compiled once, and the module has no repeated blocks",
            "the row is skipped, and says what a repeated block is",
            "regional",
            "Net has none (modules of one class and of the same sizes in a ModuleList or a Sequential)",
        ),
    ],
)
def test_a_step_that_does_not_apply_skips_the_row(records, variant, says):
    record = records[variant]
    assert record.status == "skipped"
    assert says in record.reason
    assert record.wall_p50 is record.parity is record.prepare is None


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        fault(
            "a transform that raises",
            "the row has failed, and names the transform and the error",
            "own_raising",
            "transform raising raised ValueError: planted failure",
        ),
        fault(
            "a transform that returns nothing",
            "the row has failed, and says what to return",
            "own_nothing",
            "transform nothing returned NoneType. Return a torch.nn.Module",
        ),
        fault(
            "a transform that changes the results",
            "the row has failed its parity check; its speed is no claim",
            "own_wrong",
            "parity",
        ),
    ],
)
def test_a_faulty_step(records, variant, says):
    assert records["baseline"].status == "ok"
    assert records[variant].status == "failed"
    assert says in records[variant].reason
    assert records[variant].speedup is None


@pytest.mark.fault(
    "the loader of a package compiled ahead of time crashes the process",
    happens="the row has failed, and names the signal and the package that was being loaded",
    kept="the other rows, and the package",
)
def test_a_crash_while_a_package_is_loaded(profile):
    outcome = profile("component=[caches]", "variant=[baseline,load_crashes]")
    records = {variant: record for (_, variant), record in outcome.records.items()}
    assert outcome.code == 1
    assert records["baseline"].status == "ok"
    crashed = records["load_crashes"]
    assert crashed.status == "failed"
    assert "killed by signal 11 (SIGSEGV)" in crashed.reason
    assert "loading kernels/caches.load_crashes/Caches.pt2" in crashed.reason
    assert (outcome.folder / "kernels" / "caches.load_crashes" / "Caches.pt2").is_file()
