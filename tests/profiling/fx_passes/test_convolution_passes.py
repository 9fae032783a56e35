"""Passes for convolutions: batch norm folded into one, ReLU and sums fused with one."""

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, calls, normal
from torch import nn
from torch.nn import functional as F

from profiling.fx_passes.convolution import FoldBatchNorm, FuseConvEpilogues


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
