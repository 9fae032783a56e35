"""Objects among the inputs, made by a factory: caches, for example."""

import pytest
import torch
import yaml

from profiling.cli.config import read_component
from profiling.components.build import build
from profiling.components.outputs import relative_l2
from profiling.components.spec import ComponentSpec, Settings

SETTINGS = Settings(device="cpu", dtype="bfloat16", scale="full", threads=1)


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
  config:
    _target_: transformers.LlamaConfig
    vocab_size: 64
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 2
    num_attention_heads: 4
    num_key_value_heads: 2
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
