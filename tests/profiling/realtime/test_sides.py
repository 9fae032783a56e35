"""Three sides of a loop play the same ticks from the same S0."""

import weakref

import pytest
import torch
from torch import nn

from profiling.components.build import build
from profiling.components.spec import ComponentSpec, Settings
from profiling.realtime.graph import parse_graph
from profiling.realtime.loop import Loop
from profiling.realtime.options import LoopOptions


class Accumulates(nn.Module):
    """Adds a third to its state in each call, in the dtype of its weight, and returns the state and the input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("state", torch.zeros(1, 1))

    def forward(self, x):
        self.state += (torch.ones_like(self.state) / 3).to(self.layer.weight.dtype)
        return self.state + 0 * x


class AccumulatesAnew(Accumulates):
    """As above, with a method that begins anew."""

    def reset(self):
        self.state.zero_()


def first_output(sides):
    (output,) = [
        leaf for path, leaf in next(iter(sides.log)).items() if leaf.numbers is not None and path[0] == "output"
    ]
    return float(output.numbers)


@pytest.mark.parametrize(("policy", "has_room"), [("snapshot", True), ("snapshot", False), ("reset", True)])
def test_the_reference_begins_with_the_state_of_the_run(monkeypatch, policy, has_room):
    """S0 is a third in bfloat16, which float32 would not reach by itself; then each side goes on in its own dtype."""
    monkeypatch.setattr("profiling.components.sides.has_room_beside", lambda *_: has_room)
    target = f"{__name__}.{'Accumulates' if policy == 'snapshot' else 'AccumulatesAnew'}"
    spec = ComponentSpec("net", {"_target_": target}, {"x": {"shape": [1, 1]}}, state=policy)
    graph = parse_graph({"stages": {"a": {"component": "net", "inputs": {"x": "normal"}}}, "deliver": ["a"]}, ["net"])
    settings = Settings(device="cpu", dtype="bfloat16", checkpoint="random")
    built, alive = [], []

    def load():
        alive.append(sum(module() is not None for module in built))
        blueprint = build(spec, settings)
        built.append(weakref.ref(blueprint.module))
        return {"a": blueprint}

    prepared = Loop(graph, LoopOptions(), settings, 9).sides(load)
    if not has_room:
        assert alive == [0, 0, 0], "the module of the run is freed before that of the reference is built"
    third = float(torch.tensor(1 / 3).bfloat16())
    for reference in (prepared.references["a"], prepared.whole):
        for sides, kind in ((reference.outputs, torch.float32), (reference.eager, torch.bfloat16)):
            assert first_output(sides) == float(torch.tensor(third, dtype=kind) + torch.tensor(1 / 3, dtype=kind))
    assert prepared.whole.calls == 8, "two sessions of four ticks"
