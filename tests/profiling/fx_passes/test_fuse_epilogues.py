import pytest
import torch
from planted import Net, applied, calls, normal
from torch import nn
from torch.nn import functional as F

from profiling.fx_passes import linear as fuse_linear_epilogues
from profiling.fx_passes.convolution import FuseConvEpilogues
from profiling.fx_passes.linear import FuseLinearEpilogues, FuseQuickGelu


def mlp(forward, bias=True):
    return Net(forward, up=nn.Linear(8, 16, bias=bias).double(), down=nn.Linear(16, 8, bias=bias).double())


def quick(self, x):
    h = self.up(x)
    return self.down(h * torch.sigmoid(1.702 * h))


def quick_otherwise(self, x):
    h = self.up(x)
    return self.down(torch.sigmoid(h * 3.404 / 2).mul(h))


@pytest.mark.parametrize("forward", [quick, quick_otherwise])
@pytest.mark.parametrize("bias", [True, False])
def test_quick_gelu_between_linears_is_silu(forward, bias):
    module = mlp(forward, bias)
    traced, counts = applied([FuseQuickGelu()], module, x=normal(2, 5, 8))
    assert counts == [1]
    assert calls(traced) == {"addmm": 2, "silu": 1, "reshape": 4}
    shared = {t.data_ptr() for t in (module.up.weight, module.down.weight)}
    assert shared <= {t.data_ptr() for t in traced.buffers()}


def test_sigmoid_of_itself_is_silu_anywhere():
    traced, counts = applied([FuseQuickGelu()], Net(lambda self, x: (x + 1) * (x + 1).sigmoid()), x=normal(3))
    assert counts == [0]  # two nodes, though of one value
    traced, counts = applied([FuseQuickGelu()], Net(lambda self, x: x * x.sigmoid() + 1), x=normal(3))
    assert (counts, calls(traced)) == ([1], {"silu": 1, "add": 1})


def reads_the_middle(self, x):
    h = self.up(x)
    return self.down(h * torch.sigmoid(1.702 * h)) + h.mean()


def reads_the_end(self, x):
    h = self.up(x)
    h = h * torch.sigmoid(1.702 * h)
    return self.down(h) + h.mean()


def gates_another(self, x):
    h = self.up(x)
    return self.down(h * torch.sigmoid(1.702 * h.flip(0)))


def no_linear_after(self, x):
    h = self.up(x)
    return h * torch.sigmoid(1.702 * h)


def keeps_the_gate(self, x):
    h = self.up(x)
    gate = torch.sigmoid(1.702 * h)
    return self.down(h * gate) + gate.mean()


@pytest.mark.parametrize(
    "forward",
    [reads_the_middle, reads_the_end, gates_another, no_linear_after, keeps_the_gate],
    ids=lambda f: f.__name__,
)
def test_other_gates_stay(forward):
    assert applied([FuseQuickGelu()], mlp(forward), x=normal(2, 5, 8))[1] == [0]


def relu(self, x):
    return self.down(F.relu(self.up(x)))


def test_epilogues_are_for_cuda():
    assert applied([FuseLinearEpilogues()], mlp(relu), x=normal(2, 8))[1] == [0]
    conv = Net(lambda self, x: self.conv(x).relu(), conv=nn.Conv2d(3, 4, 3).double())
    assert applied([FuseConvEpilogues()], conv, x=normal(1, 3, 8, 8))[1] == [0]


def test_linear_and_relu_are_one_call(monkeypatch):
    monkeypatch.setattr(fuse_linear_epilogues, "DEVICES", ("cpu",))
    traced, counts = applied([FuseLinearEpilogues()], mlp(relu), x=normal(2, 5, 8))
    assert (counts, calls(traced)["_addmm_activation"], calls(traced)["relu"]) == ([1], 1, 0)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: F.gelu(self.up(x)),
        lambda self, x: F.relu(h := self.up(x)) + h,
        lambda self, x: F.leaky_relu(self.up(x)),
        lambda self, x: F.relu(F.linear(x, self.up.weight)),
    ],
    ids=["exact gelu", "read twice", "another activation", "no bias"],
)
def test_other_epilogues_stay(forward, monkeypatch):
    monkeypatch.setattr(fuse_linear_epilogues, "DEVICES", ("cpu",))
    assert applied([FuseLinearEpilogues()], mlp(forward), x=normal(2, 8))[1] == [0]


def convolutions():
    two = nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float32)
    return {"conv": nn.Conv2d(3, 4, 3, stride=2, bias=False), "two": two}


@pytest.mark.gpu
def test_convolution_sum_and_relu_are_one_call_of_cudnn():
    module = Net(lambda self, x: F.relu(self.two(y := F.relu(self.conv(x))) + y), **convolutions()).cuda()
    traced, counts = applied([FuseConvEpilogues()], module, 1e-2, x=normal(2, 3, 9, 9, dtype=torch.float32).cuda())
    assert counts == [2]
    assert calls(traced) == {"cudnn_convolution_relu": 1, "cudnn_convolution_add_relu": 1}


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [F.relu, lambda x: F.gelu(x, approximate="tanh")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_linear_epilogues_are_those_of_the_library(activation, dtype):
    module = mlp(lambda self, x: self.down(activation(self.up(x)))).to("cuda", dtype)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-3
    traced, counts = applied([FuseLinearEpilogues()], module, tolerance, x=normal(2, 5, 8, dtype=dtype).cuda())
    assert (counts, calls(traced)["_addmm_activation"]) == ([1], 1)
