import pytest
import torch
from planted import Net, applied, calls, normal
from torch import nn
from torch.nn import functional as F

from profiling.fx_passes.linear import FuseParallelLinears
from profiling.fx_passes.nodes import node_info


def linears(**biases):
    return {name: nn.Linear(8, 8, bias=bias, dtype=torch.float64) for name, bias in biases.items()}


def heads(self, x):
    b, n, _ = x.shape
    q, k, v = (part(x).view(b, n, 2, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 8)


@pytest.mark.parametrize("biases", [(True, True, True), (False, False, False), (True, False, True)])
def test_queries_keys_and_values_are_one_product_of_views(biases):
    module = Net(heads, **linears(**dict(zip("qkv", biases, strict=True))))
    traced, counts = applied([FuseParallelLinears()], module, x=normal(2, 5, 8))
    assert counts == [3]
    assert calls(traced)["linear"] == 1
    (attention,) = traced.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    assert all(node_info(heads_).stride == (5 * 24, 4, 24, 1) for heads_ in attention.args)  # no copy
    (weight,) = (t for name, t in traced.named_buffers() if "weight" in name)
    assert torch.equal(weight, torch.cat((module.q.weight, module.k.weight, module.v.weight)))
    assert dict(traced.named_parameters()) == {}


def test_layers_of_different_widths_far_apart_are_fused():
    def forward(self, x, c):
        for layer in (self.a, self.b, self.c):
            scale = layer(c)
            x = x * scale[..., :4]
        return x

    parts = {name: nn.Linear(8, 4 + i, dtype=torch.float64) for i, name in enumerate("abc")}
    assert applied([FuseParallelLinears()], Net(forward, **parts), x=normal(2, 4), c=normal(2, 8))[1] == [3]


def test_a_view_that_a_part_cannot_give_is_a_copy():
    module = Net(lambda self, x: self.a(x).view(2, 40) + self.b(x).view(2, 40), **linears(a=True, b=True))
    assert applied([FuseParallelLinears()], module, x=normal(2, 5, 8))[1] == [2]


def writes_between(self, x):
    y = x * 1
    first = self.a(y)
    y[..., 0] = 3
    return first + self.b(y)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.b(self.a(x)),
        lambda self, x: self.a(x) + self.b(x.abs()),
        lambda self, x: self.a(x) + F.linear(x, self.b.weight * x.mean()),
        lambda self, x: self.a(x) + F.linear(x, self.b.weight, x[0, 0]),
        writes_between,
    ],
    ids=["in a row", "other inputs", "computed weight", "computed bias", "written between"],
)
def test_other_linears_stay(forward):
    assert applied([FuseParallelLinears()], Net(forward, **linears(a=True, b=True)), x=normal(2, 5, 8))[1] == [0]


def test_dtypes_are_not_mixed():
    def forward(self, x):
        return self.a(x).float() + self.b(x.float()) + F.linear(x, self.c).float()

    parts = {"a": nn.Linear(8, 8).double(), "b": nn.Linear(8, 8), "c": nn.Parameter(normal(8, 8))}
    assert applied([FuseParallelLinears()], Net(forward, **parts), 1e-6, x=normal(2, 8))[1] == [2]
