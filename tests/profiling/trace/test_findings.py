"""Kernel findings: each rule on a planted kernel, and what takes the time of a decoder that was traced on an H200."""

import pytest
from hand_made_ceilings import H200, ceilings_of
from msgspec.structs import replace
from stored_traces import FOLDER, stored

from profiling.results.environment import NEAR_CEILING
from profiling.trace.analysis import Traces, analyze_trace, kernels_by_name
from profiling.trace.attribution import KernelAttribution
from profiling.trace.events import GpuWork
from profiling.trace.findings import kernel_findings
from profiling.trace.kernel_classes import class_of_name

#: 1 MB takes 1 us, 100 MFLOP take 1 us.
CEILINGS = ceilings_of(1e12, dtype="bfloat16", matmul_flops_per_s=1e14)
BF16, FP32 = "c10::BFloat16", "float"


def piece(name, us, *, operator=None, blocks=None, **known):
    kind = "gpu_memset" if name.startswith("Memset") else "kernel"
    work = GpuWork(name, kind, 0.0, us, 1, 1, None, 7, None if blocks is None else (blocks, 1, 1))
    return KernelAttribution(work, known.pop("kind", None) or class_of_name(name), operator, "", **known)


def shapes(*tensors, strides=None):
    dims = [shape for shape, _ in tensors]
    steps = strides or [[1] * len(shape) for shape in dims]
    return {"Input Dims": dims, "Input type": [kind for _, kind in tensors], "Input Strides": steps}


IMAGE, NCHW, NHWC = [1, 64, 32, 32], [65536, 1024, 32, 1], [65536, 1, 2048, 64]
LAYOUTS = shapes((IMAGE, BF16), (IMAGE, BF16), strides=[NCHW, NHWC])
CASTS = shapes((IMAGE, FP32), (IMAGE, BF16), strides=[NCHW, NCHW])
CONV = "sm80_xmma_fprop_implicit_gemm_bf16bf16"
MOMENTS = "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<c10::BFloat16>(long)"
NORM = "aten::native_group_norm"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>"


def conv(*weight):
    return shapes((IMAGE, BF16), (list(weight), BF16))


def product(rows, kind=BF16):
    return shapes(([rows, 512], kind), ([512, 2048], kind))


MB, GEMM = 10**6, "nvjet_tst_64x8"
#: (kind, words, saved us) of planted kernels.
PLANTED = {
    ("reduction", "group norm reductions", 90): piece(MOMENTS, 100, operator=NORM, blocks=32, bytes=10 * MB),
    ("reduction", "layer norm reductions", 40): piece("triton_red_fused_native_layer_norm_3", 50, bytes=10 * MB),
    ("layout conversion", "layout conversions", 20): piece("void cudnn::nchwToNhwcKernel<__nv_bfloat16>", 20),
    ("layout conversion", "layout conversions", 9): piece("triton_poi_fused_convolution_0", 9, arguments=LAYOUTS),
    ("layout conversion", "layout conversions", 8): piece(ADD, 8, operator="aten::copy_", arguments=LAYOUTS),
    ("cast", "casts between 16 and 32 bits", 9): piece(ADD, 9, operator="aten::copy_", arguments=CASTS),
    ("cast", "casts", 6): piece("triton_poi_fused__to_copy_7", 6),
    ("bias or activation", "bias and activation", 8): piece("triton_poi_fused_addmm_gelu_2", 8),
    ("split-K", "split-K reductions", 4): piece("void cublasLt::splitKreduce_kernel<32, 16, int>", 4),
    ("memset", "memsets and fills", 3): piece("Memset (Device)", 3),
    ("grouped convolution", "grouped convolutions", 40): piece(CONV, 50, bytes=10 * MB, arguments=conv(64, 16, 3, 3)),
    ("1x1 convolution", "1 × 1 convolutions", 40): piece(CONV, 50, bytes=10 * MB, arguments=conv(64, 64, 1, 1)),
    ("convolution", "convolutions", 30): piece(CONV, 50, flops=2000 * MB, arguments=conv(64, 64, 3, 3)),
    ("few rows", "GEMM M=17", 40): piece(GEMM, 50, bytes=10 * MB, arguments=product(17)),
    ("product", "GEMM", 40): piece(GEMM, 50, bytes=10 * MB, arguments=product(900)),
    ("elementwise", "mul kernels", 40): piece(ADD, 50, operator="aten::mul", bytes=10 * MB),
}


@pytest.mark.parametrize("expected", PLANTED, ids=str)
def test_a_planted_kernel(expected):
    planted, (kind, what, saves_us) = PLANTED[expected], expected
    (found,) = kernel_findings([[planted]], CEILINGS)
    assert (found.kind, found.what) == (kind, what)
    assert found.saves_ms == pytest.approx(saves_us / 1e3)
    assert (found.kernels, found.blocks) == ((planted.work.name,), planted.work.blocks)


def test_what_is_no_finding():
    planted = {
        "near the ceiling": piece(MOMENTS, 12, bytes=10 * MB),
        "bytes not known": piece(MOMENTS, 100),
        "a transfer": piece("Memcpy HtoD (Pageable -> Device)", 900, bytes=10 * MB),
        "fused work": piece("triton_poi_fused_add_mul_4", 100),
        "as short as kernels get": piece(MOMENTS, 1.9, bytes=1000),
        "an activation at the ceiling": piece(ADD, 5, operator="aten::relu", bytes=5 * MB),
    }
    assert {why: kernel_findings([[each]], CEILINGS) for why, each in planted.items()} == dict.fromkeys(planted, ())
    (after,) = kernel_findings([[piece(GEMM, 10), planted["an activation at the ceiling"]]], CEILINGS)
    assert after.kind == "bias or activation", "after a product it could be part of it"


@pytest.mark.parametrize(
    ("kind", "dtype", "of_ceiling"), [("signed char", "int8", 0.4), (FP32, "float32", 1.6), (BF16, "bfloat16", 0.8)]
)
def test_a_product_is_held_against_the_ceiling_of_its_dtype(kind, dtype, of_ceiling):
    gemm = piece(GEMM, 50, operator="aten::mm", flops=4000 * MB, arguments=product(900, kind))
    ceilings = replace(CEILINGS, other_flops_per_s={"int8": 2e14, "float32": 5e13})
    assert kernel_findings([[gemm]], CEILINGS) == (), "80% of the only ceiling that is known"
    found = kernel_findings([[gemm]], ceilings)
    assert [each.of_ceiling for each in found] == ([pytest.approx(of_ceiling)] if of_ceiling < NEAR_CEILING else [])
    (kernel,) = kernels_by_name([[gemm]])
    assert kernel.dtype == dtype
    assert ceilings.shares(kernel) == (0.0, pytest.approx(of_ceiling))


def test_the_groups_of_a_convolution_are_those_of_its_operator():
    """With TF32 the last argument of cuDNN's operator is true; a transposed weight has the input's channels first."""
    sizes, flags = ["[0, 0]"] * 3, ["False", "False", "True"]
    for operator, weight, values, kind in (
        ("cudnn_convolution", (64, 16, 3, 3), [*sizes, "4", *flags], "grouped convolution"),
        ("cudnn_convolution_transpose", (64, 32, 3, 3), [*sizes, "[0, 0]", "1", *flags], "convolution"),
        ("convolution", (64, 32, 3, 3), ["", *sizes, "True", "[0, 0]", "2"], "grouped convolution"),
    ):
        arguments = {**conv(*weight), "Concrete Inputs": ["", "", *values]}
        kernel = piece(CONV, 50, operator=f"aten::{operator}", bytes=10 * MB, arguments=arguments)
        (found,) = kernel_findings([[kernel]], CEILINGS)
        assert found.kind == kind, operator


def test_times_are_of_a_call_and_the_largest_saving_is_first():
    call = [piece("Memset (Device)", 3), piece(MOMENTS, 100, bytes=10 * MB), piece(MOMENTS, 50, bytes=10 * MB)]
    reductions, memsets = kernel_findings([call, call], CEILINGS)
    assert (reductions.count, reductions.ms, reductions.saves_ms) == (2, pytest.approx(0.15), pytest.approx(0.13))
    assert (reductions.gbps, reductions.of_ceiling) == (pytest.approx(20 * MB / 150 / 1e3), pytest.approx(20 / 150))
    assert memsets.share == pytest.approx(3 / 153)


def test_what_takes_the_time_of_a_decoder_is_named():
    found = {}
    for variant, before_capture in (("compile_cuda_graph", "compile"), ("cuda_graph", "baseline")):
        main, reference = (stored(f"main_job/image_decoder.{name}") for name in (variant, before_capture))
        found[variant] = analyze_trace(Traces(main, "", reference=reference), FOLDER, ceilings=H200)
    compiled = {each.what: each for each in found["compile_cuda_graph"].findings}
    assert list(compiled)[:2] == ["var reductions", "grouped convolutions"]
    assert compiled["var reductions"].ms == pytest.approx(2.53, abs=0.05), "of 7.1 ms"
    assert compiled["var reductions"].gbps == pytest.approx(715, rel=0.05)
    assert compiled["grouped convolutions"].ms == pytest.approx(1.30, abs=0.05)
    assert sum(each.ms for each in compiled.values()) > 0.7 * found["compile_cuda_graph"].kernel_ms
    eager = {each.kind: each for each in found["cuda_graph"].findings}
    assert {"layout conversion", "bias or activation", "cast", "reduction", "grouped convolution"} <= set(eager)
    assert eager["layout conversion"].ms == pytest.approx(1.8, abs=0.1)
