"""Passes for convolutions: batch norm folded into one, ReLU and sums fused with one, few outputs."""

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, assert_as_exact_in_bfloat16, calls, f32, normal
from torch import nn
from torch.nn import functional as F

from profiling.fx_passes.convolution import FoldBatchNorm, FuseConvEpilogues, SplitTaps


def norm_of(kind, channels, **options):
    norm = kind(channels, dtype=torch.float64, **options)
    for seed, tensor in enumerate((norm.running_mean, norm.running_var, norm.weight, norm.bias)):
        if tensor is not None:
            tensor.data.copy_(normal(channels, seed=seed).square() + 0.1)
    return norm


@pytest.mark.parametrize(
    ("conv", "norm", "options"),
    [
        (nn.Conv2d, nn.BatchNorm2d, {"groups": 2, "bias": False}),
        (nn.Conv3d, nn.BatchNorm3d, {"padding": "same"}),
        (nn.ConvTranspose1d, nn.BatchNorm1d, {"stride": 2}),
        (nn.ConvTranspose2d, nn.BatchNorm2d, {"groups": 2}),
    ],
)
def test_batch_norm_is_folded(conv, norm, options):
    dims = int(norm.__name__[-2])
    parts = {
        "conv": conv(4, 6, 3, dtype=torch.float64, **options),
        "norm": norm_of(norm, 6, affine=dims != 3, eps=0.01),
    }
    kept = parts["conv"].weight.clone()
    module = Net(lambda self, x: self.norm(self.conv(x)).relu(), **parts)
    traced, counts = applied([FoldBatchNorm()], module, x=normal(2, 4, *[6] * dims))
    assert (counts, calls(traced)["batch_norm"]) == ([1], 0)
    assert torch.equal(parts["conv"].weight, kept)


def test_a_shared_weight_is_scaled_for_each_norm():
    parts = {"conv": nn.Conv1d(4, 6, 3).double(), "one": norm_of(nn.BatchNorm1d, 6), "two": norm_of(nn.BatchNorm1d, 6)}
    parts["two"].running_mean.add_(1)
    module = Net(lambda self, x: self.one(self.conv(x)) + self.two(self.conv(x)), **parts)
    assert applied([FoldBatchNorm()], module, x=normal(2, 4, 8))[1] == [2]


@pytest.mark.parametrize(
    ("forward", "conv", "shape"),
    [
        (lambda self, x: self.norm(self.conv(x).relu()), nn.Conv1d(4, 6, 3), (2, 4, 8)),
        (lambda self, x: self.norm(y := self.conv(x)) + y, nn.Conv1d(4, 6, 3), (2, 4, 8)),
        (lambda self, x: self.norm(F.conv1d(x, self.conv.weight * x.mean())), nn.Conv1d(4, 6, 3), (2, 4, 8)),
        (lambda self, x: F.batch_norm(self.conv(x), None, None, training=True), nn.Conv1d(4, 6, 3), (2, 4, 8)),
        # 6 channels and 6 rows, without a batch: the norm is over another dim
        (lambda self, x: self.norm(self.conv(x)), nn.Conv2d(3, 6, 3), (3, 8, 8)),
    ],
    ids=["between", "read twice", "computed weight", "training", "another dim"],
)
def test_other_batch_norms_are_kept(forward, conv, shape):
    module = Net(forward, conv=conv.double(), norm=norm_of(nn.BatchNorm1d, 6))
    assert applied([FoldBatchNorm()], module, x=normal(*shape))[1] == [0]


def with_epilogues():
    parts = {"conv": nn.Conv2d(3, 4, 3, stride=2, bias=False), "two": nn.Conv2d(4, 4, 3, padding=1)}
    return Net(lambda self, x: F.relu(self.two(y := F.relu(self.conv(x))) + y), **parts)


def test_convolution_epilogues_need_cuda():
    x = normal(2, 3, 9, 9, dtype=torch.float32)
    assert applied([FuseConvEpilogues()], with_epilogues(), 1e-6, x=x)[1] == [0]


@pytest.mark.gpu
def test_convolution_sum_and_relu_become_one_call_of_cudnn():
    x = normal(2, 3, 9, 9, dtype=torch.float32).cuda()
    traced, counts = applied([FuseConvEpilogues()], with_epilogues().cuda(), 1e-2, x=x)
    assert counts == [2]
    assert calls(traced) == {"cudnn_convolution_relu": 1, "cudnn_convolution_add_relu": 1}


LAST = torch.channels_last
#: Convolutions of few outputs, the shape of the input, and its memory format.
FEW = {
    "picture": (lambda: nn.Conv2d(128, 3, 3, padding=1), (2, 128, 6, 5), LAST),
    "dilated": (lambda: nn.Conv2d(128, 3, 3, padding=(0, 2), dilation=(1, 2), bias=False), (1, 128, 6, 7), LAST),
    "same": (lambda: nn.Conv2d(128, 2, (2, 4), padding="same"), (1, 128, 6, 5), LAST),
    "sequence": (lambda: nn.Conv1d(64, 2, 7, padding=3), (2, 64, 9), torch.contiguous_format),
    "video": (lambda: nn.Conv3d(96, 3, 3, padding=(0, 1, 1)), (2, 96, 4, 5, 6), torch.contiguous_format),
    "video, last": (lambda: nn.Conv3d(96, 3, 3), (1, 96, 4, 5, 6), torch.channels_last_3d),
}


@pytest.mark.parametrize("name", FEW)
def test_few_outputs_are_sums_of_a_pointwise_convolution(name):
    build, shape, order = FEW[name]
    x = normal(*shape).contiguous(memory_format=order)
    module = Net(lambda self, x: self.conv(x).tanh(), conv=build().double())
    traced, counts = applied([SplitTaps()], module, x=x)
    found = calls(traced)
    assert (counts, found["conv1d"] + found["conv2d"] + found["matmul"], found["conv3d"]) == ([1], 1, 0)
    assert traced(x=x).stride() == module(x=x).stride()


@pytest.mark.parametrize(
    "conv",
    [nn.Conv2d(128, 15, 3), nn.Conv2d(128, 3, 3, stride=2), nn.Conv2d(128, 4, 3, groups=2), nn.Conv2d(128, 3, 1)],
    ids=["many", "stride", "groups", "pointwise"],
)
def test_convolutions_that_are_not_split(conv):
    module = Net(lambda self, x: self.conv(x), conv=conv)
    assert applied([SplitTaps()], module, 1e-6, x=f32(1, 128, 6, 5))[1] == [0]


def test_half_precision_is_summed_in_float32():
    module = Net(lambda self, x: self.conv(x), conv=nn.Conv2d(128, 3, 3))
    assert_as_exact_in_bfloat16(SplitTaps(), module, f32(1, 128, 6, 5))
