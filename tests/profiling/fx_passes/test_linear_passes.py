"""Passes for linear layers: parallel layers, fused activations, QuickGELU."""

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, calls, normal
from torch import nn
from torch.nn import functional as F

from models.kernels import skinny_linear
from profiling.fx_passes import linear
from profiling.fx_passes.folding import FoldConstants
from profiling.fx_passes.linear import FuseLinearEpilogues, FuseParallelLinears, FuseQuickGelu, ReplaceFewRows
from profiling.fx_passes.nodes import node_info


def linears(**biases):
    return {name: nn.Linear(8, 8, bias=bias, dtype=torch.float64) for name, bias in biases.items()}


def heads(self, x):
    b, n, _ = x.shape
    q, k, v = (part(x).view(b, n, 2, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 8)


@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True)])
def test_queries_keys_and_values_become_one_product_and_views(biases):
    module = Net(heads, **linears(**dict(zip("qkv", biases, strict=True))))
    traced, counts = applied([FuseParallelLinears()], module, x=normal(2, 5, 8))
    assert (counts, calls(traced)["linear"]) == ([3], 1)
    (attention,) = traced.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    assert all(node_info(heads_).stride == (5 * 24, 4, 24, 1) for heads_ in attention.args)  # no copy
    (weight,) = (t for name, t in traced.named_buffers() if "weight" in name)
    assert torch.equal(weight, torch.cat((module.q.weight, module.k.weight, module.v.weight)))
    assert dict(traced.named_parameters()) == {}


def test_which_layers_are_parallel():
    def far_apart(self, x, c):
        for layer in (self.a, self.b, self.c):
            x = x * layer(c)[..., :4]
        return x

    parts = {name: nn.Linear(8, 4 + i, dtype=torch.float64) for i, name in enumerate("abc")}
    assert applied([FuseParallelLinears()], Net(far_apart, **parts), x=normal(2, 4), c=normal(2, 8))[1] == [3]
    copied = Net(lambda self, x: self.a(x).view(2, 40) + self.b(x).view(2, 40), **linears(a=True, b=True))
    assert applied([FuseParallelLinears()], copied, x=normal(2, 5, 8))[1] == [2], "a part that cannot be viewed"

    def two_dtypes(self, x):
        return self.a(x).float() + self.b(x.float()) + F.linear(x, self.c).float()

    parts = {"a": nn.Linear(8, 8).double(), "b": nn.Linear(8, 8), "c": nn.Parameter(normal(8, 8))}
    assert applied([FuseParallelLinears()], Net(two_dtypes, **parts), 1e-6, x=normal(2, 8))[1] == [2]


def test_layers_of_few_rows_run_in_their_kernel_after_those_of_one_input_were_merged(monkeypatch):
    def modulated(self, x, c):
        scale, gate = self.scale(c), self.gate(c)
        return self.odd(self.many(x.expand(65, 64)).mean(0) * scale) + gate[:, :3]

    outputs = {"scale": 64, "gate": 64, "many": 64, "odd": 3}
    module = Net(modulated, **{name: nn.Linear(64, n, dtype=torch.bfloat16) for name, n in outputs.items()})
    monkeypatch.setattr(skinny_linear, "HAS_TRITON", True)

    def misfit(form, _device, *others):
        return skinny_linear.misfit(form, torch.device("cuda"), *others)

    passes = [FuseParallelLinears(), ReplaceFewRows(linear=skinny_linear.few_rows_linear, misfit=misfit)]
    x, c = normal(1, 64).bfloat16(), normal(2, 64).bfloat16()
    traced, counts = applied(passes, module, 1e-2, x=x, c=c)
    assert counts == [2, 1]
    assert calls(traced)["few_rows_linear"] == 1
    assert traced.meta["left"] == {
        "65 rows, and the kernel takes 64 at most": 1,
        "inputs and outputs must be multiples of 64": 1,
    }


def writes_between(self, x):
    y = x * 1
    first = self.a(y)
    y[..., 0] = 3
    return first + self.b(y)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.a(x) + self.b(x.abs()),
        lambda self, x: self.a(x) + F.linear(x, self.b.weight * x.mean()),
        lambda self, x: self.a(x) + F.linear(x, self.b.weight, x[0, 0]),
        lambda self, x: self.a(x) + F.linear(x, self.b.weight, self.b.bias[:1]),
        writes_between,
    ],
    ids=["other inputs", "computed weight", "computed bias", "one number as bias", "written between"],
)
def test_other_linear_layers_are_kept(forward):
    module = Net(forward, **linears(a=True, b=True))
    assert applied([FoldConstants(), FuseParallelLinears()], module, x=normal(2, 5, 8))[1][1] == 0


def mlp(forward, bias=True):
    return Net(forward, up=nn.Linear(8, 16, bias=bias).double(), down=nn.Linear(16, 8, bias=bias).double())


@pytest.mark.parametrize(
    ("gated", "bias"),
    [(lambda h: h * torch.sigmoid(1.702 * h), True), (lambda h: torch.sigmoid(h * 3.404 / 2).mul(h), False)],
)
def test_quick_gelu_between_linear_layers_becomes_silu(gated, bias):
    module = mlp(lambda self, x: self.down(gated(self.up(x))), bias)
    traced, counts = applied([FuseQuickGelu()], module, x=normal(2, 5, 8))
    assert (counts, calls(traced)) == ([1], {"addmm": 2, "silu": 1, "reshape": 4})
    shared = {t.data_ptr() for t in (module.up.weight, module.down.weight)}
    assert shared <= {t.data_ptr() for t in traced.buffers()}


def test_x_times_its_sigmoid_becomes_silu():
    traced, counts = applied([FuseQuickGelu()], Net(lambda self, x: x * x.sigmoid() + 1), x=normal(3))
    assert (counts, calls(traced)) == ([1], {"silu": 1, "add": 1})
    others = {
        "two nodes, though of one value": (lambda self, x: (x + 1) * (x + 1).sigmoid(), normal(3)),
        "a step": (lambda self, x: x * torch.sigmoid(x / 0), normal(3)),
        "integers": (lambda self, x: x * torch.sigmoid(x) + x * torch.sigmoid(x * 1.0), torch.arange(4)),
    }
    for why, (forward, x) in others.items():
        assert applied([FuseQuickGelu()], Net(forward), x=x)[1] == [0], why
    small = mlp(lambda self, x: self.down((h := self.up(x)) * torch.sigmoid(1e-6 * h))).half()
    counts = applied([FuseQuickGelu()], small, 1e-3, x=normal(2, 8, dtype=torch.float16))[1]
    assert counts == [0], "a factor that leaves the range of half precision stays out of the layers"


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.down((h := self.up(x)) * torch.sigmoid(1.702 * h)) + h.mean(),
        lambda self, x: self.down(g := (h := self.up(x)) * torch.sigmoid(1.702 * h)) + g.mean(),
        lambda self, x: self.down((h := self.up(x)) * torch.sigmoid(1.702 * h.flip(0))),
        lambda self, x: (h := self.up(x)) * torch.sigmoid(1.702 * h),
        lambda self, x: self.down((h := self.up(x)) * (gate := torch.sigmoid(1.702 * h))) + gate.mean(),
    ],
    ids=["middle read", "end read", "gates another", "no linear after", "gate read"],
)
def test_other_gates_are_kept(forward):
    assert applied([FuseQuickGelu()], mlp(forward), x=normal(2, 5, 8))[1] == [0]


def test_linear_and_relu_become_one_call_on_cuda(monkeypatch):
    module = mlp(lambda self, x: self.down(F.relu(self.up(x))))
    assert applied([FuseLinearEpilogues()], module, x=normal(2, 8))[1] == [0]
    monkeypatch.setattr(linear, "DEVICES", ("cpu",))
    traced, counts = applied([FuseLinearEpilogues()], module, x=normal(2, 5, 8))
    assert (counts, calls(traced)["_addmm_activation"], calls(traced)["relu"]) == ([1], 1, 0)
    for kept in (
        lambda self, x: F.gelu(self.up(x)),  # the exact one
        lambda self, x: F.relu(h := self.up(x)) + h,
        lambda self, x: F.leaky_relu(self.up(x)),
        lambda self, x: F.relu(F.linear(x, self.up.weight)),  # without a bias
    ):
        assert applied([FuseLinearEpilogues()], mlp(kept), x=normal(2, 8))[1] == [0]
    with torch.autocast("cpu", torch.bfloat16):
        assert applied([FuseLinearEpilogues()], module.float(), 0, x=normal(2, 8, dtype=torch.float32))[1] == [0]


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [F.relu, lambda x: F.gelu(x, approximate="tanh")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_linear_epilogues_match_the_library(activation, dtype):
    module = mlp(lambda self, x: self.down(activation(self.up(x)))).to("cuda", dtype)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-3
    traced, counts = applied([FuseLinearEpilogues()], module, tolerance, x=normal(2, 5, 8, dtype=dtype).cuda())
    assert (counts, calls(traced)["_addmm_activation"]) == ([1], 1)
