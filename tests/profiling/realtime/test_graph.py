"""The node `pipeline` of a config: its order, what it depends on, and mistakes in it, each in one line.

Further ones are in the table of wrong input in `tests/faults`.
"""

import pytest

from profiling.errors import InputError
from profiling.realtime.graph import Draw, Fixed, Read, parse_graph

COMPONENTS = ("encoder", "network", "decoder")


def node(**changes):
    base = {
        "sources": {"camera": {"draw": {"image": "uniform"}}, "prompt": {"file": "p.npz", "period": 60}},
        "stages": {
            "decode": {"component": "decoder", "inputs": {"z": "denoise"}},
            "text": {"component": "encoder", "inputs": {"tokens": "prompt.tokens"}, "every": 12},
            "encode": {"component": "encoder", "inputs": {"image": "camera.image", "last": "decode@-1"}},
            "denoise": {
                "component": "network",
                "inputs": {"x": "encode.latent", "text": "text.0", "noise": "normal", "t": [1.0, 0.5]},
                "again": {"x": "denoise"},
                "repeat": 2,
            },
        },
        "deliver": ["decode"],
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = base
        for parent in parents:
            place = place[parent]
        place[last] = value
    return base


def test_a_graph_is_ordered_by_its_edges():
    graph = parse_graph(node(), COMPONENTS)
    assert list(graph.stages) == ["encode", "text", "denoise", "decode"]
    denoise = graph.stages["denoise"]
    assert denoise.inputs == {
        "x": Read("encode", "latent"),
        "text": Read("text", "0"),
        "noise": Draw("normal"),
        "t": Fixed((1.0, 0.5)),
    }
    assert graph.stages["encode"].inputs["last"] == Read("decode", before=True)


def test_when_the_inputs_of_a_frame_were_sampled():
    graph = parse_graph(node(), COMPONENTS)
    assert graph.sampled(0) == {"prompt": 0, "camera": 0}
    assert graph.sampled(30) == {"prompt": 0, "camera": 30}, "the text stage last ran in tick 24, on the prompt of 0"
    assert graph.sampled(61) == {"prompt": 60, "camera": 61}
    late = parse_graph(node(stages__denoise__inputs__x="encode.latent@-1"), COMPONENTS)
    assert late.sampled(30)["camera"] == 29


EMPTY = {"distribution": "uniform", "low": 2, "high": 1}
WRONG = {
    "no mapping": (5, "pipeline=5: must be a mapping"),
    "nothing delivered": (node(deliver=[]), "pipeline.deliver is empty"),
    "a delivered source": (node(deliver=["camera.image"]), "pipeline.deliver=camera.image: name stages"),
    "no stages": (node(stages={}), "pipeline.stages is empty"),
    "a cycle": (node(stages__encode__inputs__last="decode"), "decode reads denoise reads encode reads decode in the"),
    "itself": (node(stages__decode__inputs__z="decode"), "decode reads decode in the same tick, which is a cycle"),
    "a source without a key": (node(stages__encode__inputs__image="camera"), "read a key of the source as camera.KEY"),
    "a factory without a target": (node(sources__camera={"make": {"x": 1}}), "sources.camera.make has no _target_"),
    "integers without a range": (node(stages__decode__inputs__z="integers"), "{distribution: integers, low: 0"),
    "an empty range": (node(stages__decode__inputs__z=EMPTY), "high=1 must be a number above low=2"),
    "values without calls": (node(stages__denoise__inputs__t=[1.0, 0.5, 0.2]), "a list needs repeat=3"),
    "again without repeat": (node(stages__decode__again={"z": "normal"}), "add repeat"),
    "again of no input": (node(stages__denoise__again={"y": "denoise"}), "inputs has no y"),
    "a priority": (node(stages__decode__priority=3), "stages.decode.priority=3 must be a whole number, -5 to 0"),
    "frames": (node(frames_per_tick=0), "pipeline.frames_per_tick=0 must be a whole number, at least 1"),
    "a rate": (node(frame_rate=-1), "pipeline.frame_rate=-1 must be"),
    "a taken name": (node(stages__wait={"component": "decoder"}), "pipeline.stages.wait: this name is taken"),
    "a name with a dot": (node(stages={"a.b": {"component": "decoder"}}), "must be letters, digits and underscores"),
    "one name twice": (node(sources__decode={"file": "x.npz"}), "a stage has the same name"),
    "a setting": (node(work={"steps": [1]}), "pipeline.work"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line(case):
    wrong, message = WRONG[case]
    with pytest.raises(InputError) as caught:
        parse_graph(wrong, COMPONENTS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
