"""Norms over channels, in the ways in which decoders write them."""

import pytest
import torch
from fixed_component import Net, shipped_recipe
from fixed_component import fixed_component as component
from fx_networks import applied, calls, f32, normal
from torch import fx
from torch.nn import functional as F

from models.kernels.fused_norm import fused_norm
from profiling.errors import SkippedError
from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.norm import FuseNorms
from profiling.fx_passes.regions import Graph

PASS = FuseNorms(norm=fused_norm, misfit=lambda *_: None)
VECTORS = {"gain": normal(6, seed=2, dtype=torch.float32) + 2, "shift": normal(6, seed=3, dtype=torch.float32)}
X = f32(2, 6, 4, 5)


def written_out(self, x):
    mean = x.mean(dim=(2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((2, 3), keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-3) * self.gain[:, None, None] + self.shift[:, None, None]


def scale_of_groups(self, x):
    variance = x.reshape(2, 3, -1).float().var(-1, correction=0)
    scale = (1 + self.gain).view(3, -1) * torch.rsqrt(variance + 1e-6).unsqueeze(-1)
    return x * scale.view(2, -1, 1, 1)


def over_time(self, x):
    square = torch.linalg.vector_norm(x.flatten(2), dim=-1, keepdim=True).square() / 20
    return x * (self.gain.unsqueeze(-1) * torch.rsqrt(square + 1e-5)).unsqueeze(-1)


def upcast(self, x):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + 1e-6) * self.gain.view(-1, 1, 1)).to(x.dtype)


def into_memory(self, x):
    variance = torch.var(x.reshape(2, 2, -1), -1, correction=0, out=x.new_empty(2, 2))
    return x * torch.rsqrt(variance + 1e-6).repeat_interleave(3, 1)[..., None, None]


def layer_norm_2d(self, x):
    return F.layer_norm(x.permute(0, 2, 3, 1), (6,), self.gain, self.shift, 1e-6).permute(0, 3, 1, 2)


#: groups, epsilon, about_mean, subtract_mean of each.
NORMS = {
    "group norm": (lambda self, x: F.group_norm(x, 3, self.gain, self.shift, 1e-4), (3, 1e-4, True, True)),
    "instance norm": (lambda self, x: F.instance_norm(x, eps=1e-5), (6, 1e-5, True, True)),
    "layer norm": (layer_norm_2d, (0, 1e-6, True, True)),
    "normalize": (lambda self, x: F.normalize(x, dim=1) * 6**0.5 * self.gain[:, None, None], (0, 1e-24, False, False)),
    "written out": (written_out, (6, 1e-3, True, True)),
    "scale of groups": (scale_of_groups, (3, 1e-6, True, False)),
    "over time": (over_time, (6, 1e-5, False, False)),
    "upcast": (upcast, (0, 1e-6, False, False)),
    "into memory": (into_memory, (2, 1e-6, True, False)),
}


def options(traced):
    return [node.args[-6:] for node in traced.graph.nodes if node.target is fused_norm]


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_recognised(name):
    norm, expected = NORMS[name]
    module = Net(lambda self, x: norm(self, x) * 2 + x.mean(), **VECTORS)
    traced, counts = applied([PASS], module, 1e-5, x=X)
    assert counts == [1]
    assert options(traced) == [(*expected, "none", 0.0)]
    assert not {"var", "rsqrt", "group_norm", "layer_norm", "normalize", "linalg_vector_norm"} & calls(traced).keys()


ACTIVATIONS = {
    "silu": lambda self, x: F.silu(x),
    "silu ": lambda self, x: x * torch.sigmoid(x),
    "gelu": lambda self, x: F.gelu(x),
    "gelu_tanh": lambda self, x: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda self, x: F.leaky_relu(x, 0.2),
    "leaky_relu ": lambda self, x: F.dropout(x, training=False).relu(),
    "snake": lambda self, x: x + (self.shift.exp() + 1e-9).reciprocal()[:, None, None]
    * torch.sin(self.gain[:, None, None] * x).pow(2),
    "snake ": lambda self, x: torch.addcdiv(
        x, torch.addcmul(x, x, self.gain[:, None, None]).sin().square(), self.shift.exp()[:, None, None]
    ),
    "none": lambda self, x: F.softplus(x),
    "none ": lambda self, x: F.silu(x) + x.flip(-1),
    "none  ": lambda self, x: x + torch.sin(x) ** 3,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_activation_belongs_to_the_kernel(name):
    after = ACTIVATIONS[name]
    module = Net(lambda self, x: after(self, F.group_norm(x, 2)), **VECTORS)
    traced, counts = applied([PASS], module, 1e-5, x=X)
    assert counts == [1]
    (found,) = options(traced)
    assert found[4] == name.strip()
    assert found[5] == {"leaky_relu": 0.2}.get(name, 0.0)


@pytest.mark.parametrize(
    "norm",
    [
        lambda self, x: F.layer_norm(x, (5,)),
        lambda self, x: x * torch.rsqrt(x.var(dim=(2, 3), correction=1, keepdim=True) + 1e-6),
        lambda self, x: x / (x.std(dim=1, correction=0, keepdim=True) + 1e-6),
        lambda self, x: x * torch.rsqrt(x.square().mean() + 1e-6),
        lambda self, x: F.group_norm(x, 2) if self.other.add_(1) is None else F.softmax(x, 1),
        lambda self, x: (y := F.normalize(x, dim=1))[0].add_(1) * y,
    ],
    ids=["last dim", "sample variance", "epsilon outside", "of the batch", "no norm", "written to"],
)
def test_others_stay(norm):
    assert applied([PASS], Net(norm, other=torch.zeros(1)), 1e-5, x=X)[1] == [0]


def bits(x):
    return x.contiguous().view(torch.int16).view(torch.bfloat16)  # of numbers of two bytes alone


def test_what_is_around_a_norm():
    module = Net(lambda self, x: F.silu(into_memory(self, x)))
    traced, counts = applied([PASS], module, 1e-5, x=X)
    assert counts == [1]
    assert calls(traced) == {"fused_norm": 1, "getitem": 1}, "its reduction, which writes, would stay and be read"

    module = Net(lambda self, x: F.silu(F.group_norm(x, 2) * (1 + x.amax((2, 3), keepdim=True))))
    traced, counts = applied([PASS], module, 1e-5, x=X)
    assert (counts, options(traced)[0][4]) == ([1], "none")
    assert calls(traced)["silu"] == 1, "a gain that is computed from the input stays outside"

    module = Net(lambda self, x: F.group_norm(x, 2) + F.group_norm(bits(x), 3) + bits(x - x.mean(1, keepdim=True)))
    traced, counts = applied([PASS], module, 1e-2, x=X.bfloat16())
    assert (counts, calls(traced)["mean"]) == ([2], 1), "a part that takes no float32 stays"


def test_what_stays_says_why(tmp_path):
    net = component(Net(lambda self, x: F.group_norm(F.group_norm(x, 3), 2)), x=X)
    with pytest.raises(SkippedError, match=r"FuseNorms left 2 in place \(the kernel needs triton and a CUDA device\)"):
        shipped_recipe("fused_norm")(net, tmp_path)


def test_values_of_a_region_are_freed_after_their_last_reader():
    """Twenty of a large picture at once would be gigabytes."""

    def chain(x):
        first = x + 1
        for _ in range(20):
            first = first * 2
        return first + x

    traced, x = fx.symbolic_trace(chain), torch.ones(2, 3)
    propagate(traced, {"x": x})
    source, *region, _ = traced.graph.nodes
    graph = Graph(traced)
    assert set(graph.values(region, source, x)) == {region[-1]}
    kept = graph.values(region, source, x, [region[3]])
    assert set(kept) == {region[3], region[-1]}
    torch.testing.assert_close([kept[region[3]], kept[region[-1]]], [(x + 1) * 8, chain(x)])
