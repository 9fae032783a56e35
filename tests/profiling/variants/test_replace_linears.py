"""The transform that replaces linear layers: which ones, why others stay, and what the record says."""

from functools import partial

import pytest
import torch
from fixed_component import fixed_component as component
from torch import nn

from models.skinny_linear import SkinnyLinear
from profiling.errors import InputError, NothingChangedError
from profiling.variants.recipe import Recipe
from profiling.variants.replace_linears import ReplaceLinears

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def replacing(weights="int8", **options):
    return ReplaceLinears(layer=partial(SkinnyLinear, weights=weights), **options)


class Network(nn.Module):
    """With a layer under two names, one of another shape, one with a hook, and an attention that reads its weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.inner = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128))
        self.again = self.inner[0]
        self.attention = nn.MultiheadAttention(128, 4, batch_first=True)
        self.hooked = nn.Linear(128, 128)
        self.hooked.register_forward_hook(lambda module, args, out: out)
        self.last = nn.Linear(128, 10)

    def forward(self, x):
        x = self.again(self.inner(self.first(x)))
        return self.last(self.hooked(self.attention(x, x, x)[0]))


@pytest.mark.parametrize(("weights", "bound"), [("bf16", 0.0), ("int8", 0.02), ("float8_e4m3", 0.06)])
@torch.no_grad()
def test_it_says_what_it_replaced_and_why_others_stay(weights, bound):
    torch.manual_seed(0)
    network, x = Network().eval(), torch.randn(2, 5, 64)
    before = network(x)
    outcome = replacing(weights, exclude=["inner.2"]).apply(network, component(network, x))
    assert outcome.call is network
    assert {choice.name: (choice.left, choice.now) for choice in outcome.choices} == {
        "first": (None, "SkinnyLinear"),
        "inner.0": (None, "SkinnyLinear"),
        "again": (None, "SkinnyLinear"),
        "inner.2": ("excluded", None),
        "attention.out_proj": (
            f"is a {type(network.attention.out_proj).__name__}, which may use its weight in another way",
            None,
        ),
        "hooked": ("has hooks, which would be lost", None),
        "last": ("inputs and outputs must be multiples of 64", None),
    }
    assert network.again is network.inner[0]
    assert (network(x) - before).norm() <= bound * before.norm()
    (note,) = outcome.notes
    assert note == "2 of 2 replaced layers run without their kernel: the kernel needs triton and a CUDA device"
    alone, x = nn.Linear(64, 64), torch.randn(2, 64)
    assert isinstance(replacing().apply(alone, component(alone, x)).call, SkinnyLinear)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"include": "first"}, InputError, "include='first' must be a list"),
        ({"include": ["frist*"]}, InputError, r"'frist\*' matches no linear layer of Network \(such as: first, in"),
        ({"exclude": ["nothing"]}, InputError, "'nothing' matches no linear layer"),
        ({"include": ["last"]}, NothingChangedError, "did nothing: .*multiples of 64"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_would_do_nothing_is_refused(options, kind, message, tmp_path):
    with pytest.raises(NothingChangedError, match="asked for, did nothing: SiLU has no linear layer"):
        replacing().apply(nn.SiLU(), component(nn.SiLU(), input=torch.ones(1)))
    with pytest.raises(kind, match=message), torch.inference_mode():
        Recipe(transforms=[replacing(**options)]).prepare(component(Network().eval(), torch.randn(2, 5, 64)), tmp_path)


def test_a_gpu_that_cannot_run_the_kernel_is_named_before_anything_is_loaded(monkeypatch):
    assert replacing().unavailable(CPU) is None
    monkeypatch.setattr("profiling.variants.replace_linears.missing_package", lambda name: f"{name} is not installed")
    assert replacing().unavailable(CUDA) is None, "they run as PyTorch operations"
    monkeypatch.setattr("profiling.variants.replace_linears.missing_package", lambda name: None)
    monkeypatch.setattr(torch.version, "hip", None)
    for capability in ((7, 5), (8, 9), (9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, it=capability: it)
        assert replacing().unavailable(CUDA) is None
        reason = replacing(capability=(8, 9)).unavailable(CUDA)
        assert (reason is None) == (capability >= (8, 9))
        assert reason is None or "compute capability 8.9 or later" in reason
