import pytest
import torch
from planted import Net, applied, calls, normal
from torch import nn
from torch.nn import functional as F

from profiling.fx_passes.convolution import FoldBatchNorm
from profiling.fx_passes.folding import FoldConstants, FoldWeightNorm
from profiling.fx_passes.tracer import trace


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.parametrize("conv", [nn.Conv1d(4, 6, 3), nn.ConvTranspose1d(4, 6, 3), nn.Linear(8, 5)])
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_weight_norm_of_both_kinds_is_folded(wrap, conv):
    conv = type(conv)(*((8, 5) if isinstance(conv, nn.Linear) else (4, 6, 3)), dtype=torch.float64)
    traced, counts = applied([FoldWeightNorm()], Net(lambda self, x: self.conv(x), conv=wrap(conv)), x=normal(1, 4, 8))
    assert counts == [1]
    assert sum(calls(traced).values()) == 1


def test_a_weight_norm_of_something_computed_stays():
    module = Net(lambda self, x: torch._weight_norm(x, self.g, 0), g=normal(3, 1))
    assert applied([FoldWeightNorm()], module, x=normal(3, 4))[1] == [0]


def with_positions(self, x):
    positions = torch.arange(x.shape[1])
    mask = torch.full((3, 3), float("-inf"), dtype=x.dtype).triu_(1)
    return x + self.table(positions) + mask.exp() * self.gain.double()


def test_what_no_input_reaches_is_folded():
    table = nn.Embedding(3, 3, dtype=torch.float64)
    module = Net(with_positions, table=table, gain=torch.ones((), dtype=torch.float32))
    traced, counts = applied([FoldConstants()], module, x=normal(3, 3))
    assert counts == [7]  # arange, embedding, full, triu, exp, double, mul
    assert calls(traced) == {"add": 2}


def test_a_view_of_a_weight_is_folded_without_a_copy():
    weight = nn.Parameter(normal(3, 4))
    traced, counts = applied([FoldConstants()], Net(lambda self, x: x @ self.weight.t(), weight=weight), x=normal(2, 4))
    assert counts == [1]
    (held,) = traced.buffers()
    assert held.data_ptr() == weight.data_ptr()


def test_random_numbers_are_drawn_at_each_call():
    module = Net(lambda self, x: x + torch.rand(1000, dtype=x.dtype) * (self.one + 1), one=torch.ones(()))
    x = normal(1000)
    torch.manual_seed(0)
    expected = module(x=x)
    traced = trace(module, {"x": x})
    state = torch.get_rng_state()
    traced = FoldConstants()(traced)
    assert torch.equal(torch.get_rng_state(), state)
    assert traced.meta["replaced"] == 1  # the sum
    torch.manual_seed(0)
    assert torch.equal(traced(x=x), expected)
    assert not torch.equal(traced(x=x), expected)


def accumulates(self, x):
    total = torch.zeros(3, dtype=x.dtype)
    total[1:] += x[1:]
    return total


def counts_calls(self, x):
    self.calls.add_(1)
    return x * self.calls.clamp(max=1)


@pytest.mark.parametrize(
    "module", [Net(accumulates), Net(counts_calls, calls=torch.zeros((), dtype=torch.float64))], ids=["zeros", "state"]
)
def test_memory_that_is_written_to_is_made_anew(module):
    x = normal(3)
    traced, counts = applied([FoldConstants()], module, x=x)
    assert counts == [0]
    assert torch.equal(traced(x=x), module(x=x))
    assert torch.equal(traced(x=x), module(x=x))


CONVOLUTIONS = [
    (nn.Conv1d, nn.BatchNorm1d, {}, 1),
    (nn.Conv2d, nn.BatchNorm2d, {"groups": 2, "bias": False}, 2),
    (nn.Conv3d, nn.BatchNorm3d, {"padding": "same"}, 3),
    (nn.ConvTranspose1d, nn.BatchNorm1d, {"stride": 2}, 1),
    (nn.ConvTranspose2d, nn.BatchNorm2d, {"groups": 2}, 2),
]


def norm_of(kind, channels, **options):
    norm = kind(channels, dtype=torch.float64, **options)
    with torch.no_grad():
        for seed, tensor in enumerate((norm.running_mean, norm.weight, norm.bias)):
            if tensor is not None:
                tensor.copy_(normal(channels, seed=seed))
        if norm.running_var is not None:
            norm.running_var.copy_(normal(channels, seed=9).square() + 0.1)
    return norm


@pytest.mark.parametrize(("conv", "norm", "options", "dims"), CONVOLUTIONS)
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_folded(conv, norm, options, dims, affine):
    parts = {"conv": conv(4, 6, 3, dtype=torch.float64, **options), "norm": norm_of(norm, 6, affine=affine, eps=0.01)}
    kept = parts["conv"].weight.clone()
    module = Net(lambda self, x: self.norm(self.conv(x)).relu(), **parts)
    traced, counts = applied([FoldBatchNorm()], module, x=normal(2, 4, *[6] * dims))
    assert counts == [1]
    assert calls(traced)["batch_norm"] == 0
    assert torch.equal(parts["conv"].weight, kept)


def test_a_shared_weight_is_scaled_for_each_norm():
    parts = {"conv": nn.Conv1d(4, 6, 3).double(), "one": norm_of(nn.BatchNorm1d, 6), "two": norm_of(nn.BatchNorm1d, 6)}
    parts["two"].running_mean.add_(1)
    module = Net(lambda self, x: self.one(self.conv(x)) + self.two(self.conv(x)), **parts)
    assert applied([FoldBatchNorm()], module, x=normal(2, 4, 8))[1] == [2]


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.norm(self.conv(x).relu()),
        lambda self, x: self.norm(y := self.conv(x)) + y,
        lambda self, x: self.norm(F.conv1d(x, self.conv.weight * x.mean())),
        lambda self, x: F.batch_norm(self.conv(x), None, None, training=True),
    ],
    ids=["between", "read twice", "computed weight", "training"],
)
def test_other_batch_norms_stay(forward):
    module = Net(forward, conv=nn.Conv1d(4, 6, 3).double(), norm=norm_of(nn.BatchNorm1d, 6))
    assert applied([FoldBatchNorm()], module, x=normal(2, 4, 8))[1] == [0]
