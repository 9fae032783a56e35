"""The recipes of benchmarks/quantised are valid, and 1×1 convolutions of the audio networks can be quantised."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from benchmarks.quantised.plain_pointwise import plain_pointwise
from models.audio_vae import AudioDecoder, AudioVAEParams
from models.initialisation import randomise
from profiling.components.instantiate import instantiate
from profiling.run.job import as_recipe
from profiling.variants.recipe import Recipe

RECIPES = sorted((Path(__file__).parents[2] / "benchmarks" / "quantised" / "variant").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_recipes_of_the_quantised_run(file):
    ((name, node),) = yaml.safe_load(file.read_text()).items()
    assert name == file.stem
    recipe = instantiate(as_recipe(node), f"variant.{name}")
    assert isinstance(recipe, Recipe)
    assert recipe.capture is not None
    assert (node["compiler"] or {}).get("regional", False) == name.endswith("_regional")
    assert any(getattr(each, "conv_1x1", False) for each in recipe.transforms) == name.endswith("_1x1")


def test_plain_pointwise_computes_the_same():
    torch.manual_seed(0)
    module = AudioDecoder(AudioVAEParams.tiny()).eval()
    x = torch.randn(1, module.params.latent_channels, 4)
    with torch.inference_mode():
        randomise(module, seed=0)
        expected = module(x)
        assert not any(type(layer) is nn.Conv1d for layer in module.modules())
        difference = (plain_pointwise(module)(x) - expected).norm() / expected.norm()
    assert difference < 1e-4  # rounding in float32; how sums are ordered depends on the processor
    plain = [layer for layer in module.modules() if type(layer) is nn.Conv1d]
    assert plain
    assert {layer.kernel_size for layer in plain} == {(1,)}
