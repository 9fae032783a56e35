"""Stages whose outputs are known by hand: edges, delays, repeats, sources, and the state that three sides begin with.

Edges that do not fit a component are in the table of wrong input in `tests/faults`.
"""

import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fixed_component import Net
from planted_stages import SHAPE, delivered, pipeline_of, planted
from playing import component_of
from torch import nn

from profiling.components.build import build
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError
from profiling.realtime.cell import grown, play_stages, short_warmups, state_bytes
from profiling.realtime.graph import parse_graph
from profiling.realtime.plan import LoopOptions, Plan

DRAWN = {"s": {"draw": {"v": "normal"}}}
COUNT = {"count": {"make": {"_target_": f"{__name__}.counting"}}}


def counting(shapes, ticks, seed):
    """Return a source whose value is the number of its tick."""
    return {key: torch.arange(64.0).reshape(64, 1, 1).expand(64, *shape) for key, shape in shapes.items()}


def played(ticks, *args, **kwargs):
    return delivered(pipeline_of(*planted(*args, **kwargs)), ticks)


def values(ticks, name):
    return [tick[name] for tick in ticks]


def test_a_stage_that_runs_now_and_then_keeps_its_output():
    stages = {"text": {"inputs": {"x": "count.n"}, "every": 3}, "a": {"inputs": {"t": "text", "before": "text@-1"}}}
    graph, components = planted(stages, COUNT, deliver=["text", "a"])
    ticks = delivered(pipeline_of(graph, components), range(-1, 7))
    assert values(ticks, "text") == [64, 1, 1, 1, 4, 4, 4, 7], "also in the first tick; -1 is the last of 64 values"
    assert values(ticks, "a") == [65, 66, 3, 3, 6, 9, 9, 12]
    assert components["text"].module.calls == 4


def test_what_is_fixed_begins_each_tick_and_a_constant_is_written_once():
    stages = {"a": {"inputs": {"x": "fixed", "t": 5}, "again": {"x": "a"}, "repeat": 2}}
    graph, components = planted(stages)
    pipeline, inputs = pipeline_of(graph, components), components["a"].inputs
    first = values(delivered(pipeline, range(3)), "a")
    assert len(set(first)) == 1, "the output of the last call is not its first input in the next tick"
    inputs["t"].fill_(7)
    assert values(delivered(pipeline, range(3, 4)), "a") == [pytest.approx(first[0] + 4)], "2 calls, 2 more in each"
    pipeline.reset()
    assert values(delivered(pipeline, range(1)), "a") == first[:1]


def test_two_inputs_of_different_shapes_cannot_read_one_key():
    graph, components = planted({"a": {"inputs": {"x": "s.v"}}, "b": {"inputs": {"x": "s.v"}}}, DRAWN)
    components["b"].inputs["x"].resize_(1, 3)
    with pytest.raises(InputError, match=r"pipeline\.stages\.\w\.inputs\.x=s\.v: its values are \[16, 1, \d\]\. Give"):
        pipeline_of(graph, components)


def test_an_output_is_read_by_key_and_delivered_whole_and_a_source_has_a_new_value_every_period():
    twice = {"inputs": {"y": "a.half"}, "again": {"y": "b.whole"}, "repeat": 2, "affine": {"split": True}}
    stages = {"a": {"inputs": {"x": "count.n"}, "affine": {"split": True}}, "b": twice}
    ticks = played(range(3), stages, {"count": {**COUNT["count"], "period": 2}}, deliver=["a", "b.whole"])
    first, second = {"a.half": 0.5, "a.whole": 1, "b.whole": 2.5}, {"a.half": 1, "a.whole": 2, "b.whole": 3}
    assert ticks == [first, first, second]


def test_noise_is_new_in_every_tick_and_the_same_in_every_session():
    pipeline = pipeline_of(*planted({"a": {"inputs": {"x": "normal"}}}))
    first = values(delivered(pipeline, range(5)), "a")
    pipeline.reset()
    assert values(delivered(pipeline, range(5)), "a") == first
    assert len(set(first)) == 5


def test_drawn_is_as_the_component_draws_it():
    stages = {"a": {"inputs": {"x": "drawn"}}, "b": {"inputs": {"x": "user.codes"}}}
    ticks = played(range(20), stages, {"user": {"draw": {"codes": "drawn"}}}, deliver=["a", "b"])
    for name in ("a", "b"):
        assert len(set(values(ticks, name))) == 16, "in turn"
        assert values(ticks, name)[:4] == values(ticks, name)[16:]


def test_an_edge_for_an_argument_without_tensors():
    graph, components = planted({"a": {"inputs": {"x": "normal", "z": "fixed"}}})
    one = replace(components["a"], inputs={**components["a"].inputs, "z": {"size": None}})
    with pytest.raises(InputError, match=r"inputs\.z: an edge writes to a tensor, and z holds none: .*Remove the edge"):
        delivered(pipeline_of(graph, {"a": one}), range(1))


TAKES = r"pipeline\.stages\.b\.inputs\.y=a: the input takes float32 \[1, 2\] on cpu"


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ([torch.zeros(1, 1)], TAKES),
        ([torch.zeros(1, 2, dtype=torch.int64)], TAKES),
        ([torch.zeros(1, 2), torch.zeros(1, 3)], r"stages\.a: its output.* was \[1, 2\] and is now \[1, 3\]"),
    ],
)
def test_a_hand_over_neither_broadcasts_nor_casts_nor_changes_its_shape(outputs, says):
    graph, components = planted({"a": {"inputs": {"x": "normal"}}, "b": {"inputs": {"y": "a"}}})
    left = iter(outputs)
    components["a"].module.forward = lambda x: next(left)
    with pytest.raises(InputError, match=says):
        delivered(pipeline_of(graph, components), range(2))


def nested(self, x, cond):
    """Take tensors and numbers in dicts, lists and tuples, and mutate none of them."""
    assert type(cond["pair"]) is tuple
    return x + 10 * cond["pair"][0] + 100 * cond["list"][1] + cond["gain"]


def nested_inputs(generator):
    x, one, two = (torch.randn(SHAPE, generator=generator) for _ in range(3))
    return {"x": x, "cond": {"gain": 0.5, "pair": (one, None), "list": [7, two]}}


def test_edges_fill_tensors_inside_arguments():
    """Worked out by hand: a stage returns x + 10 * pair[0] + 100 * list[1] + gain, and b runs three times a tick."""
    stages = {
        "a": {"component": "nested", "inputs": {"x": "count.n", "cond.pair.0": "count.n", "cond.list.1": "b@-1"}},
        "b": {
            "component": "nested",
            "repeat": 3,
            "inputs": {"x": "a", "cond.pair.0": [1, 2, 3], "cond.list.1": "count.n"},
            "again": {"x": "b", "cond.list.1": "a"},
        },
    }
    graph = parse_graph({"stages": stages, "sources": COUNT, "deliver": ["a", "b"]}, ["nested"])
    parts = {name: replace(component_of(Net(nested), nested_inputs), name=name) for name in stages}
    before = 0.0
    for number, tick in enumerate(delivered(pipeline_of(graph, parts), range(3))):
        a = number + 10 * number + 100 * before + 0.5
        before = a + (10 + 100 * number + 0.5) + (20 + 100 * a + 0.5) + (30 + 100 * a + 0.5)
        assert tick == pytest.approx({"a": a, "b": before})


def test_the_ticks_that_are_checked():
    """A few, and a second run of each stage that is not far."""
    every = {name: planted({"a": {"inputs": {"x": "normal"}, "every": name}})[0] for name in (1, 5, 16)}
    plans = {name: Plan(graph, LoopOptions(), Settings(), 9) for name, graph in every.items()}
    assert {name: plan.session_ticks for name, plan in plans.items()} == {1: 4, 5: 6, 16: 4}


def test_a_warm_up_in_which_a_stage_does_not_run_twice_is_named():
    graph, _ = planted({"a": {"inputs": {"x": "normal"}, "every": 12}})
    (sign,) = short_warmups(Plan(graph, LoopOptions(), Settings(), 9, warmup_frames=11))
    assert sign.endswith("its second run is a timed one: use loop.warmup_frames=12")
    assert short_warmups(Plan(graph, LoopOptions(), Settings(), 9, warmup_frames=12)) == []


def test_a_stage_whose_state_grows_is_named():
    """Also where an object among its attributes holds the state, as a cache does."""
    _, components = planted({"a": {"inputs": {"x": "normal"}}, "b": {"inputs": {"x": "a"}}})
    cache = components["b"].module.cache = SimpleNamespace(keys=[torch.zeros(2**18)])
    before = state_bytes(components)
    assert grown(before, state_bytes(components)) == []
    cache.keys.append(torch.zeros(2**17))
    (sign,) = grown(before, state_bytes(components))
    assert sign.startswith("the state of the stage b grew during the timed frames, from 1 to 1.5 MiB: ")


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
    leaves = next(iter(sides.log)).items()
    (numbers,) = (leaf.numbers for path, leaf in leaves if leaf.numbers is not None and path[0] == "output")
    return float(numbers)


@pytest.mark.parametrize(("policy", "has_room"), [("snapshot", True), ("snapshot", False), ("reset", True)])
def test_the_reference_begins_with_the_state_of_the_run(monkeypatch, policy, has_room):
    """S0 is a third in bfloat16, which float32 would not reach by itself; then each side goes on in its own dtype."""
    monkeypatch.setattr("profiling.components.sides.has_room_for_copy", lambda *_: has_room)
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

    prepared = play_stages(Plan(graph, LoopOptions(), settings, 9), load)
    if not has_room:
        assert alive == [0, 0, 0], "the module of the run is freed before that of the reference is built"
    third = float(torch.tensor(1 / 3).bfloat16())
    for reference in (prepared.references["a"], prepared.whole):
        for sides, kind in ((reference.outputs, torch.float32), (reference.eager, torch.bfloat16)):
            assert first_output(sides) == float(torch.tensor(third, dtype=kind) + torch.tensor(1 / 3, dtype=kind))
    assert prepared.whole.calls == 8, "two sessions of four ticks"
