"""Faults of quantised variants: a variant that would do nothing claims no speed."""

import importlib.util
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from models.skinny_linear import SkinnyLinears
from profiling.components.component import Component
from profiling.errors import MissingExtraError
from profiling.variants import quantize
from profiling.variants.quantize import Quantize
from profiling.variants.recipe import Recipe

torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs the extra quant")
INT8 = "Int8WeightOnlyConfig"


@pytest.fixture
def net():
    x = torch.randn(2, 64)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 30)).eval()
    return Component("net", module, {"input": x}, lambda _: {"input": x}, x.device, x.dtype, 1, "random")


@pytest.mark.fault(
    "a quantised variant where no layer can be quantised",
    happens="the row has failed: asked for, did nothing, with a layer, its shape and the reason",
    kept="the other rows",
)
@torchao
def test_nothing_to_quantise_fails(net, tmp_path):
    net.module.add_module("2", nn.Identity())
    net.module[2].unused = nn.Linear(8, 8)
    says = r"Quantize: asked for, did nothing: .*; 2\.unused \[8, 8\]: no call multiplies by its weight"
    with pytest.raises(RuntimeError, match=says), torch.inference_mode():
        Recipe(transforms=[Quantize(config=INT8, include=["2.unused"])])(net, tmp_path)


@pytest.mark.fault(
    "torchao is missing", happens="the row is skipped, with the command that installs it", kept="the other rows"
)
def test_without_torchao_its_cells_are_skipped(monkeypatch):
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    reason = Recipe(transforms=[Quantize(config=INT8)]).unavailable(torch.device("cpu"))
    assert reason is not None
    assert reason.startswith("torchao is not installed. To install it:")
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(MissingExtraError, match="torchao is not installed"):
        Quantize(config=INT8)._quantiser()


@dataclass(frozen=True)
class Leaves:
    """A transform of a user's own that finds nothing to do."""

    def __call__(self, module):
        return module

    def choices(self, module):
        return SkinnyLinears(include=["1"]).choices(module)


@pytest.mark.fault(
    "a transform that replaces none of its layers",
    happens="the row has failed: asked for, did nothing, with the reasons",
    kept="the other rows",
)
def test_a_transform_that_did_nothing_fails(net, tmp_path):
    with pytest.raises(RuntimeError, match=r"Leaves: asked for, did nothing: 0 \[64, 64\]: not included; 1 \[30, 64\]"):
        Recipe(transforms=[Leaves()])(net, tmp_path)
