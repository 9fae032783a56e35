"""shape_sweep, training_step and launch_overhead as a user runs them, tiny on a CPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from as_user import OUTSIDE, QUICK, command, finished
from test_conf import composed

from profiling.cli.app import CONF, compose_config, execute
from profiling.cli.config import read_config
from profiling.components.spec import Settings
from profiling.components.weights import find_weights
from profiling.results.jsonl import read_records
from profiling.shape_sweep import points_of, with_dynamic

HERE = (*QUICK, "isolation=none")


def started(target: str, folder: Path, *overrides: str, code: int = 0) -> str:
    """Run a target and return what it printed."""
    quick = tuple(word for word in HERE if target != "launch_overhead" or not word.startswith("metric."))
    done = finished(command(folder, *overrides, target=target, quick=quick), folder.parent)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def sweep(*overrides):
    cfg = composed(*overrides, target="shape_sweep")
    return [point for spec in read_config(cfg).components for point in points_of(cfg, spec)]


def test_the_default_sweep_is_that_of_the_component():
    points = [(p.key, p.point["value"], p.at("full").frames_per_call) for p in sweep()]
    text = [("clip_text", n, 0) for n in (1, 2, 4, 8, 16)]  # which makes no frames
    vision = [("clip_vision", n, n) for n in (1, 2, 4, 8)]
    assert points == [*text, ("clip_text", "all", 0), *vision, ("clip_vision", "all", 8)]
    assert [len(p.extra_inputs) for p in sweep()] == [0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 3]


CODES = {"dtype": "int64", "distribution": "integers", "low": 0, "high": 2048}


@pytest.mark.parametrize(
    ("component", "axis", "inputs", "frames"),
    [
        ("image_decoder", "batch", {"batch": 9, "frames": 1}, 9),
        ("world_model", "frames", {"batch": 1, "frames": 9}, 9),
        ("clip_text", "tokens", {"batch": 1, "tokens": 9}, 0),
        ("mimi_decoder", "codes.2", {"codes": CODES | {"shape": [1, 8, 9]}}, 9),
    ],
)
def test_an_axis_is_an_argument_of_the_inputs_or_a_dimension_of_a_shape(component, axis, inputs, frames):
    last = sweep(f"component=[{component}]", f"axis={axis}", "values=[5,9]", "together=false")[-1].at("full")
    assert {key: value for key, value in last.inputs.items() if key != "_target_"} == inputs
    assert last.frames_per_call == frames


def test_points_use_the_weights_of_their_component():
    (spec,) = read_config(composed("component=[image_decoder]", target="shape_sweep")).components
    settings = Settings(device="cpu", scale="full")
    path, hint = find_weights(spec, settings)
    assert path is not None or "no checkpoint is published" not in hint
    for point in sweep("component=[image_decoder]", "values=[1,4]"):
        assert find_weights(point, settings) == (path, hint)


def test_the_batch_of_a_training_is_that_of_all_its_inputs_at_every_scale():
    (both,) = sweep("component=[resnet50_training]", "values=[2]", "together=false")
    assert both.inputs["pixel_values"]["shape"][0] == both.inputs["labels"]["shape"][0] == both.frames_per_call == 2
    tiny = both.at("tiny")
    assert (tiny.inputs["pixel_values"]["shape"], tiny.frames_per_call) == ([2, 3, 32, 32], 2)


def test_a_shape_sweep_runs_reports_and_resumes(tmp_path):
    folder = tmp_path / "run"
    points = ("component=[net]", "values=[1,4]", "axis=batch", "variant=[baseline,cuda_graph]")
    arguments = (*points, "metric.calls.time_limit=0.2")
    text = started("shape_sweep", folder, *arguments)
    records = {record.cell: record for record in read_records(folder).records}
    assert {name for name, _ in records} == {"net@batch=1", "net@batch=4", "net@batch=1-4"}
    for (_, variant), record in records.items():
        assert record.status == ("ok" if variant == "baseline" else "skipped")
        if variant == "baseline":
            points = record.metrics.calls.points
            assert [point.calls for point in points] == [1, 10, 100, 1000, 10000]
            assert points[0].measured
            assert record.frames_per_call == 1, "its YAML counts no frames for its batch of two"
            assert record.parity.passed
    assert "Total time with preparation" in text
    assert "6 of 6 cells done" in started("shape_sweep", folder, *arguments, f"resume={folder}")


def test_every_prepared_shape_is_checked(tmp_path):
    """A wrong extra shape fails the cell; a layer that a transform put in place is compared at every shape."""
    wrong = ("variant=[faulty_others,own_wrong_with_one_row]", "metric=[parity,latency]")
    options = ("component=[net]", "values=[1,4]", *wrong)
    started("shape_sweep", tmp_path / "run", *options, code=1)
    records = {(each.component, each.variant): each for each in read_records(tmp_path / "run").records}
    names = ("net@batch=1", "net@batch=4", "net@batch=1-4")
    for variant, statuses in (
        ("faulty_others", ["ok", "ok", "failed"]),
        ("own_wrong_with_one_row", ["failed", "ok", "failed"]),
    ):
        assert [records[name, variant].status for name in names] == statuses
        assert "another prepared shape" in records["net@batch=1-4", variant].reason
    assert "parity" in records["net@batch=1", "own_wrong_with_one_row"].reason


def test_a_training_step_runs_and_reports(tmp_path):
    folder = tmp_path / "run"
    options = ("training.steps=6", "training.workers=1", "training.lr_changes=[[3,0.1]]")
    autocast = ("training.autocast=bfloat16", "training.tolerance=1", "training.loss_tolerance=1", "ceilings=auto")
    cells = ("component=[world_model_training]", "variant=[baseline,cuda_graph]")
    started("training_step", folder, *cells, *options, *autocast)
    records = {record.cell: record for record in read_records(folder).records}
    record = records["world_model_training", "baseline"]
    assert record.parity.passed
    assert [row.step for row in record.training.log] == [0, 5]
    assert {"dataloader", "model", "ready", "prepared", "training"} <= set(record.memory.phases)
    assert records["world_model_training", "cuda_graph"].status == "skipped"
    assert "Logged steps of training" in (folder / "report.md").read_text()
    roofline = record.roofline
    assert roofline.roofline_ms > 0
    assert roofline.bytes["state_written"] >= 2 * roofline.bytes["weights"], "weights and momentum"
    assert json.loads((folder / "environment.json").read_text())["ceilings"]["dtype"] == "bfloat16"


def test_launch_costs_are_measured_and_shown(tmp_path):
    folder = tmp_path / "run"
    text = started("launch_overhead", folder)
    (record,) = read_records(folder).records
    calibration = record.launches.launch_calibration
    assert calibration.dispatch_us_per_operator.p50 > 0
    assert "Launch costs" in text
    assert "fastest" not in text


def test_what_a_new_shape_costs_a_compiled_model_is_a_table(tmp_path, monkeypatch):
    """Only the cells that prepare all shapes in one process run: the table is of them, and the others are slow.

    What each value of `dynamic` compiles is in variants/test_shape_compiles.py.
    """
    monkeypatch.syspath_prepend(str(OUTSIDE))
    points = ("component=[net]", "values=[2,3,5]", "axis=batch", "dynamic=[true]")
    options = ("variant=[baseline,compile]", "metric=[parity,latency]", *HERE)
    cfg = compose_config("shape_sweep", (*points, *options), [CONF, OUTSIDE])
    config = read_config(cfg)
    *_, all_shapes = points_of(cfg, config.components[0])
    variants = with_dynamic(config.variants, cfg.dynamic)
    assert execute("shape_sweep", replace(config, components=(all_shapes,), variants=variants), tmp_path) == 0
    assert "Compiling shape after shape, in one process" in (tmp_path / "report.md").read_text()
    graphs = {}
    for record in read_records(tmp_path).records:
        assert record.status == "ok", record.reason
        for step in record.recipe or ():
            graphs[record.variant] = [shape.graphs for shape in step.shapes]
            assert all(shape.seconds > 0 for shape in step.shapes)
    assert graphs == {"compile@dynamic=true": [1, 0, 0]}
