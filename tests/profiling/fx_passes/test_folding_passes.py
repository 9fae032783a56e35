"""Passes that fold constants and weight norm, and drop calls that change nothing."""

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, calls, normal
from torch import nn
from torch.nn import functional as F

from profiling.fx_passes.folding import DropNoOps, FoldConstants, FoldWeightNorm
from profiling.fx_passes.tracer import trace


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_both_kinds_of_weight_norm_are_folded():
    for wrap in (nn.utils.parametrizations.weight_norm, nn.utils.weight_norm):
        for conv in (nn.Conv1d(4, 6, 3), nn.ConvTranspose1d(4, 6, 3), nn.Linear(8, 5)):
            module = Net(lambda self, x: self.conv(x), conv=wrap(conv.double()))
            traced, counts = applied([FoldWeightNorm()], module, x=normal(1, 4, 8))
            assert (counts, sum(calls(traced).values())) == ([1], 1), (wrap, conv)
    computed = Net(lambda self, x: torch._weight_norm(x, self.g, 0), g=normal(3, 1))
    assert applied([FoldWeightNorm()], computed, x=normal(3, 4))[1] == [0]


def with_positions(self, x):
    positions = torch.arange(x.shape[1])
    mask = torch.full((3, 3), float("-inf"), dtype=x.dtype).triu_(1)
    return x + self.table(positions) + mask.exp() * self.gain.double()


def test_calls_that_do_not_depend_on_inputs_are_folded_and_a_view_of_a_weight_without_a_copy():
    table = nn.Embedding(3, 3, dtype=torch.float64)
    module = Net(with_positions, table=table, gain=torch.ones((), dtype=torch.float32))
    traced, counts = applied([FoldConstants()], module, x=normal(3, 3))
    assert counts == [7]  # arange, embedding, full, triu, exp, double, mul
    assert calls(traced) == {"add": 2}
    weight = nn.Parameter(normal(3, 4))
    traced, counts = applied([FoldConstants()], Net(lambda self, x: x @ self.weight.t(), weight=weight), x=normal(2, 4))
    assert counts == [1]
    (held,) = traced.buffers()
    assert held.data_ptr() == weight.data_ptr()
    traced, _ = applied([FoldConstants()], Net(lambda self, x: self.weight.t(), weight=weight), x=normal(3))
    assert traced(x=normal(3)).data_ptr() == weight.data_ptr(), "also where it is returned"


@torch.inference_mode()
def test_random_numbers_and_writes_inside_an_operator_are_seen_in_inference_mode():
    def forward(self, x):
        F.batch_norm(x, self.mean, self.var, training=True)
        return F.dropout(self.ones, 0.5, training=True) + self.mean * 2 + torch.rand(100) * (self.ones + 1)

    module = Net(forward, ones=torch.ones(100, dtype=torch.float64), mean=normal(100), var=normal(100).abs())
    traced = FoldConstants()(trace(module, {"x": normal(3, 100)}))
    assert traced.meta["replaced"] == 1, "the sum of ones"
    first, second = traced(x=normal(3, 100)), traced(x=normal(3, 100))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: torch.arange(12.0).view(3, 4) + 0,
        lambda self, x: torch.arange(12, dtype=x.dtype).view_as(x),
        lambda self, x: torch._weight_norm(self.v, self.g, 0),
    ],
    ids=["itself", "a view for an input", "weight norm"],
)
def test_a_caller_may_write_to_a_constant_that_is_returned(forward):
    x = normal(3, 4)
    module = Net(forward, v=normal(3, 4), g=normal(3, 1))
    traced, _ = applied([FoldWeightNorm(), FoldConstants()], module, x=x)
    traced(x=x).fill_(7)
    assert torch.equal(traced(x=x), module(x=x))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x.t().contiguous() + 1,
        lambda self, x: x.float() + 1,
        lambda self, x: x[:2] + x[1:],
        lambda self, x: F.dropout(x, 1.0, training=True),
        lambda self, x: torch._neg_view(x) + 0,
        lambda self, x: (x + 1)[1:].clone().as_strided((2, 2), (4, 1), 0),
        lambda self, x: x[:, :3].to_sparse().t().to_dense(),
    ],
    ids=["layout", "dtype", "offset", "dropout", "negated when read", "strides", "sparse"],
)
def test_calls_with_an_effect_are_kept(forward):
    assert applied([DropNoOps()], Net(forward), x=normal(3, 4))[1] == [0]


def test_outputs_do_not_alias_inputs_constants_or_each_other():
    def forward(self, x):
        y = x + 1
        return x.clone(), self.table.clone().view(2), y.clone(), y.clone()

    table, x = torch.ones(1, 2), normal(3, 4)
    traced, counts = applied([DropNoOps()], Net(forward, table=table), x=x)
    assert counts == [0]
    memory = [t.data_ptr() for t in (*traced(x=x), x, table)]
    assert len(set(memory)) == len(memory)


def written_part(self, x):
    total = torch.zeros(3, dtype=x.dtype)
    total[1:] += x[1:]
    return total


def counts_calls(self, x):
    self.calls.add_(1)
    return x * self.calls.clamp(max=1)


def writes_the_original(self, x):
    y = x + 1
    kept = y.clone()
    y[0] = 5
    return y + kept


def writes_the_copy(self, x):
    y = x + 1
    written = y.clone()
    written[0] = 5
    return y + written


@pytest.mark.parametrize("forward", [written_part, counts_calls, writes_the_original, writes_the_copy])
def test_memory_that_is_written_to_is_kept(forward):
    module, x = Net(forward, calls=torch.zeros((), dtype=torch.float64)), normal(3)
    traced, counts = applied([FoldConstants(), DropNoOps()], module, x=x)
    assert counts == [0, 0]
    for _ in range(2):
        assert torch.equal(traced(x=x), module(x=x))


def test_no_ops_are_dropped():
    def idle(self, x):
        y = F.dropout((x * 2).contiguous().view(3, 4).reshape(3, 4), 0.5, self.training)
        return y.to(torch.float64).clone().expand(3, 4).detach()[:].transpose(0, 0) + 1

    traced, counts = applied([DropNoOps()], Net(idle), x=normal(3, 4))
    assert counts == [10]
    assert calls(traced) == {"mul": 1, "add": 1}
