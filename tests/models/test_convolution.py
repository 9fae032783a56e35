"""Convolutions in one kernel, against plain operations in float64."""

import itertools

import pytest
import torch
from reference_data import check_compiled_and_captured, interpret, relative_error
from torch.nn import functional as F

from models.kernels.activations import activated
from models.kernels.convolution import convolution, pack, reference
from models.kernels.convolution_kinds import adds_shortcut, shares_norms
from models.kernels.forms import channels_last
from models.kernels.fused_norm import moments, norm_table, scaled_weight
from models.kernels.fused_norm import reference as norm

#: Batch size, input channels, output channels, groups, size, kernel size, stride, padding (before, after), dilation.
CASES = [
    (1, 64, 64, 4, (9, 12), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    (1, 16, 24, 1, (3, 67), (3, 3), (1, 1), ((1, 0), (0, 2)), (1, 1)),
    (2, 32, 32, 2, (2, 70), (3, 3), (1, 1), ((0, 2), (2, 2)), (1, 2)),
    (3, 48, 96, 6, (7, 9), (3, 5), (2, 1), ((0, 3), (2, 1)), (1, 2)),
    (2, 24, 24, 1, (6, 7), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    (1, 80, 200, 1, (5, 9), (1, 1), (2, 2), ((1, 0), (0, 0)), (1, 1)),
    (1, 6, 9, 3, (4, 5), (2, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    (1, 40, 40, 40, (6, 11), (3, 3), (1, 2), ((1, 1), (1, 1)), (2, 1)),
    (2, 32, 32, 2, (301,), (7,), (1,), ((54, 0),), (9,)),
    (1, 70, 70, 70, (130,), (7,), (1,), ((9, 9),), (3,)),
    (1, 128, 128, 8, (1,), (7,), (1,), ((3, 3),), (1,)),
    (2, 10, 3, 1, (33,), (1,), (1,), ((0, 0),), (1,)),
    (2, 64, 64, 4, (1, 301), (1, 7), (1, 1), ((0, 0), (54, 0)), (1, 9)),
    (1, 24, 36, 3, (1, 90), (1, 4), (1, 1), ((0, 0), (1, 2)), (1, 1)),
]  # fmt: skip
#: With so many positions that a 1×1 convolution of few inputs keeps its weight, or goes by rows in several tiles.
LARGE = [
    (1, 256, 256, 16, (200, 320), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    (1, 40, 200, 1, (150, 170), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    (2, 256, 32, 1, (40001,), (1,), (1,), ((0, 0),), (1,)),
]
#: Batch size, input channels, output channels, channels and factor of the pixel shuffle that is added, size.
SHORTCUTS = [
    (1, 24, 64, 16, 2, (4, 70)),
    (3, 40, 96, 48, 2, (2, 64)),
    (1, 20, 3, 3, 2, (4, 6)),
    (2, 16, 160, 160, 2, (4, 16)),
    (3, 33, 130, 130, 1, (3, 5)),
    (1, 16, 64, 16, 1, (7, 9)),
]
LARGE_SHORTCUTS = [
    (1, 256, 128, 64, 2, (256, 320)),
    (1, 256, 128, 128, 2, (256, 288)),
    (3, 128, 128, 128, 2, (154, 162)),
    (1, 512, 256, 128, 2, (256, 256)),
]
BOUNDS = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def draw_case(case, dtype, device="cpu", last=False, mean=0.0):
    """Return the inputs of `convolution` up to beta, and its options up to the size."""
    batch, inputs, outputs, groups, shape, kernel, stride, pads, dilation = case
    generator = torch.Generator().manual_seed(0)
    size = [
        (n + sum(pad) - step * (k - 1) - 1) // jump + 1
        for n, pad, step, k, jump in zip(shape, pads, dilation, kernel, stride, strict=True)
    ]
    tensors = ((batch, inputs, *shape), (outputs, inputs // groups, *kernel), (batch, outputs, *size))
    x, weight, residual = (torch.randn(each, generator=generator).to(dtype) for each in tensors)
    x = x + mean
    if last:
        x, residual = (each.movedim(1, -1).contiguous().movedim(-1, 1) for each in (x, residual))
    bias, alpha, beta = (torch.randn(outputs, generator=generator).to(device) for _ in range(3))
    options = tuple(map(list, (kernel, stride, [pad[0] for pad in pads], dilation, size)))
    return (x.to(device), weight.to(device), bias, residual.to(device), alpha, beta), options


def plain(case, x, weight, bias, residual, alpha, beta, activation):
    """Return what a library computes in float64."""
    groups, pads, stride, dilation = case[3], case[7], case[6], case[8]
    padded = F.pad(x.double(), [each for pad in reversed(pads) for each in pad])
    convolve = F.conv1d if x.dim() == 3 else F.conv2d
    out = convolve(padded, weight.double(), None, stride, 0, dilation, groups)
    out = out if bias is None else out + bias.view(-1, *[1] * (x.dim() - 2))
    return activated(out if residual is None else out + residual, activation, 0.1, alpha, beta)


def check(convolve, dtypes, device="cpu", cases=CASES):
    epilogues = itertools.cycle(
        itertools.product((True, False), (False, True), ("none", "silu", "snake", "leaky_relu"))
    )
    for case, dtype, last, mean in itertools.product(cases, dtypes, (False, True), (0.0, 1e3)):
        (x, weight, bias, residual, *snake), options = draw_case(case, dtype, device, last, mean)
        has_bias, has_residual, activation = next(epilogues)
        activation = "leaky_relu" if mean else activation  # others of thousands are 0, or noise
        given = bias if has_bias else None, residual if has_residual else None, *snake
        (out,) = convolve(x, pack(weight, case[3]), *given, *options, activation, 0.1)
        assert out.dtype == dtype
        assert channels_last(out) is channels_last(residual)
        expected = plain(case, x, weight, *given, activation)
        error = relative_error(out.cpu(), expected.cpu())
        assert error < BOUNDS[dtype], (case, dtype, last, mean, activation, error)


def check_norms(convolve, table_of, scaled, dtypes, device="cpu", cases=CASES):
    """Check the norm of a convolution's input, and the statistics of its result, by which the next one normalises."""
    forms = itertools.cycle([(True, True), (True, False), (False, False)])
    activations = itertools.cycle(["leaky_relu", "silu", "snake"])
    for case, dtype, last in itertools.product(cases, dtypes, (False, True)):
        (x, weight, bias, residual, *snake), options = draw_case(case, dtype, device, last, 0.5)
        (_, channels, outputs, *_), packed, form = case, pack(weight, case[3]), (1e-6, *next(forms))
        before, gain, shift, alpha, beta = (torch.linspace(-1, 2, channels, device=device) + n for n in range(5))
        activation, of = next(activations), channels // 2 if channels % 2 == 0 else 1
        normalises, leaves = shares_norms(x, packed, *options)
        table = table_of(x, before, None, gain, shift, of, *form)
        first = norm(x.double(), before, None, gain, shift, alpha, beta, of, *form, activation, 0.1)[0]
        rows = table[:, [2, 4], :, *[None] * (x.dim() - 2)].double().unbind(1)
        assert relative_error((x * rows[0] + rows[1]).cpu(), normalised(x, before, gain, shift, of, form).cpu()) < 1e-5
        if normalises:
            (out,) = convolve(
                x, packed, bias, residual, *snake, *options, "none", 0.0, table, activation, 0.1, alpha, beta
            )
            expected = plain(case, first, weight, bias, residual, None, None, "none")
            assert relative_error(out.cpu(), expected.cpu()) < 2 * BOUNDS[dtype], (case, dtype, last)
        scales = scaled(x, moments(x.double()).float(), packed, gain + 5, of, 1e-6, form[1])  # of each batch element
        out, *partial = convolve(
            x, scales, bias, residual, *snake, *options, "leaky_relu", 0.1,
            statistics="before_activation" if leaves else "none",
        )  # fmt: skip
        first = normalised(x, torch.zeros_like(gain), gain + 5, gain * 0, of, (1e-6, form[1], False))
        expected = plain(case, first, weight, bias, residual, None, None, "none")
        error = relative_error(out.cpu(), activated(expected, "leaky_relu", 0.1).cpu())
        assert error < 2 * BOUNDS[dtype], (case, dtype, last, error)
        if not leaves:
            continue
        found, real = (
            table_of(out, None, each, bias, bias, 1, *form) for each in (*partial, moments(expected).float())
        )
        assert relative_error(found[:, [2, 4]].cpu(), real[:, [2, 4]].cpu()) < BOUNDS[dtype], (case, dtype, last)
        out, partial = convolve(x, packed, bias, residual, *snake, *options, "none", 0.0, statistics="result")
        gain, shift = (torch.linspace(1, 2, outputs, device=device) for _ in range(2))
        one, other = (table_of(out, None, each, gain, shift, 1, *form) for each in (partial, None))
        assert relative_error(one[:, [2, 4]].cpu(), other[:, [2, 4]].cpu()) < BOUNDS[dtype], (case, dtype, last)


def check_shortcuts(convolve, table_of, dtypes, device="cpu", cases=SHORTCUTS):
    """Check sums with a pixel shuffle, their statistics, and the norm of the input in the same kernel."""
    for (batch, inputs, outputs, channels, factor, size), dtype, adds in itertools.product(
        cases, dtypes, (True, False)
    ):
        case = (batch, inputs, outputs, 1, size, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1))
        (x, weight, bias, residual, *snake), options = draw_case(case, dtype, device, last=True)
        shape = (batch, channels * factor**2, *(each // factor for each in size))
        shortcut = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        if adds:  # the other one is converted
            shortcut = shortcut.to(memory_format=torch.channels_last)
        packed, given = pack(weight, 1), (bias, residual, *snake) if adds else (None, None, *snake)
        assert adds_shortcut(x, packed, *options, shortcut.shape)
        added = F.pixel_shuffle(shortcut.double(), factor).repeat(1, outputs // channels, 1, 1)
        added = added + residual.double() if adds else added
        out, partial = convolve(
            x, packed, *given, *options, "leaky_relu", 0.1, statistics="before_activation", shortcut=shortcut
        )
        expected = plain(case, x, weight, given[0], added, None, None, "none")
        error = relative_error(out.cpu(), activated(expected, "leaky_relu", 0.1).cpu())
        assert error < BOUNDS[dtype], (case, dtype, adds, error)
        found, real = (
            table_of(out, None, each, bias, bias, 1, 1e-6, True, True) for each in (partial, moments(expected).float())
        )
        assert relative_error(found[:, [2, 4]].cpu(), real[:, [2, 4]].cpu()) < BOUNDS[dtype], (case, dtype, adds)
        table = torch.randn(batch, 5, inputs, generator=torch.Generator().manual_seed(2)).to(device)
        first = x.double() * table[:, 2, :, None, None] + table[:, 4, :, None, None]
        (out,) = convolve(
            x.contiguous(), packed, *given, *options, "silu", 0.0, table, "leaky_relu", 0.1, shortcut=shortcut
        )
        expected = plain(case, activated(first, "leaky_relu", 0.1), weight, given[0], added, None, None, "silu")
        assert relative_error(out.cpu(), expected.cpu()) < 2 * BOUNDS[dtype], (case, dtype, adds)


def normalised(x, bias, gain, shift, groups, form):
    return norm(x.double(), bias, None, gain, shift, None, None, groups, *form, "none", 0.0)[0]


def interpreted():
    from models.kernels.convolution_triton import convolution as kernel
    from models.kernels.fused_norm_triton import norm_table as kernel_table
    from models.kernels.fused_norm_triton import scaled_weight as kernel_scaled

    check(kernel, (torch.float32, torch.float16))  # the interpreter multiplies the bits of bfloat16
    check_norms(kernel, kernel_table, kernel_scaled, (torch.float32, torch.float16))
    check_more_than_31_bits()


def interpreted_shortcuts():
    from models.kernels.convolution_triton import convolution as kernel
    from models.kernels.fused_norm_triton import norm_table as kernel_table

    check_shortcuts(kernel, kernel_table, (torch.float32, torch.float16))
    (x, weight, *vectors), options = draw_case(CASES[4], torch.float32, last=True)
    with pytest.raises(ValueError, match="adds no such shortcut"):
        kernel(x, pack(weight, 1), *vectors, *options, "none", 0.0, shortcut=x[:, :8])


def check_more_than_31_bits():
    """Check one tile of a sequence whose channels lie further apart than 32-bit offsets reach; nothing else is read."""
    from models.kernels.convolution_1x1_triton import convolution_1x1 as kernel

    inputs, outputs, positions = 2112, 16, 2**20
    x = torch.empty(inputs, positions, dtype=torch.float16)  # pages that nobody touches take no memory
    x[:, :16] = 0
    x[-1, :16] = torch.arange(16)
    weight, out = torch.ones(inputs, outputs).half(), torch.zeros(outputs, positions).half()
    kernel[(1, 1)](
        x, weight, *[weight] * 4, out, out, *[weight] * 4, positions, 1, 0, inputs=inputs, outputs=outputs,
        innermost=False, aligned=16, has_table=False, first_activation=0, first_slope=0.0, statistics=0,
        has_bias=False, has_residual=False, activation=0, slope=0.0, factor=0, width=1, shuffled_channels=0,
        turned=True, whole=True, block_p=16, block_n=16, block_k=64,
    )  # fmt: skip
    assert torch.equal(out[:, :16], x[-1:, :16].expand(outputs, -1))


def test_kernels_in_the_interpreter():
    interpret("test_convolution", "interpreted")


def test_shortcuts_in_the_interpreter():
    interpret("test_convolution", "interpreted_shortcuts")


def test_the_reference():
    check(convolution, (torch.float64, torch.float32))
    check(reference, (torch.bfloat16,))
    check_norms(convolution, norm_table, scaled_weight, (torch.float32, torch.bfloat16))
    check_shortcuts(convolution, norm_table, (torch.float32, torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.parametrize("cases", [CASES[:7], CASES[7:], LARGE], ids=["one", "two", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_on_the_gpu(dtype, cases):
    with torch.no_grad():
        check(convolution, (dtype,), "cuda", cases)
        check_norms(convolution, norm_table, scaled_weight, (dtype,), "cuda", cases)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shortcuts_on_the_gpu(dtype):
    with torch.no_grad():
        check_shortcuts(convolution, norm_table, (dtype,), "cuda", SHORTCUTS + LARGE_SHORTCUTS)


@pytest.mark.parametrize(
    ("shortcut", "changes", "adds"),
    [
        ((2, 64, 3, 5), {}, True),
        ((2, 32, 6, 10), {}, True),
        ((2, 16, 6, 10), {}, True),
        ((2, 32, 3, 5), {}, False),
        ((2, 32, 3, 10), {}, False),
        ((1, 64, 3, 5), {}, False),
        ((2, 288, 2, 3), {}, False),
        ((2, 64, 3), {}, False),
        ((2, 64, 3, 5), {"stride": [2, 2]}, False),
        ((2, 64, 3, 5), {"form": torch.empty(2, 24, 6, 10)}, False),
    ],
)
def test_what_a_convolution_adds(shortcut, changes, adds):
    geometry = {"kernel": [1, 1], "stride": [1, 1], "before": [0, 0], "dilation": [1, 1], "size": [6, 10]}
    form = torch.empty(2, 24, 6, 10).to(memory_format=torch.channels_last)
    given = {"form": form, "packed": pack(torch.empty(32, 24, 1, 1), 1), **geometry, **changes}
    assert adds_shortcut(**given, shortcut=shortcut) is adds


@pytest.mark.gpu
def test_compiled_and_captured_on_the_gpu():
    (x, weight, *vectors), options = draw_case(CASES[0], torch.float32, "cuda", last=True)
    packed = pack(weight, CASES[0][3])

    def twice(x):
        (x,) = convolution(x, packed, *vectors, *options, "silu", 0.0)
        return convolution(x, packed, *vectors, *options, "snake", 0)[0]

    check_compiled_and_captured(twice, x, bound=1e-5)
