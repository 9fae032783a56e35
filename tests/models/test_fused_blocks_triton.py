"""Fused kernels against PyTorch operations in float64: gated add with modulated norm, and whole frames."""

import itertools

import pytest
import torch
from reference_data import captured, interpret, relative_error, worst_error
from test_cached_world_model import SMALL, WIDE, build, generate
from test_cached_world_model import draw_inputs as draw_frames
from test_skinny_linear import put_in_8_bits

from models.kernels.eight_bits import from_int16_rows
from models.kernels.modulated_norm import add_modulated_norm as reference
from models.kernels.modulated_norm import modulated_norm

pytest.importorskip("triton")
from models.kernels.modulated_norm_triton import add_modulated_norm

HALVES = [torch.bfloat16, torch.float16]
SHAPES = [(b, g, m, d) for b in (1, 2) for g in (1, 2) for m in (5, 17) for d in (24, 1536)]


def draw_inputs(b, g, m, d, dtype=torch.float32, device="cpu") -> tuple[torch.Tensor, ...]:
    """Return residual [b, g, m, d], its branch in parts, and gate, factor and shift as parts of a wider tensor."""
    torch.manual_seed(0)
    # A mean far from 0 and a small spread: a variance of one pass would lose them.
    residual = (3 + 0.2 * torch.randn(b, g, m, d)).to(device, dtype)
    branch = torch.randn(1 + 2 * (g - 1), b, g, m, d).to(device, dtype)  # one part, or three
    wide = torch.randn(b, 4, 5 * d).to(device, dtype)[:, 1 : 1 + g]  # two more frames, and two more vectors
    gate, factor, shift = (wide[..., i * d : (i + 1) * d].unsqueeze(2) for i in (3, 0, 2))
    return residual, branch, gate, factor, shift


def interpreted():
    for shape, (dtype, bound) in itertools.product(SHAPES, ((torch.float32, 1e-6), (torch.float16, 3e-3))):
        given = draw_inputs(*shape, dtype)
        expected = reference(*(tensor.double() for tensor in given))
        before = [tensor.clone() for tensor in given]
        for actual, exact in zip(add_modulated_norm(*given), expected, strict=True):
            assert actual.dtype == dtype
            assert relative_error(actual, exact) < bound, (shape, dtype)
        residual, _, _, factor, shift = given
        summed, normed = add_modulated_norm(residual, None, None, factor, shift)
        exact = modulated_norm(residual.double(), factor.double(), shift.double())
        assert summed is residual
        assert relative_error(normed, exact) < bound, (shape, dtype)
        assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))
    residual, branch, *vectors = draw_inputs(2, 2, 5, 24)
    turned = [tensor.mT.contiguous().mT for tensor in (residual, branch)]
    pair = add_modulated_norm(*turned, *vectors), add_modulated_norm(residual, branch, *vectors)
    assert all(torch.equal(one, other) for one, other in zip(*pair, strict=True))
    for shape in SHAPES[1::4]:
        check_int16(*draw_inputs(*shape), 1e-4)


def check_int16(residual, branch, gate, factor, shift, bound):
    """Compare norms that are written as `Int16Rows` with plain operations; a row with NaN or infinity is NaN."""
    given = residual, branch, gate, factor, shift
    exact = reference(*(tensor.double() for tensor in given))[1]
    alone = modulated_norm(residual.double(), factor.double(), shift.double())
    _, normed = add_modulated_norm(*given, int16=True)
    assert relative_error(from_int16_rows(normed), exact) < bound, residual.shape
    _, normed = add_modulated_norm(residual, None, None, factor, shift, int16=True)
    assert relative_error(from_int16_rows(normed), alone) < bound, residual.shape
    spoilt = residual.clone()
    spoilt[0, 0, 1, 3], spoilt[0, 0, 2, 3] = float("nan"), float("inf")
    _, normed = add_modulated_norm(spoilt, None, None, factor, shift, int16=True)
    assert from_int16_rows(normed)[0, 0, 1:3].isnan().all()
    assert relative_error(from_int16_rows(normed)[0, 0, 3:], alone[0, 0, 3:]) < bound
    _, normed = add_modulated_norm(residual, None, None, torch.zeros_like(factor), torch.zeros_like(shift), int16=True)
    assert not from_int16_rows(normed).any(), "a row of zeros"


def test_kernel_in_the_interpreter():
    interpret("test_fused_blocks_triton", "interpreted")


def test_what_does_not_fit_is_refused():
    residual, branch, gate, factor, shift = draw_inputs(2, 2, 5, 24)
    with pytest.raises(ValueError, match=r"factor \[2, 1, 1, 24\].*must be \[b, g, 1, d\]"):
        add_modulated_norm(residual, branch, gate, factor[:, :1], shift)
    with pytest.raises(ValueError, match="a stride of 1 over d"):
        add_modulated_norm(residual, branch, gate.repeat(1, 1, 1, 2)[..., ::2], factor, shift)
    with pytest.raises(ValueError, match="cannot be added"):
        add_modulated_norm(residual, branch[0], gate, factor, shift)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1, 17, 4096)], ids=str)
def test_as_exact_as_plain_operations(shape, dtype):
    given = draw_inputs(*shape, dtype, "cuda")
    expected = reference(*(tensor.double() for tensor in given))
    for actual, other, exact in zip(add_modulated_norm(*given), reference(*given), expected, strict=True):
        assert relative_error(actual, exact) <= 2 * relative_error(other, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_norms_in_int16_are_as_exact_as_in_half_precision(dtype):
    for shape in [*SHAPES[1::4], (1, 1, 17, 4096)]:
        check_int16(*draw_inputs(*shape, dtype, "cuda"), 5e-3 if dtype == torch.bfloat16 else 1e-3)


@pytest.mark.gpu
def test_a_captured_graph_follows_its_inputs():
    given = draw_inputs(1, 1, 17, 1536, torch.bfloat16, "cuda")
    with torch.no_grad():
        graph, out = captured(lambda: add_modulated_norm(*given))
        given[0].normal_()
        given[4].normal_()
        graph.replay()
        for one, other in zip(out, add_modulated_norm(*given), strict=True):
            assert torch.equal(one, other)


OPTIONS = [{"steps": 2}, {"commit": "separate"}, {"guidance": 1.5, "batch": 2}]


@torch.no_grad()
def interpreted_frames():
    """In fp32 on the CPU, where the kernels run in the interpreter alone: twice around the ring."""
    from models.kernels import ring_attention

    ring_attention.triton_obstacle = lambda ring: None
    for options in OPTIONS:
        sequence = draw_frames(SMALL, 2 * SMALL.n_frames, batch=options.get("batch", 1))
        fused, plain = (build(SMALL, kernel=kernel, **options) for kernel in ("triton", "sdpa"))
        assert worst_error(generate(fused, sequence), generate(plain, sequence)) < 1e-5, options
        torch.testing.assert_close(fused.state_tensors(), plain.state_tensors(), rtol=1e-4, atol=1e-4)
    sequence = draw_frames(SMALL, SMALL.n_frames + 2)
    for rows, bound in ((64, 1e-3), (SMALL.tokens_per_frame - 1, 1e-5)):  # fewer than a frame has: no kernel
        models = [put_in_8_bits(build(SMALL, kernel=kernel), "int8", rows) for kernel in ("triton", "sdpa")]
        assert worst_error(*(generate(model, sequence) for model in models)) < bound, rows


def test_frames_in_the_interpreter():
    interpret("test_fused_blocks_triton", "interpreted_frames")


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["int8", "float8_e4m3"])
@torch.no_grad()
def test_blocks_of_8_bits_compiled_or_not_are_those_of_plain_operations(weights):
    torch._dynamo.reset()
    sequence = [tensor.to(torch.bfloat16).cuda() for tensor in draw_frames(WIDE, 8)]
    past, given = ([tensor[:, part] for tensor in sequence] for part in (slice(7), 7))
    results = []
    for kernel, compiled in (("sdpa", False), ("triton", False), ("triton", True)):
        model = put_in_8_bits(build(WIDE, kernel=kernel).to(torch.bfloat16).cuda(), weights)
        model.reset()
        model.prefill(*past)
        call = torch.compile(model.frame, fullgraph=True) if compiled else model.frame
        results.append([tensor.clone() for tensor in call(*given)])
    for actual in results[1:]:
        for one, other in zip(actual, results[0], strict=True):
            assert (one - other).double().norm() <= 5e-2 * other.double().norm()


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 1e-2), (torch.bfloat16, 5e-2)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_compiled_frames_are_those_of_eager(options, dtype, bound):
    """The first frames after the same past: later ones would hand their errors on."""
    torch._dynamo.reset()
    batch = options.get("batch", 1)
    sequence = [tensor.to(dtype).cuda() for tensor in draw_frames(WIDE, 10, batch=batch)]
    past, given = ([tensor[:, part] for tensor in sequence] for part in (slice(7), 7))
    model = build(WIDE, kernel="triton", **options).to(dtype).cuda()
    compiled = torch.compile(model.frame, fullgraph=True)
    results = []
    for call, _ in itertools.product((model.frame, compiled), range(2)):
        model.reset()
        model.prefill(*past)
        frame = [tensor.clone() for tensor in call(*given)]
        results.append([*frame, *(tensor.clone() for tensor in model.state_tensors())])
    for actual in results[1:]:
        for one, other in zip(actual, results[0], strict=True):
            assert (one - other).double().norm() <= bound * other.double().norm()
