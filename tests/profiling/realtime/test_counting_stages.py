"""Stages that count their calls in a plain attribute: every trajectory of a loop begins with the same count."""

import pytest
import torch
from planted_stages import planted

from profiling.components.trajectory import learn
from profiling.realtime.graph import WHOLE
from profiling.realtime.one_graph import as_one_stage
from profiling.variants.inductor import Inductor
from profiling.variants.recipe import Recipe

STAGES = {"a": {"inputs": {"x": "b@-1"}}, "b": {"inputs": {"x": "a"}}}


def learned(*, whole: bool):
    """Return (components that the loop prepares, the modules that count), after an observed trajectory."""
    graph, components = planted(STAGES)
    modules = [component.module for component in components.values()]
    with torch.inference_mode():
        for component in components.values():
            learn(component)
        if whole:
            components = {WHOLE: as_one_stage(graph, components)[1]}
            learn(components[WHOLE])
    return components, modules


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("variant", [Recipe(), Recipe(compiler=Inductor())], ids=["baseline", "compile"])
def test_calls_of_a_prepared_step_follow_the_count_and_begin_anew(variant, whole, tmp_path):
    components, modules = learned(whole=whole)
    seen = []
    with torch.inference_mode():
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


def test_a_capture_of_all_stages_names_what_counts_and_goes_back_to_its_tensors():
    components, _ = learned(whole=True)
    whole = components[WHOLE]
    assert list(whole.kept.effects.numbers) == ["a.calls", "b.calls"]
    assert "`a.calls` is a Python number" in (whole.refusal() or "")
    with torch.inference_mode():
        whole.reset()
        whole.call()
        kept = [buffer.clone() for buffer in whole.module.tick_before()]
        restore = whole.keep_state()
        whole.call()
        assert not all(map(torch.equal, whole.module.tick_before(), kept))
        restore()
    assert all(map(torch.equal, whole.module.tick_before(), kept))


def test_a_loop_of_stages_that_count_is_played_and_traced(realtime):
    outcome = realtime("pipeline=remembering", "variant=[baseline]", "isolation=none", "loop.frames=3", "trace=true")
    assert outcome.code == 0, outcome.out
    (record,) = outcome.records.values()
    assert record.parity.passed
    assert record.trace is not None
