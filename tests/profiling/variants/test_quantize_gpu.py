"""Quantised layers on a GPU: every ready recipe, the kernels that it runs, and what kernels refuse."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixed_component import fixed_component
from fixed_component import shipped_recipe as recipe
from torch import nn

from profiling.components.outputs import difference, to_host
from profiling.variants.inductor import Inductor
from profiling.variants.quantize import Quantize
from profiling.variants.recipe import Recipe

pytest.importorskip("torchao")
pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
RECIPES = ("int8_weights", "int8_dynamic", "int4_weights", "fp8_weights", "fp8_per_tensor", "fp8_per_row")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.one = nn.Linear(1024, 2048), nn.Linear(2048, 1024), nn.Linear(1024, 1024)

    def forward(self, x):
        return self.last(self.first(x).relu()) + self.one(x.mean(0, keepdim=True))


def component(rows):
    torch.manual_seed(0)
    x = torch.randn(rows, 1024, device=CUDA, dtype=torch.bfloat16)
    module = Net().to(CUDA, torch.bfloat16).eval()
    return fixed_component(module, x)


@pytest.mark.parametrize("suffix", ["", "_compiled"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_ready_recipe_is_quantised_and_within_its_tolerance(name, suffix, tmp_path):
    with torch.inference_mode():
        net, variant = component(32), recipe(name + suffix)
        assert variant.unavailable(CUDA) is None
        expected = to_host(output=net.call())
        step = variant.prepare(net, tmp_path)
        try:
            error = difference(to_host(output=step.run()), expected).error
            assert 0 < error < variant.tolerance
            choices = step.recipe[0].choices
            assert choices.replaced >= 2, choices.left
            assert "Parameter" not in choices.now
        finally:
            step.close()


@pytest.mark.parametrize(("name", "kernel"), [("fp8_per_tensor", "scaled_mm"), ("int8_dynamic", "_int_mm")])
def test_the_quantised_kernel_is_in_the_trace(name, kernel, tmp_path):
    with torch.inference_mode():
        step = recipe(name).prepare(component(32), tmp_path)
        with torch.profiler.profile() as profiler:
            step.run()
        assert any(kernel in event.key for event in profiler.key_averages())


def test_each_layer_alone_is_timed_compiled_and_captured():
    config = "Float8WeightOnlyConfig"
    with torch.inference_mode():
        step = Recipe(transforms=[Quantize(config=config, sensitivity=True)]).prepare(component(32), Path())
        section = step.explain()["sensitivity"]
        assert "captured" in section.timed
        assert {layer.name for layer in section.layers} == {"first", "last", "one"}
        assert all(0 < layer.ms.before < 1 and 0 < layer.ms.after < 1 for layer in section.layers)


class Turned(nn.Module):
    """Gives a linear layer and a convolution activations whose rows are not contiguous."""

    def __init__(self):
        super().__init__()
        self.linear, self.point = nn.Linear(1024, 1024), nn.Conv2d(1024, 1024, 1)

    def forward(self, x):
        return self.linear((x + 1).t()), self.point((x + 1).reshape(1, 1024, 4, 8))


@pytest.mark.parametrize("name", ["int8_weights", "int4_weights"])
def test_compiled_kernels_get_contiguous_activations(name, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(1024, 32, device=CUDA, dtype=torch.bfloat16)
    module = Turned().to(CUDA, torch.bfloat16).eval()
    net = fixed_component(module, x)
    (transform,) = recipe(name).transforms
    with torch.inference_mode():
        expected = to_host(output=module(x))
        compiled = Recipe(transforms=[replace(transform, conv_1x1=True)], compiler=Inductor()).prepare(net, tmp_path)
        assert compiled.recipe[0].choices.replaced == 2
        eager = to_host(output=module(x))
        assert difference(eager, expected).error < recipe(name).tolerance
        assert difference(to_host(output=compiled.run()), eager).error < 0.02
        compiled.close()
