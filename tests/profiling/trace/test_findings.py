"""Kernel findings: each rule on a planted kernel, and what takes the time of a decoder that was traced on an H200."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from stored_traces import FOLDER, stored

from profiling.results.environment import NEAR_CEILING, Ceilings
from profiling.results.explained import TraceAnalysis
from profiling.trace.analysis import Traces, analyze_trace, kernels_by_name
from profiling.trace.attribution import KernelAttribution
from profiling.trace.events import GpuWork
from profiling.trace.findings import kernel_findings
from profiling.trace.kernel_classes import class_of_name

#: 1 TB/s: 1 MB takes 1 us; 100 TFLOP/s: 100 MFLOP take 1 us.
CEILINGS = Ceilings(
    dtype="bfloat16",
    copy_bytes_per_s=1e12,
    read_bytes_per_s=1e12,
    bandwidth=((1, 1e12),),
    matmul_flops_per_s=1e14,
    launch_us=5.0,
    seconds=0.0,
)
#: As measured on the GPU of the stored traces.
H200 = Ceilings(
    dtype="bfloat16",
    copy_bytes_per_s=4.248e12,
    read_bytes_per_s=4.313e12,
    bandwidth=(
        *((2**20, 1.598e12), (2**22, 3.723e12), (2**24, 6.040e12)),
        *((2**26, 4.022e12), (2**28, 4.216e12), (2**30, 4.313e12)),
    ),
    matmul_flops_per_s=8.022e14,
    conv_flops_per_s=7.532e14,
    launch_us=4.87,
    gap_us=0.227,
    replay_us=11.2,
    seconds=0.56,
)
BF16, FP32 = "c10::BFloat16", "float"


def piece(name: str, us: float, *, operator: str | None = None, blocks: int | None = None, **known: Any) -> Any:
    kind = "gpu_memset" if name.startswith("Memset") else "kernel"
    work = GpuWork(name, kind, 0.0, us, 1, 1, None, 7, None if blocks is None else (blocks, 1, 1))
    return KernelAttribution(work, known.pop("kind", None) or class_of_name(name), operator, "", **known)


def shapes(*tensors: tuple[list[int], str], strides: list[list[int]] | None = None) -> dict[str, Any]:
    dims = [shape for shape, _ in tensors]
    steps = strides or [[1] * len(shape) for shape in dims]
    return {"Input Dims": dims, "Input type": [kind for _, kind in tensors], "Input Strides": steps}


IMAGE, NCHW, NHWC = [1, 64, 32, 32], [65536, 1024, 32, 1], [65536, 1, 2048, 64]
LAYOUTS = shapes((IMAGE, BF16), (IMAGE, BF16), strides=[NCHW, NHWC])
CASTS = shapes((IMAGE, FP32), (IMAGE, BF16), strides=[NCHW, NCHW])
CONV = "sm80_xmma_fprop_implicit_gemm_bf16bf16"
MOMENTS = "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<c10::BFloat16>(long)"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>"


@pytest.mark.parametrize(
    ("planted", "kind", "what", "saves_us"),
    [
        (
            piece(MOMENTS, 100, operator="aten::native_group_norm", blocks=32, bytes=10_000_000),
            *("reduction", "group norm reductions", 90),
        ),
        (
            piece("triton_red_fused_native_layer_norm_3", 50, bytes=10_000_000),
            "reduction",
            "layer norm reductions",
            40,
        ),
        (piece("void cudnn::nchwToNhwcKernel<__nv_bfloat16>", 20), "layout conversion", "layout conversions", 20),
        (piece("triton_poi_fused_convolution_0", 9, arguments=LAYOUTS), "layout conversion", "layout conversions", 9),
        (piece(ADD, 9, operator="aten::copy_", arguments=LAYOUTS), "layout conversion", "layout conversions", 9),
        (piece(ADD, 9, operator="aten::copy_", arguments=CASTS), "cast", "casts between 16 and 32 bits", 9),
        (piece("triton_poi_fused__to_copy_7", 6), "cast", "casts", 6),
        (piece("triton_poi_fused_addmm_gelu_2", 8), "bias or activation", "bias and activation", 8),
        (piece("void cublasLt::splitKreduce_kernel<32, 16, int>", 4), "split-K", "split-K reductions", 4),
        (piece("Memset (Device)", 3), "memset", "memsets and fills", 3),
        (
            piece(CONV, 50, bytes=10_000_000, arguments=shapes((IMAGE, BF16), ([64, 16, 3, 3], BF16))),
            *("grouped convolution", "grouped convolutions", 40),
        ),
        (
            piece(CONV, 50, bytes=10_000_000, arguments=shapes((IMAGE, BF16), ([64, 64, 1, 1], BF16))),
            *("1x1 convolution", "1 × 1 convolutions", 40),
        ),
        (
            piece(CONV, 50, flops=2_000_000_000, arguments=shapes((IMAGE, BF16), ([64, 64, 3, 3], BF16))),
            *("convolution", "convolutions", 30),
        ),
        (
            piece("nvjet_tst_64x8", 50, bytes=10_000_000, arguments=shapes(([17, 512], BF16), ([512, 2048], BF16))),
            *("few rows", "GEMM M=17", 40),
        ),
        (
            piece("nvjet_tst_64x8", 50, bytes=10_000_000, arguments=shapes(([900, 512], BF16), ([512, 2048], BF16))),
            *("product", "GEMM", 40),
        ),
        (piece(ADD, 50, operator="aten::mul", bytes=10_000_000), "elementwise", "mul kernels", 40),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_planted_kernel(planted: Any, kind: str, what: str, saves_us: float) -> None:
    (found,) = kernel_findings([[planted]], CEILINGS)
    assert (found.kind, found.what) == (kind, what)
    assert found.saves_ms == pytest.approx(saves_us / 1e3)
    assert found.kernels == (planted.work.name,)
    assert found.blocks == planted.work.blocks


@pytest.mark.parametrize(
    "planted",
    [
        piece(MOMENTS, 12, bytes=10_000_000),
        piece(MOMENTS, 100),
        piece("Memcpy HtoD (Pageable -> Device)", 900, bytes=10_000_000),
        piece("triton_poi_fused_add_mul_4", 100),
        piece("nvjet_tst_64x8", 100),
        piece(MOMENTS, 1.9, bytes=1000),
    ],
    ids=["near the ceiling", "bytes not known", "a transfer", "fused work", "a product", "as short as kernels get"],
)
def test_what_is_no_finding(planted: Any) -> None:
    assert kernel_findings([[planted]], CEILINGS) == ()


@pytest.mark.parametrize(
    ("kind", "dtype", "of_ceiling"),
    [
        ("c10::Float8_e4m3fn", "float8", 0.4),
        ("signed char", "int8", 0.4),
        (FP32, "float32", 1.6),
        (BF16, "bfloat16", 0.8),
    ],
)
def test_a_product_is_held_against_the_ceiling_of_its_dtype(kind: str, dtype: str, of_ceiling: float) -> None:
    arguments = shapes(([900, 512], kind), ([512, 2048], kind))
    product = piece("nvjet_128x128", 50, operator="aten::mm", flops=4_000_000_000, arguments=arguments)
    ceilings = replace(CEILINGS, other_flops_per_s={"float8": 2e14, "int8": 2e14, "float32": 5e13})
    assert kernel_findings([[product]], CEILINGS) == (), "80% of the only ceiling that is known"
    found = kernel_findings([[product]], ceilings)
    assert [each.of_ceiling for each in found] == ([pytest.approx(of_ceiling)] if of_ceiling < NEAR_CEILING else [])
    (kernel,) = kernels_by_name([[product]])
    assert kernel.dtype == dtype
    assert ceilings.shares(kernel) == (0.0, pytest.approx(of_ceiling))


@pytest.mark.parametrize(
    ("operator", "weight", "values", "kind"),
    [
        ("aten::cudnn_convolution", [64, 16, 3, 3], ["[0, 0]"] * 3 + ["4", "False", "False", "True"], "grouped"),
        (
            "aten::cudnn_convolution_transpose",
            [64, 32, 3, 3],
            ["[0, 0]"] * 4 + ["1", "False", "False", "True"],
            "whole",
        ),
        ("aten::convolution", [64, 32, 3, 3], ["", *["[0, 0]"] * 3, "True", "[0, 0]", "2"], "grouped"),
    ],
)
def test_the_groups_of_a_convolution_are_those_of_its_operator(
    operator: str, weight: list[int], values: list[str], kind: str
) -> None:
    """With TF32 the last argument of cuDNN's operator is true; a transposed weight has the input's channels first."""
    arguments = {**shapes((IMAGE, BF16), (weight, BF16)), "Concrete Inputs": ["", "", *values]}
    (found,) = kernel_findings([[piece(CONV, 50, operator=operator, bytes=10_000_000, arguments=arguments)]], CEILINGS)
    assert found.kind == ("grouped convolution" if kind == "grouped" else "convolution")


def test_an_activation_after_a_product_could_be_part_of_it() -> None:
    product = piece("nvjet_tst_64x8", 10)
    relu = piece(ADD, 5, operator="aten::relu", kind="pointwise", bytes=5_000_000)
    (after,) = kernel_findings([[product, relu]], CEILINGS)
    assert after.kind == "bias or activation"
    assert kernel_findings([[relu, product]], CEILINGS) == (), "alone it is at the ceiling"


def test_times_are_of_a_call_and_the_largest_saving_is_first() -> None:
    call = [piece("Memset (Device)", 3), piece(MOMENTS, 100, bytes=10_000_000), piece(MOMENTS, 50, bytes=10_000_000)]
    reductions, memsets = kernel_findings([call, call], CEILINGS)
    assert (reductions.count, reductions.ms, reductions.saves_ms) == (2, pytest.approx(0.15), pytest.approx(0.13))
    assert reductions.gbps == pytest.approx(20_000_000 / 150 / 1e3)
    assert reductions.of_ceiling == pytest.approx(20 / 150)
    assert memsets.share == pytest.approx(3 / 153)


def analysed(variant: str, before_capture: str) -> TraceAnalysis:
    """What the rules find in a trace of the image decoder."""
    main, reference = (stored(f"main_job/image_decoder.{name}") for name in (variant, before_capture))
    analysis = analyze_trace(Traces(main, "", "", reference=reference), FOLDER, ceilings=H200)
    assert analysis is not None
    return analysis


def test_what_takes_the_time_of_a_compiled_decoder_is_named() -> None:
    analysis = analysed("compile_cuda_graph", "compile")
    found = {each.what: each for each in analysis.findings}
    assert list(found)[:2] == ["var reductions", "grouped convolutions"]
    assert found["var reductions"].ms == pytest.approx(2.53, abs=0.05), "of 7.1 ms"
    assert found["var reductions"].gbps == pytest.approx(715, rel=0.05)
    assert found["grouped convolutions"].ms == pytest.approx(1.30, abs=0.05)
    assert sum(each.ms for each in analysis.findings) > 0.7 * (analysis.kernel_ms or 0.0)


def test_an_eager_decoder_has_what_a_compiler_removes() -> None:
    found = {each.kind: each for each in analysed("cuda_graph", "baseline").findings}
    assert {"layout conversion", "bias or activation", "cast", "reduction", "grouped convolution"} <= set(found)
    assert found["layout conversion"].ms == pytest.approx(1.8, abs=0.1)
