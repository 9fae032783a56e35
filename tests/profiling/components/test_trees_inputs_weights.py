"""Structures of tensors, weights that are never degenerate."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from profiling.components import weights
from profiling.components.manifest import Entry
from profiling.components.spec import ComponentSpec, Settings
from profiling.components.trees import map_tensors, opened, tensors_in
from profiling.components.weights import fill_degenerate, give_weights
from profiling.errors import InputError

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Box:
    inside: torch.Tensor
    label: str


TREE = OrderedDict(
    a=torch.zeros(2), b=(torch.ones(1), [torch.ones(3)]), c=Pair(torch.ones(1), "no tensor"), d=Box(torch.ones(2), "x")
)


def test_every_entry_has_a_key_and_mapping_keeps_the_structure_and_the_original():
    keys = {key: [str(inner) for inner in getattr(opened(content), "keys", ())] for key, content in TREE.items()}
    assert keys == {"a": [], "b": ["[0]", "[1]"], "c": [".left", ".right"], "d": [".inside", ".label"]}
    assert [str(key) for key in opened(TREE).keys] == ["['a']", "['b']", "['c']", "['d']"]
    assert [tensor.numel() for tensor in tensors_in(TREE)] == [2, 1, 3, 1, 2]
    assert tensors_in({"x": None, "y": 3}) == []
    mapped = map_tensors(lambda tensor: tensor + 1, TREE)
    assert [type(each) for each in (mapped, mapped["c"], mapped["d"])] == [OrderedDict, Pair, Box]
    assert mapped["c"].right == "no tensor"
    assert torch.equal(mapped["d"].inside, torch.full((2,), 2.0))
    assert torch.equal(mapped["b"][1][0], torch.full((3,), 2.0))
    assert torch.equal(TREE["a"], torch.zeros(2))
    assert map_tensors(torch.neg, [TREE["a"].shape]) == [torch.Size([2])], "a tuple that torch makes itself"


def test_zero_layers_are_filled_and_nothing_else():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64))
    nn.init.zeros_(module[1].weight)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    fill_degenerate(module, seed=3)
    filled = {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}
    assert filled == {"1.weight", "2.bias"}
    assert module[1].weight.detach().std().item() == pytest.approx(64**-0.5, rel=0.1)
    again = nn.Linear(64, 64)
    nn.init.zeros_(again.weight)
    fill_degenerate(nn.Sequential(nn.Identity(), again), seed=3)
    assert torch.equal(again.weight, module[1].weight), "the same name and seed give the same values"


@pytest.mark.parametrize(("key", "hint"), [("large", ". The file was published for component=small"), ("small", "")])
def test_a_published_file_that_does_not_fit_names_its_component(key, hint, tmp_path, monkeypatch):
    """Not the component itself: there a file of another size is at fault."""
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "small.pt")
    entry = Entry("file", components=("small",), path=tmp_path / "small.pt", url="")
    monkeypatch.setattr(weights, "load_manifest", lambda: (entry,))
    spec = ComponentSpec(key, {"_target_": "n"}, {"x": {"shape": [1]}}, checkpoint=str(entry.path))
    with pytest.raises(InputError, match="does not fit Linear") as caught:
        give_weights(nn.Linear(2, 3), spec, Settings(scale="full"))
    assert str(caught.value).partition("3)")[2] == hint


def test_weights_that_a_factory_loaded_stay_as_they_are():
    """Also zeros, and where a checkpoint is required."""
    module = nn.Linear(2, 2)
    nn.init.zeros_(module.weight)
    spec = ComponentSpec("net", {"_target_": "n"}, {"x": {"shape": [1]}}, pretrained="a folder")
    assert give_weights(module, spec, Settings(checkpoint="required")) == ("a folder", None)
    assert not module.weight.any()
