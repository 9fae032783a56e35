"""Three sides of a loop play the same ticks from the same S0."""

import weakref

import pytest
import torch

from profiling.components.build import build
from profiling.components.spec import ComponentSpec, Settings
from profiling.realtime.graph import parse_graph
from profiling.realtime.loop import Loop
from profiling.realtime.options import LoopOptions


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("policy", ["snapshot", "reset"])
def test_the_reference_begins_with_the_state_of_the_run(monkeypatch, policy, has_room):
    """S0 is a third in bfloat16, which float32 would not reach by itself; then each side goes on in its own dtype."""
    monkeypatch.setattr("profiling.components.sides.has_room_beside", lambda *_: has_room)
    target = "planted_stages.Accumulates" if policy == "snapshot" else "planted_stages.AccumulatesAnew"
    inputs = {"x": {"shape": [1, 1]}}
    spec = ComponentSpec("net", {"_target_": target}, inputs, state=policy)
    graph = parse_graph({"stages": {"a": {"component": "net", "inputs": {"x": "normal"}}}, "deliver": ["a"]}, ["net"])
    settings = Settings(device="cpu", dtype="bfloat16", checkpoint="random")
    prepared = Loop(graph, LoopOptions(), settings, 9).sides(lambda: {"a": build(spec, settings)})
    third = float(torch.tensor(1 / 3).bfloat16())
    assert prepared.whole is not None
    for name, reference in (("a", prepared.references["a"]), ("pipeline", prepared.whole)):
        for sides, kind in ((reference.outputs, torch.float32), (reference.eager, torch.bfloat16)):
            first = [
                float(leaf.numbers)
                for path, leaf in next(iter(sides.log)).items()
                if leaf.numbers is not None and path[0] == "output"
            ]
            assert first == [float(torch.tensor(third, dtype=kind) + torch.tensor(1 / 3, dtype=kind))], (name, kind)
    assert prepared.whole.calls == 8, "two sessions of four ticks"


def test_without_room_the_module_of_the_run_is_freed_before_that_of_the_reference_is_built(monkeypatch):
    monkeypatch.setattr("profiling.components.sides.has_room_beside", lambda *_: False)
    settings = Settings(device="cpu", dtype="bfloat16", checkpoint="random")
    spec = ComponentSpec("net", {"_target_": "planted_stages.Accumulates"}, {"x": {"shape": [1, 1]}})
    built, alive = [], []

    def load():
        alive.append(sum(module() is not None for module in built))
        blueprint = build(spec, settings)
        built.append(weakref.ref(blueprint.module))
        return {"a": blueprint}

    graph = parse_graph({"stages": {"a": {"component": "net", "inputs": {"x": "normal"}}}, "deliver": ["a"]}, ["net"])
    Loop(graph, LoopOptions(), settings, 9).sides(load)
    assert alive == [0, 0, 0]
