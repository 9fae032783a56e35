"""Pipelines in YAML."""

from pathlib import Path

import pytest
from table import promise
from test_wrong_input import is_refused, rows, started  # noqa: F401 - a fixture

from profiling.results.jsonl import read_records

MINE = ("pipeline=mine", "variant=[baseline]", "loop.frames=2", "loop.warmup_frames=1")
FIRST, SECOND = "pipeline.stages.first", "pipeline.stages.second"

DAMAGED = (
    ("a stage reads one that is not there", [f"{SECOND}.inputs.x=frist"], "Did you mean 'first'"),
    ("two stages read each other in the same tick", [f"{FIRST}.inputs.x=second"], "which is a cycle"),
    ("a stage has an unknown component", [f"{FIRST}.component=cache"], "Did you mean 'caches'"),
    ("a source is missing", ["~pipeline.sources.camera"], "there is no stage or source camera"),
    ("a source has no values", ["~pipeline.sources.camera.draw"], "pipeline.sources.camera has no values"),
    ("a source lacks the key that a stage reads", [f"{FIRST}.inputs.x=camera.imag"], "Did you mean 'image'"),
    ("a key of a pipeline is misspelt", ["+pipeline.delivr=[second]"], "Did you mean 'deliver'"),
    ("a key of a stage is misspelt", [f"+{FIRST}.evry=2"], "Did you mean 'every'"),
    ("a stage runs every 0 ticks", [f"+{FIRST}.every=0"], "every=0 must be a whole number, at least 1"),
    ("an unknown stage is delivered", ["pipeline.deliver=[secnd]"], "Did you mean 'second'"),
    ("an edge cannot be read", [f"{SECOND}.inputs.x=first@-7"], "first@-7 is no edge"),
    ("a list takes the place of stages", ["pipeline.stages=[1]"], "Cannot merge DictConfig with ListConfig"),
    ("the name of a pipeline is misspelt", ["pipeline=min"], "there is no pipeline 'min'. Did you mean 'mine'"),
)
UNFIT = (
    ("the file of a source is missing", ["+pipeline.sources.camera.file=no.npz"], "numpy.savez(path, image=[n, 2, 8])"),
    ("an input of a network has no edge", [f"~{SECOND}.inputs.gain"], "net also takes gain. Give it an edge"),
    ("an edge leads to no input", [f"+{SECOND}.inputs.y=first"], "net has no such input, only x, gain"),
    ("a stage lacks the output that is read", [f"{SECOND}.inputs.x=first.9"], "Read it as first"),
    ("an output has another shape than the input", [f"{SECOND}.inputs.gain=first"], "the input takes float32 [1]"),
    (
        "a distribution does not fit the dtype",
        [f"{SECOND}.inputs.gain={{distribution:integers,high:9}}"],
        "does not fit",
    ),
)


@promise("pipeline")
@pytest.mark.parametrize(("overrides", "says"), rows(DAMAGED))
def test_a_damaged_pipeline(started, overrides, says):  # noqa: F811
    is_refused(started(*overrides, target="realtime", quick=("device=cpu", "ceilings=off", *MINE)), says)


@promise("pipeline")
@pytest.mark.parametrize(
    ("overrides", "says"), [pytest.param(overrides, says, id=planted) for planted, overrides, says in UNFIT]
)
def test_stages_that_do_not_fit(started, overrides, says):  # noqa: F811
    quick = ("device=cpu", "ceilings=off", "isolation=none", "threads=1", "hydra.run.dir=run")
    code, err = started(*overrides, target="realtime", quick=(*quick, *MINE))
    assert code == 2, err
    (record,) = read_records(Path("run")).records
    assert says in record.reason
    assert record.realtime is None or not record.realtime.frames


@promise("noise")
def test_a_stage_that_draws_noise(started):  # noqa: F811
    noisy = ("component.remembers.module._target_=faulty_modules.Noisy", "component.remembers.warmup_inputs=[]")
    loop = ("pipeline=remembering", "variant=[baseline,compile]", "loop.frames=3", "isolation=none", "threads=1")
    quick = ("device=cpu", "ceilings=off", "hydra.run.dir=run")
    code, err = started(*loop, *noisy, target="realtime", quick=quick)
    assert code == 0, err
    by_variant = {record.variant: record for record in read_records(Path("run")).records}
    eager, compiled = by_variant["baseline"].parity, by_variant["compile"].parity
    assert eager.stages["pipeline"].rel_l2 == 0, "the numbers that the reference draws"
    assert compiled.stages["pipeline"].rel_l2 > 1e-3, "numbers of inductor's own"
