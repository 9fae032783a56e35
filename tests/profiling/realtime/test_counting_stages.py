"""Stages that count their calls in a plain attribute: every trajectory of a loop begins with the same count."""

import pytest
import torch
from planted_stages import planted

from profiling.components.trajectory import learn
from profiling.variants.inductor import Inductor
from profiling.variants.recipe import Recipe

STAGES = {"a": {"inputs": {"x": "b@-1"}}, "b": {"inputs": {"x": "a"}}}


@pytest.mark.parametrize("variant", [Recipe(), Recipe(compiler=Inductor())], ids=["baseline", "compile"])
def test_calls_of_a_prepared_step_follow_the_count_and_begin_anew(variant, tmp_path):
    _, components = planted(STAGES)
    modules = [component.module for component in components.values()]
    seen = []
    with torch.inference_mode():
        for component in components.values():
            learn(component)
        steps = [variant.prepare(component, tmp_path) for component in components.values()]
        for _ in range(16):
            for step in steps:
                step.call()
            seen.append([module.calls for module in modules])
        for step in steps:
            step.close()
    first = seen[0][0]
    assert seen[:8] == [[first + call] * 2 for call in range(8)]
    assert seen[8:] == seen[:8]


def test_a_loop_of_stages_that_count_is_played_and_traced(realtime):
    options = ("isolation=none", "loop.frames=3", "trace=true", "loop.profile_frames=3")
    outcome = realtime("pipeline=remembering", "variant=[baseline]", *options)
    assert outcome.code == 0, outcome.out
    (record,) = outcome.records.values()
    assert record.parity.passed
    assert (outcome.folder / record.trace.trace).exists()
