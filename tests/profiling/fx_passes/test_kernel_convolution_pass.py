"""Convolutions that a kernel replaces, with what is around them."""

from collections import Counter

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, calls, f32
from torch import nn
from torch.nn import functional as F

from models.kernels.convolution import convolution, pack
from models.kernels.convolution_kinds import adds_shortcut, shares_norms
from models.kernels.fused_norm import fused_norm, norm_table, scaled_weight
from profiling.fx_passes.kernel_convolution import ReplaceConvolutions
from profiling.fx_passes.norm import FuseNorms

KERNELS = {"norm": fused_norm, "table": norm_table, "scaled_weight": scaled_weight}
KERNELS |= {kernel.__name__: kernel for kernel in (convolution, pack, shares_norms, adds_shortcut)}
GROUPED, POINTWISE = (ReplaceConvolutions(grouped=each, misfit=lambda *_: None, **KERNELS) for each in (True, False))
LAST = torch.channels_last
NEEDS_LAST = ReplaceConvolutions(grouped=False, misfit=lambda form, *_: kernel_misfit(form), **KERNELS)
NORMS = FuseNorms(norm=fused_norm, misfit=lambda *_: None)


def calls_of(traced):
    """Count a graph's calls, without the `getitem` that takes a convolution's result out of the list it returns."""
    return calls(traced) - Counter(getitem=calls(traced)["convolution"])


CONVOLUTIONS = {
    "two dims": (nn.Conv2d(6, 12, (3, 5), stride=(2, 1), padding=(1, 2), groups=3), (2, 6, 8, 9)),
    "same": (nn.Conv2d(6, 6, (3, 4), padding="same", dilation=(1, 2), groups=2, bias=False), (2, 6, 8, 9)),
    "depthwise": (nn.Conv1d(6, 6, 7, padding=9, dilation=3, groups=6), (1, 6, 40)),
    "causal": (nn.Sequential(nn.ZeroPad1d((12, 0)), nn.Conv1d(6, 12, 7, padding=1, dilation=2, groups=2)), (1, 6, 30)),
    "asymmetric": (nn.Sequential(nn.ZeroPad2d((1, 2, 3, 0)), nn.Conv2d(6, 6, 3, stride=2, groups=2)), (1, 6, 9, 10)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 6, 3, groups=3)), (1, 6, 12)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_grouped_convolutions(name):
    conv, shape = CONVOLUTIONS[name]
    traced, counts = applied([GROUPED, POINTWISE], Net(lambda self, x: self.conv(x), conv=conv), 1e-5, x=f32(*shape))
    assert counts == [1, 0]
    assert calls_of(traced) == {"convolution": 1}, "zeros before it and the weight's norm are part of it"


@pytest.mark.parametrize(
    "pad",
    [
        lambda x: F.pad(x, (1, 1), mode="circular"),
        lambda x: F.pad(x, (1, 1), value=2.0),
        lambda x: F.pad(x, (2, -1)),
        lambda x: F.pad(x, (1, 0, 0, 0, 1, 0))[1:],
    ],
    ids=["circular", "of ones", "crops", "of the batch"],
)
def test_padding_that_is_no_zeros_of_the_convolution_stays(pad):
    module = Net(lambda self, x: self.conv(pad(x)), conv=nn.Conv1d(6, 6, 3, groups=2))
    traced, counts = applied([GROUPED], module, 1e-5, x=f32(1, 6, 8))
    assert (counts, calls_of(traced)["pad"]) == ([1], 1)


EPILOGUES = {
    "residual": (lambda self, x: x + self.conv(x), {"convolution": 1}),
    "activation": (lambda self, x: F.silu(self.conv(x)), {"convolution": 1}),
    "both": (lambda self, x: (self.conv(x) + x).relu(), {"convolution": 1}),
    "activation first": (lambda self, x: x + F.silu(self.conv(x)), {"convolution": 1, "add": 1}),
    "read twice": (lambda self, x: (y := self.conv(x)) + y.flip(-1), {"convolution": 1, "flip": 1, "add": 1}),
    "with itself": (lambda self, x: (y := self.conv(x)) + y, {"convolution": 1, "add": 1}),
    "broadcast": (lambda self, x: self.conv(x) + x[..., :1], {"convolution": 1, "add": 1, "getitem": 1}),
    "in a row": (lambda self, x: x + self.conv(F.gelu(self.conv(x))), {"convolution": 2}),
    "crossed": (lambda self, x: self.conv(x) + self.conv(x * 2), {"convolution": 2, "mul": 1}),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_is_part_of_the_kernel(name):
    forward, expected = EPILOGUES[name]
    for a_pass, conv in ((GROUPED, nn.Conv2d(8, 8, 3, padding=1, groups=2)), (POINTWISE, nn.Conv2d(8, 8, 1))):
        traced, counts = applied([a_pass], Net(forward, conv=conv), 1e-5, x=f32(2, 8, 5, 6))
        assert counts == [expected["convolution"]]
        assert calls_of(traced) == expected


def shuffle(x):
    return F.pixel_shuffle(x, 2)


def parts(y):
    return y.unflatten(1, (-1, 16))


SHORTCUTS = {
    "repeated": lambda y, x: (parts(y) + shuffle(x).unsqueeze(1)).flatten(1, 2),
    "other order": lambda y, x: (shuffle(x).unsqueeze(1) + parts(y)).flatten(1, 2),
    "by sizes": lambda y, x: (y.view(2, 2, 16, 6, 10) + shuffle(x).view(2, 1, 16, 6, 10)).view(2, 32, 6, 10),
    "activated": lambda y, x: F.silu((parts(y) + nn.PixelShuffle(2)(x).unsqueeze(1)).flatten(1, 2)),
    "and a residual": lambda y, x: (parts(y + up(x)[:, :32]) + shuffle(x).unsqueeze(1)).flatten(1, 2),
    "before a residual": lambda y, x: (parts(y) + shuffle(x).unsqueeze(1)).flatten(1, 2) + up(x)[:, :32],
    "not repeated": lambda y, x: y + shuffle(torch.cat([x, x], 1)),
    "not shuffled": lambda y, x: (parts(y) + up(x)[:, 16:32].unsqueeze(1)).flatten(1, 2),
    "two residuals": lambda y, x: up(x)[:, 32:] + (up(x)[:, :32] + y),
}
SHORTCUTS_THAT_STAY = {
    "sum read twice": lambda y, x: ((z := parts(y) + shuffle(x).unsqueeze(1)).flatten(1, 2), z.sum(1)),
    "parts read twice": lambda y, x: (((z := parts(y)) + shuffle(x).unsqueeze(1)).flatten(1, 2), z.sum(1)),
    "convolution read twice": lambda y, x: ((parts(y) + shuffle(x).unsqueeze(1)).flatten(1, 2), y.sum(1)),
    "neighbours": lambda y, x: (y.unflatten(1, (16, -1)) + shuffle(x).unsqueeze(2)).flatten(1, 2),
    "by position": lambda y, x: (parts(y) + shuffle(x).unsqueeze(1)).flatten(2, 3),
    "few channels": lambda y, x: (y.unflatten(1, (-1, 8)) + shuffle(x[:, :32]).unsqueeze(1)).flatten(1, 2),
    "another dtype": lambda y, x: (parts(y) + shuffle(x).double().unsqueeze(1)).flatten(1, 2),
    "written": lambda y, x: ((parts(y) + shuffle(z := x.clone()).unsqueeze(1)).flatten(1, 2), z[:, :1].zero_(), z),
}


def up(x):
    return F.interpolate(x, scale_factor=2)


def with_shortcut(of):
    module = Net(lambda self, x: of(self.conv(up(x)), x), conv=nn.Conv2d(64, 32, 1))
    return applied([POINTWISE], module, 1e-5, x=f32(2, 64, 3, 5).to(memory_format=LAST))


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_pixel_shuffle_that_is_added_is_part_of_the_kernel(name):
    traced, counts = with_shortcut(SHORTCUTS[name])
    found = calls_of(traced)
    assert (counts, found["add"], found["pixel_shuffle"], found["silu"]) == ([1], 0, 0, 0)
    (node,) = traced.graph.find_nodes(op="call_function", target=convolution)
    assert node.kwargs["shortcut"] is not None


@pytest.mark.parametrize("name", SHORTCUTS_THAT_STAY)
def test_sums_with_a_pixel_shuffle_that_stay(name):
    traced, counts = with_shortcut(SHORTCUTS_THAT_STAY[name])
    assert (counts, calls(traced)["add"], calls(traced)["pixel_shuffle"]) == ([1], 1, 1)


def test_a_shortcut_is_part_of_the_statistics():
    def forward(self, x):
        return self.last(F.silu(self.norm((parts(self.conv(up(x))) + shuffle(x).unsqueeze(1)).flatten(1, 2))))

    convs = {"conv": nn.Conv2d(64, 32, 1), "last": nn.Conv2d(32, 8, 1)}
    module = Net(forward, norm=nn.GroupNorm(2, 32), **convs)
    traced, counts = applied([NORMS, POINTWISE], module, 1e-5, x=f32(2, 64, 3, 5).to(memory_format=LAST))
    node, _ = traced.graph.find_nodes(op="call_function", target=convolution)
    assert (counts, node.kwargs.keys()) == ([1, 2], {"shortcut", "statistics"})


def test_a_sequence_that_is_a_picture_of_one_row():
    def one_row(self, x):
        image = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        out = F.conv2d(image, self.weight.unsqueeze(2), self.bias, padding=(0, 3), groups=2).squeeze(2)
        return x + out if self.adds else torch.addcdiv(out, (out * 2).sin().square(), self.bias.exp()[:, None])

    for adds in (True, False):
        parts = {"weight": nn.Parameter(f32(6, 3, 7)), "bias": nn.Parameter(f32(6)), "adds": adds}
        traced, counts = applied([GROUPED], Net(one_row, **parts), 1e-5, x=f32(2, 6, 20))
        assert counts == [1]
        assert calls_of(traced).keys() == {"convolution", "squeeze", "unsqueeze", "contiguous"}


@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv2d(6, 6, 3), (1, 6, 8, 8)),
        (nn.ConvTranspose1d(6, 6, 3, groups=2), (1, 6, 8)),
        (lambda x: F.conv1d(x, x.flatten()[:18].reshape(2, 3, 3), groups=2), (1, 6, 8)),
    ],
    ids=["dense", "transposed", "computed weight"],
)
def test_other_convolutions_stay(conv, shape):
    assert applied([GROUPED, POINTWISE], Net(lambda self, x: conv(x)), 1e-5, x=f32(*shape))[1] == [0, 0]


class Block(nn.Module):
    def __init__(self, norm=nn.GroupNorm, last=None):
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=2, bias=False)
        self.norms = nn.ModuleList(norm(4, 16) for _ in range(2))
        self.last = last or nn.Conv2d(16, 8, 1)

    def forward(self, x):
        h = F.leaky_relu(self.norms[0](self.one(x)), 0.2)
        return x + self.last(F.silu(self.norms[1](self.two(h))))


TABLES = {"convolution": 3, "norm_table": 1, "fused_norm": 1, "getitem": 3}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (lambda: Block(), TABLES),
        (
            lambda: Block(last=nn.Conv2d(16, 8, 3, padding=1)),
            {"convolution": 2, "fused_norm": 2, "getitem": 4, "conv2d": 1, "add": 1},
        ),
        (lambda: Block(norm=lambda _, c: nn.InstanceNorm2d(c)), TABLES),
    ],
    ids=["group norm", "dense", "instance norm"],
)
def test_convolutions_share_the_work_of_the_norms_between_them(block, expected):
    module = block()
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    traced, counts = applied([NORMS, GROUPED, POINTWISE], module, 1e-5, x=f32(2, 8, 5, 6))
    assert counts == [2, 1, expected["convolution"] - 1]
    assert calls_of(traced) == expected


def test_a_norm_between_pointwise_convolutions_is_a_table_of_what_the_first_left():
    module = Net(lambda self, x: self.block.last(F.silu(self.block.norms[1](self.block.one(x)))), block=Block())
    traced, counts = applied([NORMS, POINTWISE], module, 1e-5, x=f32(2, 8, 5, 6))
    assert counts == [1, 2]
    assert calls_of(traced) == {"convolution": 2, "norm_table": 1, "getitem": 1}
    (table,) = (node for node in traced.graph.nodes if node.target is norm_table)
    assert (table.args[1], table.args[2] is None) == (None, False), "the first one adds the bias, and leaves statistics"


def test_grouped_convolutions_leave_statistics():
    for channels, width, leaves in ((32, 40, True), (32, 20, True), (64, 20, True), (64, 40, False)):
        convs = {"first": nn.Conv2d(channels, channels, 3, padding=1, groups=2), "last": nn.Conv2d(channels, 8, 1)}
        norm = nn.GroupNorm(2, channels)
        module = Net(lambda self, x: self.last(F.silu(self.norm(self.first(x)))), norm=norm, **convs)
        module.to(torch.bfloat16, memory_format=torch.channels_last)
        x = f32(1, channels, 4, width).to(torch.bfloat16, memory_format=torch.channels_last)
        traced, counts = applied([NORMS, GROUPED, POINTWISE], module, 1e-2, x=x)
        (table,) = (node for node in traced.graph.nodes if node.target is norm_table)
        assert (counts, table.args[2] is not None) == ([1, 1, 1], leaves)


class Scale(nn.Module):
    def __init__(self, gain=0.5, shift=0.0):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.2, 1.5, 32) * gain)
        self.shift = nn.Parameter(torch.full((32,), shift))

    def forward(self, x):
        deviation = x.unflatten(1, (2, -1)).flatten(2).var(2, correction=0).add(1e-6).sqrt()
        scaled = (x.unflatten(1, (2, -1)) / deviation[..., None, None, None]).flatten(1, 2)
        return scaled * self.gain.view(-1, 1, 1) + self.shift.view(-1, 1, 1)


def scaled_by(activation=lambda x: F.leaky_relu(x, 0.1), norm=Scale, last=lambda x: x):
    def forward(self, x):
        h = activation(self.first(self.one(x)))
        return self.three(activation(self.second(last(self.two(h)))))

    convs = {"one": nn.Conv2d(32, 32, 1), "two": nn.Conv2d(32, 32, 3, padding=1, groups=2)}
    return Net(forward, **convs, three=nn.Conv2d(32, 8, 1), first=norm(), second=norm())


@pytest.mark.parametrize(
    ("module", "width", "scaled"),
    [
        (scaled_by(), 40, 2),
        (scaled_by(F.relu), 40, 2),
        (scaled_by(), 33, 2),
        (scaled_by(F.silu), 40, 0),
        (scaled_by(norm=lambda: Scale(shift=0.1)), 40, 0),
        (scaled_by(norm=lambda: Scale(gain=-1.0)), 40, 0),
        (scaled_by(norm=lambda: nn.GroupNorm(2, 32)), 40, 0),
        (scaled_by(last=lambda x: x + x.amax()), 40, 1),
        (scaled_by(), 32, 1),
    ],
    ids=[
        *("leaky ReLU", "ReLU", "ragged", "SiLU", "with a shift", "negative", "less the mean"),
        *("another reader", "large weight"),
    ],
)
def test_a_norm_that_only_scales_goes_to_the_weight(module, width, scaled):
    torch.manual_seed(0)
    x = f32(2, 32, 2 if scaled == 1 and width == 32 else 8, width).to(memory_format=LAST)
    x, module = x.to(torch.bfloat16), module.to(torch.bfloat16)
    traced, counts = applied([NORMS, GROUPED, POINTWISE], module, 2e-2, x=x)
    assert counts == [2, 1, 2]
    assert calls(traced)["scaled_weight"] == scaled


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("last", [nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=2)], ids=["1x1", "3x3"])
def test_a_residual_does_not_get_the_activation_of_the_norm(last, normalised, second):
    def forward(self, x):
        h = F.leaky_relu(self.norm(y := self.one(x)), 0.1)
        out = self.last(h) + x if second else self.last(h)
        return out + (h if normalised else y)

    module = Net(forward, one=nn.Conv2d(32, 32, 1), norm=Scale(), last=last).to(torch.bfloat16)
    x = f32(2, 32, 8, 40).to(torch.bfloat16, memory_format=LAST)
    traced, counts = applied([NORMS, GROUPED, POINTWISE], module, 2e-2, x=x)
    assert (sum(counts), calls(traced)["scaled_weight"]) == (3, 0)


def test_an_input_that_the_library_converts_is_converted_once():
    convs = {name: nn.Conv2d(8, 8, 1).to(memory_format=LAST) for name in ("one", "two")}
    module = Net(lambda self, x: self.one(y := x.relu()) + self.two(y) + y.view(2, -1, 1, 1)[:, :1], **convs)
    traced, counts = applied([NEEDS_LAST], module, 1e-5, x=f32(2, 8, 5, 6))
    assert (counts, calls(traced)["contiguous"], calls(traced)["conv2d"]) == ([2], 1, 0)


@pytest.mark.parametrize(
    ("conv", "replaced"),
    [(nn.Conv2d(8, 1, 1), 0), (nn.Conv2d(8, 4, 1, stride=8), 0), (nn.Conv2d(8, 4, 1).to(memory_format=LAST), 1)],
    ids=["one output", "one position", "channels last"],
)
def test_a_result_that_is_contiguous_as_well_is_no_sign_of_a_conversion(conv, replaced):
    traced, counts = applied([NEEDS_LAST], Net(lambda self, x: self.conv(x), conv=conv), 1e-5, x=f32(2, 8, 5, 6))
    assert (counts, calls(traced)["contiguous"]) == ([replaced], replaced)


@pytest.mark.parametrize(
    "read",
    [
        lambda y: y.view_as(y.flatten(1)),
        lambda y: y.sigmoid().view_as(y.flatten(1)),
        lambda y: torch.view_as_complex(y.sigmoid()).abs(),
        lambda y: (z := y.clone(), z.view(2, -1)[:, :9].add_(7), z)[2],
    ],
    ids=["view", "view of a result", "complex", "written by a view"],
)
def test_what_depends_on_the_order_of_memory_reads_it_as_it_was(read):
    conv = nn.Conv2d(8, 8, 1).to(memory_format=LAST)
    module = Net(lambda self, x: (self.conv(y := x.relu()), read(y)), conv=conv)
    assert applied([NEEDS_LAST], module, 1e-5, x=f32(2, 8, 5, 2))[1] == [1]


def kernel_misfit(form):
    return None if form.is_contiguous(memory_format=torch.channels_last) else "its input is not channels last"


def test_what_stays_says_why():
    refuses_all = ReplaceConvolutions(grouped=True, misfit=lambda *_: "too small", **KERNELS)
    module = Net(lambda self, x: self.conv(self.conv(x)), conv=nn.Conv1d(6, 6, 3, groups=2))
    traced, counts = applied([refuses_all], module, 1e-5, x=f32(1, 6, 8))
    assert (counts, traced.meta["left"]) == ([0], {"too small": 2})
