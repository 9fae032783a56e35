"""warmup_inputs of a component's YAML: what they leave behind, what is prepared for them, and what the record says."""

import importlib

import pytest
import torch
from as_user import OUTSIDE

from profiling.components.build import build
from profiling.components.spec import ComponentSpec, Settings

SPEC = ComponentSpec(
    name="remembers",
    module={"_target_": "faulty_modules.Remembers"},
    inputs={"x": {"shape": [2, 8]}},
    warmup_inputs=({"x": {"shape": [64, 8]}}, {"x": {"distribution": "uniform"}}, {}),
    tiny={"inputs": {"x": {"shape": [1, 8]}}, "warmup_inputs": ({"x": {"shape": [3, 8]}},), "frames_per_call": 1},
)
SETTINGS = Settings(device="cpu", dtype="float32", scale="full")


@pytest.fixture(autouse=True)
def _outside(monkeypatch):
    monkeypatch.syspath_prepend(str(OUTSIDE))


def test_every_reset_ends_in_the_state_that_they_leave():
    component = build(SPEC, SETTINGS).component(0)
    expected = importlib.import_module("faulty_modules").Remembers()
    for inputs in (*component.warmup_inputs, component.inputs):  # the last is a warm call
        expected(**inputs)
    for _ in range(2):
        component.reset()
        assert torch.equal(component.module.total, expected.total)
        assert component.module.calls == 4
        component.call()


def test_a_step_is_prepared_for_their_other_shapes_only():
    component = build(SPEC, SETTINGS).component(0)
    assert [tuple(each["x"].shape) for each in component.warmup_inputs] == [(64, 8), (2, 8), (2, 8)]
    assert [tuple(each["x"].shape) for each in component.extra_inputs] == [(64, 8)]
    first, second = (each["x"] for each in component.warmup_inputs[1:])
    assert first.min() >= 0  # uniform
    assert second.min() < 0  # normal, as the inputs are
    assert not torch.equal(second, component.inputs["x"])
    tiny = build(SPEC.at("tiny"), SETTINGS).component(0)
    assert [tuple(each["x"].shape) for each in tiny.warmup_inputs] == [(3, 8)]


def test_they_run_before_timing_and_are_recorded(profile):
    variants = ("variant=[baseline,compile]", "isolation=none", "metric=[parity,latency]")
    outcome = profile("component=[remembers]", *variants)
    assert outcome.code == 0, outcome.out
    for record in outcome.records.values():
        assert record.parity.passed
        assert record.prepare.warmup_inputs == 2
        assert record.prepare.warmup_inputs_s > 0
    compiled = outcome.records["remembers", "compile"]
    assert compiled.prepare.recompiles == 1  # the second shape, which invalidates nothing


def test_a_pipeline_asks_for_its_warmup(realtime):
    outcome = realtime("pipeline=remembering", "variant=[baseline]", "isolation=none", "loop.frames=3")
    assert outcome.code == 0, outcome.out
    (record,) = outcome.records.values()
    assert record.realtime.warmup_frames == 7
    assert record.prepare.warmup_inputs == 2
    assert record.parity.passed
