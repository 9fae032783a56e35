"""The passes for upsampling: convolutions computed before it, and interpolation replaced by a kernel."""

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, assert_as_exact_in_bfloat16, calls, f32
from torch import nn
from torch.nn import functional as F

from models.kernels.resize import resize, tables
from profiling.fx_passes.upsampling import FoldUpsampling, ReplaceInterpolation


def interpolated(**options):
    return lambda x: F.interpolate(x, **options)


def repeated(factor):
    return lambda x: x.unsqueeze(-1).expand(-1, -1, -1, factor).flatten(2)


def as_in_float32(x):
    return F.interpolate(x.float(), scale_factor=(2.0, 2.0), mode="nearest-exact").type_as(x)


def one_row(x):
    return last(F.pad(repeated(7)(x), (6, 7)).unsqueeze(2))


def last(x):
    return x.to(memory_format=torch.channels_last)


UP, PICTURE = interpolated(scale_factor=2), (2, 6, 5, 4)
#: Convolution, what is before it, the shape of the input, and the weight of the convolution that replaces it.
FOLDED = {
    "3x3 of a picture": (nn.Conv2d(6, 4, 3, padding=1), UP, PICTURE, (16, 6, 2, 2)),
    "channels last": (last(nn.Conv2d(6, 4, 3, padding=1)), lambda x: UP(last(x)), PICTURE, (16, 6, 2, 2)),
    "casts": (nn.Conv2d(6, 4, 3, padding=1), as_in_float32, PICTURE, (16, 6, 2, 2)),
    "rounded before": (nn.Conv2d(6, 4, 3), lambda x: UP(x.bfloat16()).float(), PICTURE, (16, 6, 2, 2)),
    "valid": (nn.Conv2d(6, 4, 3, bias=False), interpolated(size=(10, 12)), (1, 6, 5, 4), (24, 6, 2, 2)),
    "same": (nn.Conv2d(6, 4, (5, 4), padding="same"), UP, (1, 6, 5, 4), (16, 6, 3, 3)),
    "in one dim": (nn.Conv2d(6, 4, 3, padding=2), interpolated(scale_factor=(1, 3)), (1, 6, 5, 4), (12, 6, 3, 2)),
    "sequence": (nn.Conv1d(6, 4, 14), lambda x: F.pad(repeated(7)(x), (6, 7)), (2, 6, 9), (28, 6, 3)),
    "causal": (nn.Conv1d(6, 4, 8), lambda x: F.pad(x.repeat_interleave(4, -1), (7, 0)), (2, 6, 9), (16, 6, 3)),
    "wide padding": (nn.Conv1d(6, 4, 5, padding=9), interpolated(scale_factor=3), (2, 6, 4), (12, 6, 3)),
    "video": (nn.Conv3d(6, 4, 3, padding=1), UP, (1, 6, 3, 4, 2), (32, 6, 2, 2, 2)),
    "as a picture": (nn.Conv2d(6, 4, (1, 14)), one_row, (2, 6, 9), (28, 6, 1, 3)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_the_kernel_of_the_small_picture(name):
    conv, up, shape, weight = FOLDED[name]
    module = Net(lambda self, x: torch.tanh(self.conv(up(x))), conv=conv)
    traced, counts = applied([FoldUpsampling()], module, 1e-6, x=f32(*shape))
    assert counts == [1]
    assert calls(traced)["interpolate"] == calls(traced)["pad"] == 0
    assert [tuple(each.shape) for each in traced.buffers() if each.dim() > 1] == [weight]
    x = f32(*shape)
    assert traced(x=x).stride() == module(x=x).stride()


def test_a_pointwise_convolution_moves_before_the_upsampling():
    for conv, up, shape in (
        (nn.Conv1d(6, 4, 1), repeated(2), (1, 6, 5)),
        (nn.Conv1d(6, 4, 1), repeated(41), (1, 6, 5)),  # for which torch's nearest takes wrong neighbours
        (nn.Conv2d(6, 4, 1, bias=False), UP, (2, 6, 4, 4)),
    ):
        module = Net(lambda self, x, up=up: self.conv(up(x)), conv=conv)
        traced, counts = applied([FoldUpsampling()], module, 1e-6, x=f32(*shape))
        names = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
        assert (counts, names) == ([1], [f"conv{len(shape) - 2}d", "interpolate"])


#: Convolutions that stay, and the reason that is counted; None: what is before them is no upsampling.
STAY = {
    "as many products": (nn.Conv2d(6, 4, 2), UP, "before the upsampling it takes as many products"),
    "zeros": (nn.Conv2d(6, 4, 1, padding=1), UP, "zeros are added before it"),
    "stride": (nn.Conv2d(6, 4, 3, stride=2), UP, "it has groups, or a stride or dilation of more than 1"),
    "bilinear": (nn.Conv2d(6, 4, 3), interpolated(scale_factor=2, mode="bilinear"), None),
    "smaller": (nn.Conv2d(6, 4, 1), interpolated(scale_factor=0.5), None),
    "uneven": (nn.Conv2d(6, 4, 3), interpolated(size=(7, 9)), None),
    "replicated": (nn.Conv2d(6, 4, 3), lambda x: F.pad(UP(x), (1,) * 4, "replicate"), None),
    "tiled": (nn.Conv2d(6, 4, 3), lambda x: x.repeat(1, 1, 2, 2), None),
    "plain": (nn.Conv2d(6, 4, 3), lambda x: x, None),
    "cropped": (nn.Conv2d(6, 4, 3), lambda x: F.pad(UP(x), (-8, 8)), None),
    "constant": (nn.Conv2d(6, 4, 3), lambda x: UP(torch.ones(2, 6, 4, 4)), None),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name):
    conv, up, reason = STAY[name]
    module = Net(lambda self, x: self.conv(up(x)), conv=conv)
    traced, counts = applied([FoldUpsampling()], module, 1e-6, x=f32(2, 6, 4, 4))
    assert counts == [0]
    assert traced.meta["left"] == ({} if reason is None else {reason: 1})


def test_upsampling_that_others_read_is_computed_for_them():
    def forward(self, x):
        up = F.interpolate(x, scale_factor=2)
        return self.conv(up) * self.conv(up) + up[:, :4]

    module = Net(forward, conv=nn.Conv2d(6, 4, 3, padding=1))
    traced, counts = applied([FoldUpsampling()], module, 1e-6, x=f32(2, 6, 4, 4))
    assert (counts, calls(traced)["interpolate"]) == ([2], 1)


def test_bfloat16_is_rounded_once():
    """Sums of weights are rounded as each weight was."""
    module = Net(lambda self, x: self.conv(UP(x)), conv=nn.Conv2d(64, 32, 3, padding=1))
    assert_as_exact_in_bfloat16(FoldUpsampling(), module, f32(1, 64, 8, 8))


def taken(form, device, rows, columns):
    return "it is contiguous" if form.is_contiguous() else None


#: Options of interpolations, and whether the kernel computes them.
INTERPOLATED = {
    "size": ({"size": (11, 7), "mode": "bicubic"}, True),
    "factor": ({"scale_factor": 1.7, "mode": "bicubic"}, True),
    "factors": ({"scale_factor": (0.6, 2.3), "mode": "bilinear"}, True),
    "recomputed": ({"scale_factor": 1.9, "mode": "bilinear", "recompute_scale_factor": True}, True),
    "corners": ({"size": (3, 12), "mode": "bicubic", "align_corners": True}, True),
    "antialiased": ({"size": (2, 3), "mode": "bilinear", "antialias": True}, True),
    "nearest": ({"scale_factor": 2}, False),
    "area": ({"size": (2, 2), "mode": "area"}, False),
}


INTERPOLATION = ReplaceInterpolation(resize=resize, tables=tables, misfit=taken)


@pytest.mark.parametrize("name", INTERPOLATED)
def test_interpolation_by_the_kernel(name):
    options, is_replaced = INTERPOLATED[name]
    module = Net(lambda self, x: F.interpolate(x * 2, **options) + 1)
    traced, counts = applied([INTERPOLATION], module, 1e-6, x=last(f32(2, 6, 5, 6)))
    assert (counts, calls(traced)["resize"]) == ([is_replaced], is_replaced)
    assert traced.meta["left"] == {}


def test_interpolation_that_the_kernel_does_not_take_stays():
    contiguous = Net(lambda self, x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    traced, _ = applied([INTERPOLATION], contiguous, 1e-6, x=f32(2, 6, 5, 6))
    assert traced.meta["left"] == {"it is contiguous": 1}


@pytest.mark.parametrize(
    ("a_pass", "mode", "left"),
    [(FoldUpsampling(), "nearest", {}), (INTERPOLATION, "bilinear", {"the memory of its input is written to": 1})],
    ids=["upsampling", "interpolation"],
)
def test_what_is_written_to_after_it_was_read_stays(a_pass, mode, left):
    def forward(self, x):
        x = x * 1
        part, up = x[:, :4], F.interpolate(x, scale_factor=2, mode=mode)
        x.mul_(2)
        return self.conv(up) + part.mean()

    module = Net(forward, conv=nn.Conv2d(6, 4, 3, padding=1))
    traced, counts = applied([a_pass], module, 1e-6, x=last(f32(2, 6, 4, 4)))
    assert (counts, traced.meta["left"]) == ([0], left)
