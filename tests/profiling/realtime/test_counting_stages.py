"""Stages that count their calls in a plain attribute: every phase of a loop begins with the same count."""

import pytest
import torch
from planted_stages import planted

from profiling.components.reference import first_call
from profiling.realtime.graph import WHOLE
from profiling.realtime.one_graph import as_one_stage
from profiling.trace.counters import snapshot
from profiling.variants.inductor import Inductor
from profiling.variants.recipe import Recipe

STAGES = {"a": {"inputs": {"x": "b@-1"}}, "b": {"inputs": {"x": "a"}}}


def learned(*, whole: bool):
    """Return (components that the loop prepares, the modules that count), after their first calls."""
    graph, components = planted(STAGES)
    modules = [component.module for component in components.values()]
    with torch.inference_mode():
        for component in components.values():
            first_call(component, 0)
        if whole:
            components = {WHOLE: as_one_stage(graph, components)[1]}
            first_call(components[WHOLE], 0)
    return components, modules


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("variant", [Recipe(), Recipe(compiler=Inductor())], ids=["baseline", "compile"])
def test_calls_of_a_prepared_step_begin_with_the_first_count(variant, whole, tmp_path):
    components, modules = learned(whole=whole)
    with torch.inference_mode():
        before = snapshot()
        steps = [variant.prepare(component, tmp_path) for component in components.values()]
        for _ in range(3):
            for step in steps:
                step.call()
            assert [module.calls for module in modules] == [1, 1]
        compiled = snapshot().since(before)
        for step in steps:
            step.close()
    # Two stages of one class and of the same sizes share their compiled code.
    assert (compiled.graphs, compiled.recompiles) == (int(variant.compiler is not None), 0)


def test_a_capture_of_all_stages_goes_back_to_their_counts():
    components, modules = learned(whole=True)
    whole = components[WHOLE]
    assert whole.kept.counting == ("a.calls", "b.calls")
    with torch.inference_mode():
        whole.reset()
        whole.call()
        kept = [buffer.clone() for buffer in whole.module.tick_before()]
        restore = whole.keep_state()
        whole.call()
        assert [module.calls for module in modules] == [2, 2]
        restore()
    assert [module.calls for module in modules] == [1, 1]
    assert all(map(torch.equal, whole.module.tick_before(), kept))


def test_sessions_of_a_loop_and_its_trace_begin_with_the_first_count(realtime):
    outcome = realtime("pipeline=remembering", "variant=[baseline]", "isolation=none", "loop.frames=3", "trace=true")
    assert outcome.code == 0, outcome.out
    (record,) = outcome.records.values()
    assert any(note.startswith("only: ") and "restored before each session" in note for note in record.notes)
    assert record.trace is not None
