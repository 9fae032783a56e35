"""Inputs of any shape: nested ones, plain values, integers and masks, from YAML to a variant's buffers."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from profiling.cli.config import SET_BY_THE_TOOL, read_component
from profiling.components.build import build, draw_input
from profiling.components.component import Component
from profiling.components.outputs import relative_l2
from profiling.components.spec import ComponentSpec, Settings, input_tree
from profiling.components.trees import forms_of, named_tensors, other_form, overwrite, tensors_in
from profiling.errors import InputError
from profiling.fx_passes.tracer import placeholders, trace
from profiling.roofline.work import work_of
from profiling.shape_sweep import points_of

ROOT = Path(__file__).parents[3]
OUTSIDE = ROOT / "tests" / "data" / "outside"
SETTINGS = Settings(device="cpu", dtype="bfloat16", scale="full", threads=1)
TEXT = "cond.embed.text"


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> ComponentSpec:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    node = yaml.safe_load((OUTSIDE / "component" / "nested.yaml").read_text())["nested"]
    return read_component("nested", node)


@pytest.fixture
def component(spec: ComponentSpec) -> Component:
    return build(spec, SETTINGS).cast("run").component(seed=0)


def test_yaml_gives_forward_what_it_describes_and_the_reference_the_same_in_another_dtype(spec, component):
    inputs = component.inputs
    assert (inputs["scale"], inputs["use_cache"], inputs["text"], inputs["cond"]["weight"]) == (2, True, None, 0.5)
    assert [tensor.dtype for tensor in inputs["cache"][0]] == [torch.bfloat16, torch.bfloat16]
    assert [tensor.dtype for tensor in inputs["cache"][1]] == [torch.float32, torch.bool]
    assert inputs["grid"].tolist() == [[1, 4, 4], [1, 4, 4]]
    assert sorted(inputs["position"]["index"].tolist()) == [0, 1]
    assert -1 <= inputs["cond"]["embed"]["text"].min() < 0 < inputs["cond"]["embed"]["text"].max() < 1
    with torch.inference_mode():
        assert work_of(component).bytes["inputs"] == sum(t.nbytes for t in tensors_in(inputs)), "in the roofline, too"
    wide = dict(named_tensors(build(spec, SETTINGS).cast("float32").component(seed=0).inputs))
    for path, tensor in named_tensors(inputs):
        assert wide[path].dtype == (torch.float32 if tensor.is_floating_point() else tensor.dtype)
        assert torch.equal(wide[path], tensor.to(wide[path].dtype))


def test_a_refill_changes_what_is_drawn_and_no_address(component):
    expanded = [torch.zeros(1, 3).expand(2, 3)]
    overwrite(expanded, [torch.arange(3.0).expand(2, 3)])
    assert expanded[0].tolist() == [[0, 1, 2], [0, 1, 2]]
    before = {path: (tensor.data_ptr(), tensor.clone()) for path, tensor in named_tensors(component.inputs)}
    component.refill(1)
    after = dict(named_tensors(component.inputs))
    assert {path for path, (_, old) in before.items() if torch.equal(old, after[path])} <= {"grid", "position.index"}
    assert all(after[path].data_ptr() == address for path, (address, _) in before.items())
    component.refill(0)
    assert all(torch.equal(after[path], old) for path, (_, old) in before.items())


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"x": torch.ones(2)}, r"x\.0 \(float32 \[2\]\) is missing"),
        ({"x": [torch.ones(3)], "t": 0.5}, r"x\.0 is float32 \[3\], and was float32 \[2\]"),
        ({"x": [torch.ones(2)], "t": 0.6}, r"t is 0\.6, and was 0\.5"),
        ({"x": [torch.ones(2)], "t": 0.5, "y": None}, r"y \(None\) is new"),
    ],
)
def test_another_form_is_named_by_its_path(other, says):
    expected = forms_of({"x": [torch.ones(2)], "t": 0.5})
    assert re.search(says, str(other_form(other, expected)))
    assert other_form({"x": [torch.zeros(2)], "t": 0.5}, expected) is None


def test_a_failing_forward_is_described_by_all_of_its_inputs(spec):
    wrong = replace(spec, inputs={**spec.inputs, "cond": {"weight": 0.5, "embed": [{"shape": [2, 8]}, 1]}})
    with pytest.raises(InputError, match=r"cond\.embed\.0 bfloat16 \[2, 8\].* scale 2.* and 1 more\)") as caught:
        build(wrong, SETTINGS).cast("run").component(0).reset()
    assert "\n" not in str(caught.value)


DTYPES = {
    "high": ({"dtype": "uint8", "low": 250, "high": 256}, torch.uint8, range(250, 256)),
    "negative": ({"dtype": "int8", "low": -128, "high": 128}, torch.int8, range(-128, 128)),
    "ones and zeros": ({"dtype": "int64", "distribution": "bernoulli"}, torch.int64, (0, 1)),
    "mask": ({"dtype": "bool"}, torch.bool, (False, True)),
    "ones": ({"dtype": "int32", "value": 1}, torch.int32, (1,)),
    "whole floats": ({"distribution": "integers", "high": 10}, torch.float32, range(10)),
}


def draw(node, seed=0, dtype=torch.float32):
    return draw_input(input_tree({"shape": [4000], **node}, "x"), torch.Generator().manual_seed(seed), dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_integers_and_masks(name):
    node, dtype, values = DTYPES[name]
    tensor = draw(node)
    assert tensor.dtype == dtype
    assert set(tensor.tolist()) == set(values)


def test_floating_values():
    uniform, normal = draw({"low": 2, "high": 3}), draw({}, dtype=torch.bfloat16)
    assert 2 <= uniform.min() < 2.1 < 2.9 < uniform.max() <= 3
    assert normal.dtype == torch.bfloat16
    assert abs(normal.float().std() - 1) < 0.05
    assert torch.equal(draw({}), draw({}))
    assert not torch.equal(draw({}), draw({}, seed=1))


def test_a_dict_that_resembles_a_tensor_stays_a_dict():
    levels = {"low": {"shape": [2]}, "high": {"shape": [2]}}
    for node in ({"scale": 0.5}, {"height": 64, "width": 64}, {"value": 0.5}, levels, {}):
        assert input_tree(node, "x").keys() == node.keys()


def test_a_mapping_with_the_one_key_tuple_is_a_tuple(spec):
    pair = {"tuple": [{"shape": [2, 8]}, {"tuple": [1, {"of": [2]}]}]}
    inputs = replace(spec, inputs={**spec.inputs, "text": pair, "scale": {"tuple": 1, "other": 2}})
    made = build(inputs, SETTINGS).cast("run").component(0)
    first, second = made.inputs["text"]
    assert type(made.inputs["text"]) is type(second) is tuple
    assert (first.shape, second) == ((2, 8), (1, {"of": [2]}))
    assert made.inputs["scale"] == {"tuple": 1, "other": 2}, "with other keys it is a dict"
    before = first.clone()
    made.refill(1)
    assert made.inputs["text"][0] is first
    assert not torch.equal(first, before)


def test_a_trace_takes_the_tensors_of_nested_inputs(spec):
    component = build(spec, replace(SETTINGS, dtype="float32")).component(0)
    traced = trace(component.module, component.inputs)
    arguments = placeholders(component.inputs)
    assert {"x", "cond__embed__text", "cache__0__1", "position__index"} <= arguments.keys()
    component.refill(5)
    with torch.no_grad():
        for output, expected in zip(traced(**placeholders(component.inputs)), component.call(), strict=True):
            torch.testing.assert_close(output, expected)


def test_a_sweep_reaches_a_nested_input(spec):
    node = {"module": spec.module, "inputs": spec.inputs, "tiny": {"inputs": {"cond": {"embed": {"text": {"low": 0}}}}}}
    cfg = OmegaConf.create({"component": {"nested": node}, "axis": "batch", "values": [4], "together": False})
    (point,) = points_of(cfg, spec)
    position = {"index": {"shape": [2], "dtype": "int64", "high": 4}}
    made = build(replace(point, inputs={**point.inputs, "position": position}), SETTINGS).component(0)
    assert [tuple(each.shape) for each in tensors_in(made.inputs)] == [(4, 8)] * 6 + [(4, 3), (2,)]
    cfg.axis = f"{TEXT}.1"
    (point,) = points_of(cfg, spec)
    assert point.inputs["cond"]["embed"]["text"]["shape"] == [2, 4]
    assert (spec.at("tiny").scale, point.at("tiny").scale) == ("full", "tiny"), "only what has a tiny form is tiny"
    assert point.at("tiny").inputs["cond"] == {"embed": {"text": {"shape": [2, 4], "low": 0}}, "weight": 0.5}
    cfg.axis = "cond.embed.txt.1"
    with pytest.raises(InputError, match=r"Choose one of: batch, x\.0, x\.1, cond\.embed\.text\.0"):
        points_of(cfg, spec)


def test_the_examples_of_the_docs_are_read():
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/components.md"))
    (mine,) = (block for block in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL) if "my_net:" in block)
    spec = read_component("my_net", yaml.safe_load(mine)["my_net"])
    drawn = {name: each.distribution for name, each in input_tree(spec.inputs, "inputs").items() if name != "cond"}
    assert drawn == {"x": "normal", "t": "uniform", "tokens": "integers", "mask": "bernoulli"}
    for block in re.findall(r"```yaml\n(inputs:.*?)```", page, re.DOTALL):
        input_tree(yaml.safe_load(block)["inputs"], "inputs")
    for inline in re.findall(r"`(\{shape.*?\})`", page):
        input_tree(yaml.safe_load(inline), "inputs.x")
    assert {each.name for each in fields(ComponentSpec)} - SET_BY_THE_TOOL <= set(
        re.findall(r"^\| `(\w+)`", page, re.M)
    )


class Cache:
    """An object of a library: keys that a call overwrites, reached by two names."""

    def __init__(self, keys):
        self.keys, self.layers = keys, [{"keys": keys}]


def cache_of(module, *, generator, device, dtype):
    return Cache(torch.randn(1, 8, generator=generator, device=device).to(dtype))


class Reader(torch.nn.Linear):
    def forward(self, x, cache):
        cache.keys.copy_(super().forward(x) + cache.keys)
        return cache.keys + 0


def test_the_reference_reads_them_in_float32():
    inputs = {"x": {"shape": [1, 8]}, "cache": {"_target_": f"{__name__}.cache_of"}}
    module = {"_target_": f"{__name__}.Reader", "in_features": 8, "out_features": 8}
    spec = ComponentSpec(name="net", module=module, inputs=inputs)
    run, wide = (build(spec, SETTINGS).cast(form).component(seed=0).inputs["cache"] for form in ("run", "float32"))
    assert wide.layers[0]["keys"] is wide.keys
    assert run.keys.dtype == torch.bfloat16
    assert wide.keys.dtype == torch.float32
    assert torch.equal(run.keys.float(), wide.keys)


LLAMA = """
module:
  _target_: transformers.LlamaForCausalLM
  config: {_target_: transformers.LlamaConfig, vocab_size: 64, hidden_size: 32, intermediate_size: 64,
           num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
inputs:
  input_ids: {shape: [1, 1], dtype: int64, low: 0, high: 64}
  past_key_values: {_target_: models.language_steps.static_cache, length: 16, filled: 8}
"""


def test_a_decode_step_of_transformers_by_yaml_alone():
    pytest.importorskip("transformers")
    spec, logits = read_component("llama", yaml.safe_load(LLAMA)), []
    for form in ("run", "float32"):
        with torch.inference_mode():
            component = build(spec, SETTINGS).cast(form).component(seed=0)
            component.reset()
            logits.append([component.call().logits.float() for _ in range(4)])
    for half, full in zip(*logits, strict=True):
        assert 0 < relative_l2(half, full) < 0.05
