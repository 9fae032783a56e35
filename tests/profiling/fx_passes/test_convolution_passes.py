"""Passes for convolutions: batch norm folded into one, ReLU and sums fused with one."""

import pytest
import torch
from fx_networks import Net, applied, calls, normal
from torch import nn
from torch.nn import functional as F

from profiling.fx_passes.convolution import FoldBatchNorm, FuseConvEpilogues

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
def test_batch_norm_is_folded(conv, norm, options, dims):
    norm = norm_of(norm, 6, affine=dims != 3, eps=0.01)
    parts = {"conv": conv(4, 6, 3, dtype=torch.float64, **options), "norm": norm}
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
def test_other_batch_norms_are_kept(forward):
    module = Net(forward, conv=nn.Conv1d(4, 6, 3).double(), norm=norm_of(nn.BatchNorm1d, 6))
    assert applied([FoldBatchNorm()], module, x=normal(2, 4, 8))[1] == [0]


def test_a_norm_over_another_dim_than_the_channels_is_kept():
    module = Net(
        lambda self, x: self.norm(self.conv(x)), conv=nn.Conv2d(3, 6, 3).double(), norm=norm_of(nn.BatchNorm1d, 6)
    )
    assert applied([FoldBatchNorm()], module, x=normal(3, 8, 8))[1] == [0]  # 6 channels and 6 rows, without a batch


def test_convolution_epilogues_need_cuda():
    module = Net(lambda self, x: self.conv(x).relu(), conv=nn.Conv2d(3, 4, 3).double())
    assert applied([FuseConvEpilogues()], module, x=normal(1, 3, 8, 8))[1] == [0]


def convolutions():
    two = nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float32)
    return {"conv": nn.Conv2d(3, 4, 3, stride=2, bias=False), "two": two}


@pytest.mark.gpu
def test_convolution_sum_and_relu_become_one_call_of_cudnn():
    module = Net(lambda self, x: F.relu(self.two(y := F.relu(self.conv(x))) + y), **convolutions()).cuda()
    traced, counts = applied([FuseConvEpilogues()], module, 1e-2, x=normal(2, 3, 9, 9, dtype=torch.float32).cuda())
    assert counts == [2]
    assert calls(traced) == {"cudnn_convolution_relu": 1, "cudnn_convolution_add_relu": 1}
