"""The kernels of `fused_norm` against PyTorch operations in float64."""

import itertools

import pytest
import torch
from reference_data import check_compiled_and_captured, interpret, relative_error

from models.kernels.forms import channels_last
from models.kernels.fused_norm import fused_norm, moments, reference

#: (about_mean, subtract_mean) of a group norm, of a division by the standard deviation alone, and of an RMS norm.
FORMS = [(True, True), (True, False), (False, False)]
#: Shape and groups (0: over channels at each position): in registers, in parts, ragged, one channel, one position.
SHAPES = [
    ((1, 32, 12, 10), 8), ((3, 24, 5, 7), 24), ((2, 20, 37), 0), ((1, 48, 2, 3, 4), 0), ((3, 1, 50), 1),
    ((2, 12, 5, 5), 4), ((1, 96, 1), 3), ((1, 64, 96, 90), 4), ((3, 6, 9001), 6),
    ((1, 12, 3, 31, 97), 1), ((1, 5, 9, 1900), 5), ((1, 32, 1000), 32),
]  # fmt: skip


def draw_inputs(shape, dtype, device="cpu", last=False, mean=0.5, deviation=1.0):
    """Return x, bias, added, gain, shift, alpha, beta."""
    generator = torch.Generator().manual_seed(0)
    x, added = ((torch.randn(shape, generator=generator) * deviation + mean).to(dtype) for _ in range(2))
    vectors = [torch.randn(shape[1], generator=generator) for _ in range(5)]
    if last:
        x, added = (each.movedim(1, -1).contiguous().movedim(-1, 1) for each in (x, added))
    bias, gain, shift, alpha, beta = (each.to(device) for each in vectors)
    return x.to(device), bias, added.to(device), gain, shift, alpha, beta


def check(fused, device="cpu", shapes=SHAPES):
    """Check the kernels for all forms; the activation, the sum and the layout alternate."""
    kinds = itertools.cycle(["none", "silu", "gelu", "gelu_tanh", "leaky_relu", "snake"])
    for shape, groups in shapes:
        cases = itertools.product((torch.float32, torch.bfloat16), (False, True), FORMS)
        for (dtype, last, form), activation, add in zip(
            cases, kinds, itertools.cycle([True, False, False, True, True])
        ):
            x, bias, added, *vectors = draw_inputs(shape, dtype, device, last)
            options = (groups, 1e-6, *form, activation, 0.1)
            bias = None if activation == "gelu" else bias
            wide = [None if each is None else each.double() for each in (x, bias, added if add else None, *vectors)]
            expected, *summed = reference(*wide, *options)
            out, *got = fused(x, bias, added if add else None, *vectors, *options)
            assert len(got) == add
            for one, other in zip(got, summed, strict=True):
                assert relative_error(one, other) < (1e-6 if dtype == torch.float32 else 4e-3)
                assert channels_last(one) is channels_last(x)
            assert (out.dtype, channels_last(out)) == (dtype, channels_last(x))
            bound = 3e-6 if dtype == torch.float32 else 8e-3
            assert relative_error(out, expected) < bound, (shape, groups, dtype, last, form, activation, add)
            if groups and bias is None and not add:
                partial = moments(x.double()).float()
                given = fused(x, None, None, *vectors, *options, partial)[0]
                assert relative_error(given, expected) < 4 * bound, (shape, groups, dtype, last, form)


def check_hostile(fused, device="cpu"):
    """Check a mean 10⁵ times the deviation, an outlier as the first element, constants and zeros."""
    options = (1e-12, True, True, "none", 0.0)
    for (shape, groups), last in itertools.product(SHAPES, (False, True)):
        if shape in ((3, 1, 50), (1, 96, 1)):
            continue
        x, _, _, gain, shift, *_ = draw_inputs(shape, torch.float32, device, last, mean=1e3, deviation=1e-2)
        for spoilt in (False, True):
            if spoilt:
                x[:, :, 0] = 1e5
            expected = reference(x.double(), None, None, gain, shift, None, None, groups, *options)[0]
            out = fused(x, None, None, gain, shift, None, None, groups, *options)[0]
            bound = 1e-4 if device == "cuda" else 3e-5  # 4.9e-5 was measured there; x·scale + offset has 6e-3
            assert relative_error(out, expected) < bound, (shape, last)
        for value in (0.0, 7.0):
            constant = torch.full_like(x, value)
            out = fused(constant, None, None, gain, shift, None, None, groups, 1e-6, True, True, "none", 0.0)[0]
            expected = shift.view(-1, *[1] * (x.dim() - 2)).expand_as(x)
            assert relative_error(out, expected) < 1e-6, "no NaN where nothing varies"


def interpreted():
    from models.kernels import fused_norm_triton as kernels

    check(kernels.fused_norm)
    check_hostile(kernels.fused_norm)


def test_kernels_in_the_interpreter():
    interpret("test_fused_norm", "interpreted")


def test_the_reference():
    check(fused_norm)
    check_hostile(fused_norm)


@pytest.mark.gpu
def test_kernels_on_the_gpu():
    with torch.no_grad():
        check(fused_norm, "cuda", [*SHAPES, ((1, 256, 256, 256), 16), ((1, 96, 3, 90, 160), 0)])
        check_hostile(fused_norm, "cuda")


@pytest.mark.gpu
def test_compiled_and_captured_on_the_gpu():
    def both(x, bias, added, *vectors):
        out, summed = fused_norm(x.relu(), bias, added, *vectors, 8, 1e-6, True, True, "silu", 0.0)
        return fused_norm(out, None, None, *vectors, 8, 1e-6, True, False, "snake", 0.0)[0] + summed

    given = draw_inputs((1, 64, 96, 90), torch.float32, "cuda", last=True)
    check_compiled_and_captured(both, *given, bound=1e-5)
