"""Faults in the steps of a recipe: each costs its own row."""

from importlib.util import find_spec

import pytest
from as_user import outcome_of
from table import promise


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    names = "own_halved_twice,own_raising,own_nothing,own_wrong,regional,tensorrt,channels_last+compile"
    outcome = outcome_of(folder / "run", "component=[net]", f"variant=[baseline,{names}]", "isolation=none")
    return {variant: record for (_, variant), record in outcome.records.items()}


def test_a_transform_of_a_users_own_is_measured_and_recorded(records):
    record = records["own_halved_twice"]
    assert record.status == records["baseline"].status == "ok", record.reason
    assert 0 < record.parity.rel_l2 < 1e-6
    (step,) = record.recipe
    assert (step.kind, step.name, step.changed) == ("transform", "halved_twice", None)
    assert step.seconds <= record.prepare.seconds
    assert records["baseline"].recipe is None


@promise("missing package")
@pytest.mark.skipif(find_spec("torch_tensorrt") is not None, reason="it is installed")
def test_a_missing_extra_skips_the_row(records):
    assert records["tensorrt"].status == "skipped"
    assert "-m pip install torch_tensorrt" in records["tensorrt"].reason


@promise("does not apply")
@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("channels_last+compile", "transform channels_last changes nothing: Net has no 2D or 3D convolution"),
        ("regional", "Net has none (modules of one class and of the same sizes in a ModuleList or a Sequential)"),
    ],
)
def test_a_step_that_does_not_apply_skips_the_row(records, variant, says):
    record = records[variant]
    assert record.status == "skipped"
    assert says in record.reason
    assert record.wall_p50 is record.parity is record.prepare is None


@promise("wrong output")
@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("own_raising", "transform raising raised ValueError: planted failure"),
        ("own_nothing", "transform nothing returned NoneType. Return a torch.nn.Module"),
        ("own_wrong", "parity"),
    ],
)
def test_a_faulty_step(records, variant, says):
    assert records["baseline"].status == "ok"
    assert records[variant].status == "failed"
    assert says in records[variant].reason
    assert records[variant].speedup is None


@promise("dies")
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
