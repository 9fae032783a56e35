"""Stages whose outputs are known by hand: edges, delays, repeats, sources; and streams that are ordered."""

from dataclasses import replace

import pytest
import torch
from planted_stages import SHAPE, Affine, Races, component, delivered, pipeline_of, planted
from torch import nn

from profiling.errors import InputError
from profiling.realtime.graph import parse_graph
from profiling.realtime.loop import session_ticks
from profiling.realtime.play import Clock, FrameLoop

COUNT = {"count": {"make": {"_target_": "planted_stages.counting"}}}


def played(ticks, *args, **kwargs):
    return delivered(pipeline_of(*planted(*args, **kwargs)), ticks)


def values(ticks, name):
    return [tick[name] for tick in ticks]


def test_feedback_is_the_output_of_the_tick_before():
    stages = {"a": {"inputs": {"x": "count.n", "last": "b@-1"}}, "b": {"inputs": {"y": "a"}}}
    ticks = played(range(4), stages, COUNT, deliver=["a", "b"])
    # a = n + b of the tick before + 1, b = a + 1; before the first tick, zeros
    assert values(ticks, "a") == [1, 4, 8, 13]
    assert values(ticks, "b") == [2, 5, 9, 14]


def test_a_stage_reads_its_own_output_of_the_tick_before():
    ticks = played(range(4), {"a": {"inputs": {"x": "a@-1"}, "affine": {"factor": 2.0}}}, deliver=["a"])
    assert values(ticks, "a") == [1, 3, 7, 15]


def test_a_stage_that_runs_now_and_then_keeps_its_output():
    stages = {"text": {"inputs": {"x": "count.n"}, "every": 3}, "a": {"inputs": {"t": "text", "before": "text@-1"}}}
    graph, components = planted(stages, COUNT, deliver=["text", "a"])
    ticks = delivered(pipeline_of(graph, components), range(-1, 7))
    assert values(ticks, "text") == [64, 1, 1, 1, 4, 4, 4, 7], "also in the first tick; -1 is the last of 64 values"
    assert values(ticks, "a") == [65, 66, 3, 3, 6, 9, 9, 12]
    assert components["text"].module.calls == 4


def test_repeated_calls_read_their_own_output_and_a_value_each():
    stages = {
        "a": {"inputs": {"x": "count.n", "t": [10, 20, 30]}, "again": {"x": "a.whole"}, "repeat": 3}
        | {"affine": {"split": True}}
    }
    ticks = played(range(2), stages, COUNT, deliver=["a.whole"])
    assert values(ticks, "a.whole") == [0 + 10 + 1 + 20 + 1 + 30 + 1, 1 + 10 + 1 + 20 + 1 + 30 + 1]


def test_an_output_is_read_by_key_and_delivered_whole():
    stages = {"a": {"inputs": {"x": "count.n"}, "affine": {"split": True}}, "b": {"inputs": {"y": "a.half"}}}
    ticks = played(range(2), stages, COUNT, deliver=["a", "b"])
    assert ticks == [{"a.half": 0.5, "a.whole": 1, "b": 1.5}, {"a.half": 1, "a.whole": 2, "b": 2}]


def test_a_source_has_a_new_value_every_period():
    ticks = played(range(5), {"a": {"inputs": {"x": "count.n"}}}, {"count": {**COUNT["count"], "period": 2}})
    assert values(ticks, "a") == [1, 1, 2, 2, 3]


def test_noise_is_new_in_every_tick_and_the_same_in_every_session():
    graph, components = planted({"a": {"inputs": {"x": "normal"}}})
    pipeline = pipeline_of(graph, components)
    first = values(delivered(pipeline, range(5)), "a")
    pipeline.reset()
    assert values(delivered(pipeline, range(5)), "a") == first
    assert len(set(first)) == 5


def test_drawn_is_as_the_component_draws_it():
    stages = {"a": {"inputs": {"x": "drawn"}}, "b": {"inputs": {"x": "user.codes"}}}
    source = {"user": {"draw": {"codes": "drawn"}}}
    ticks = played(range(20), stages, source, deliver=["a", "b"])
    for name in ("a", "b"):
        assert len(set(values(ticks, name))) == 16, "in turn"
        assert values(ticks, name)[:4] == values(ticks, name)[16:]


WRONG = {
    "no edge for an input": (
        {"a": {"inputs": {}}},
        "pipeline.stages.a.inputs: affine also takes x. Give it an edge; x: fixed keeps",
    ),
    "an edge for no input": ({"a": {"inputs": {"x": "normal", "z": "normal"}}}, "affine has no such input, only x"),
    "no such output": ({"a": {"inputs": {"x": "b.c"}}, "b": {"inputs": {"x": "normal"}}}, "pipeline: b.c: the stage b"),
    "integers for floats": (
        {"a": {"inputs": {"x": {"distribution": "integers", "low": 0, "high": 9}}}},
        "does not fit the input's dtype float32. Use normal, uniform or bernoulli",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_edge_that_does_not_fit_the_component(case):
    stages, message = WRONG[case]
    graph, _ = planted(stages)
    module = planted({"a": {"inputs": {"x": "normal"}}})[1]["a"].module
    with pytest.raises(InputError) as caught:
        delivered(pipeline_of(graph, {name: component(name, module) for name in graph.stages}), range(1))
    assert message in str(caught.value)


def test_an_edge_for_an_argument_without_tensors():
    graph, components = planted({"a": {"inputs": {"x": "normal", "z": "fixed"}}})
    one = replace(components["a"], inputs={**components["a"].inputs, "z": {"size": None}})
    with pytest.raises(InputError, match=r"inputs\.z: an edge writes to a tensor, and z holds none: .*Remove the edge"):
        delivered(pipeline_of(graph, {"a": one}), range(1))


@pytest.mark.parametrize(("shape", "kind"), [((1, 1), torch.float32), ((2,), torch.float32), ((1, 2), torch.int64)])
def test_a_hand_over_neither_broadcasts_nor_casts(shape, kind):
    graph, components = planted({"a": {"inputs": {"x": "normal"}}, "b": {"inputs": {"y": "a"}}})
    module = components["a"].module
    module.forward = lambda x: torch.zeros(shape, dtype=kind)
    with pytest.raises(InputError, match=r"pipeline\.stages\.b\.inputs\.y=a: the input takes float32 \[1, 2\] on cpu"):
        delivered(pipeline_of(graph, components), range(1))


def test_an_output_that_changes_its_shape():
    graph, components = planted({"a": {"inputs": {"x": "normal"}}})
    module = components["a"].module
    shapes = iter([(1, 2), (1, 3)])
    module.forward = lambda x: torch.zeros(next(shapes))
    with pytest.raises(InputError, match=r"stages\.a: its output.* was \[1, 2\] and is now \[1, 3\]"):
        delivered(pipeline_of(graph, components), range(2))


class Nested(nn.Module):
    """Takes tensors and numbers in dicts, lists and tuples, and mutates none of them."""

    def forward(self, x, cond):
        assert type(cond["pair"]) is tuple
        return x + 10 * cond["pair"][0] + 100 * cond["list"][1] + cond["gain"]


def nested_inputs(generator):
    names = ("x", "one", "two")
    drawn = {name: torch.randn(SHAPE, generator=generator) for name in names}
    return {"x": drawn["x"], "cond": {"gain": 0.5, "pair": (drawn["one"], None), "list": [7, drawn["two"]]}}


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
    one = replace(component("nested", Affine(["x"])), module=Nested(), make_inputs=nested_inputs)
    parts = {name: replace(one, name=name, inputs=nested_inputs(torch.Generator())) for name in stages}
    before = 0.0
    for number, tick in enumerate(delivered(pipeline_of(graph, parts), range(3))):
        a = number + 10 * number + 100 * before + 0.5
        before = a + (10 + 100 * number + 0.5) + (20 + 100 * a + 0.5) + (30 + 100 * a + 0.5)
        assert tick == pytest.approx({"a": a, "b": before})


# Streams: without a device, each access to an output is checked against what the events order.

GRAPHS = {
    "a chain": {"a": {"inputs": {"x": "normal"}}, "b": {"inputs": {"x": "a"}}, "c": {"inputs": {"x": "b"}}},
    "two decoders": {"a": {"inputs": {"x": "normal"}}, "b": {"inputs": {"x": "a"}}, "c": {"inputs": {"x": "a"}}},
    "feedback": {"a": {"inputs": {"x": "c@-1"}}, "b": {"inputs": {"x": "a"}}, "c": {"inputs": {"x": "b", "y": "a@-1"}}},
    "a state that nobody delivers": {
        "a": {"inputs": {"x": "c@-1"}},
        "c": {"inputs": {"x": "a"}},
        "b": {"inputs": {"x": "a"}},
    },
    "now and then": {
        "t": {"inputs": {"x": "normal"}, "every": 2},
        "a": {"inputs": {"x": "t", "y": "t@-1"}},
        "b": {"inputs": {"x": "a", "y": "t"}},
    },
    "a late reader": {"a": {"inputs": {"x": "normal", "y": "b@-1"}}, "b": {"inputs": {"x": "a", "y": "a@-1"}}},
}


def raced(monkeypatch, name, ticks=9):
    races = Races()
    races.install(monkeypatch)
    stages = {stage: dict(each) for stage, each in GRAPHS[name].items()}
    graph, components = planted(stages, deliver=["b"], device="cuda")
    pipeline = pipeline_of(graph, components, schedule="overlap")
    assert pipeline.depth == 2
    delivered(pipeline, range(ticks))
    return races, pipeline


@pytest.mark.parametrize("name", GRAPHS)
def test_streams_are_ordered_wherever_they_meet(monkeypatch, name):
    races, _ = raced(monkeypatch, name)
    assert races.found == []
    assert races.ops > 9 * (len(GRAPHS[name]) - 1)


@pytest.mark.parametrize("deliver", ["host", "device"])
@pytest.mark.parametrize("name", [*GRAPHS, "an end that is skipped"])
def test_a_tick_is_over_when_all_of_its_stages_are(monkeypatch, name, deliver):
    """Also where the stage that others end in is skipped: times of a stage are read once the device has passed them."""
    Races().install(monkeypatch)
    stages = GRAPHS.get(name) or {"a": {"inputs": {"x": "normal"}}, "b": {"inputs": {"x": "a"}, "every": 3}}
    graph, components = planted({stage: dict(node) for stage, node in stages.items()}, deliver=["b"], device="cuda")
    for schedule in ("sequential", "overlap"):
        rows = []
        pipeline = pipeline_of(graph, components, schedule=schedule, deliver=deliver)
        with torch.inference_mode():
            FrameLoop(pipeline, Clock(), lambda tick, ms: {}, depth=pipeline.depth).run(range(9), rows.append)
        assert all("device_a_ms" in row for row in rows)


def test_the_ticks_that_are_checked():
    """A few, and a second run of each stage that is not far."""
    every = {name: planted({"a": {"inputs": {"x": "normal"}, "every": name}})[0] for name in (1, 5, 16, 300)}
    assert {name: session_ticks(graph) for name, graph in every.items()} == {1: 4, 5: 6, 16: 4, 300: 4}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_missing_event_is_found(monkeypatch, name):
    """The detector itself: without the waits, it names a race in every graph."""
    with monkeypatch.context() as context:
        context.setattr("profiling.realtime.pipeline.StagedPipeline._wait_for", lambda *_: None)
        assert raced(context, name)[0].found


def test_stages_overlap_and_do_not_just_run_in_turn(monkeypatch):
    """The first stage of a tick starts before the decoders of the previous tick have ended."""
    seen = []
    races = Races()
    races.install(monkeypatch)
    graph, components = planted(dict(GRAPHS["two decoders"]), deliver=["b", "c"], device="cuda")
    pipeline = pipeline_of(graph, components, schedule="overlap")
    access = races.access
    races.access = lambda where, kind: (seen.append((races.op, races.op_before)), access(where, kind))
    delivered(pipeline, range(4))
    number = {op[1:]: op[0] for op, _ in seen}
    before = {op[1:]: before for op, before in seen}
    assert number["b", 1] not in before["a", 2]
    assert number["b", 0] in before["a", 2], "two ticks are in flight, not three"
    assert number["b", 2] not in before["c", 2]


@pytest.mark.gpu
@pytest.mark.parametrize("deliver", ["host", "device"])
@pytest.mark.parametrize("slow", ["a", "b", "c"])
@pytest.mark.parametrize("name", GRAPHS)
def test_overlapping_stages_read_what_stages_in_turn_read(name, slow, deliver):
    """One stage takes a millisecond on the device, so that a stage that does not wait for it reads old numbers."""
    stages = {
        stage: {**node, "affine": {"factor": 0.5, "sleep_ms": stage == slow}} for stage, node in GRAPHS[name].items()
    }
    ticks = {}
    for schedule in ("sequential", "overlap"):
        graph, components = planted(stages, deliver=["b"], device="cuda", memory="cuda")
        ticks[schedule] = delivered(pipeline_of(graph, components, schedule=schedule, deliver=deliver), range(30))
    assert ticks["overlap"] == ticks["sequential"]
    assert len({tick["b"] for tick in ticks["overlap"]}) > 10
