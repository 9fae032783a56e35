"""What kernels do, by operator and by name."""

import pytest
from hand_made_events import piece
from stored_traces import NAMES, stored

from profiling.results.explanations import KERNEL_CLASSES
from profiling.trace.kernel_classes import class_of, class_of_name, class_of_operator

#: Kernels of the world model whose names do not show their class.
WITHOUT_CLASS = {"_write_ring", "_combine_chunks"}
#: cuDNN lays tensors out for a convolution in kernels that are copies by name.
LAYOUT = ("nchwToNhwc", "nhwcToNchw")


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_of_a_real_trace_has_a_class_and_names_say_the_same_as_operators(name):
    operators = {operator.id: operator.name for operator in stored(name).operators}
    for work in stored(name).work:
        known = operators.get(work.operator)
        kind = class_of(work, known)
        assert kind in KERNEL_CLASSES
        assert kind != "other" or work.name in WITHOUT_CLASS
        if work.kind == "kernel" and known is not None and not any(layout in work.name for layout in LAYOUT):
            assert class_of_name(work.name) == kind, work.name


def test_names_that_no_stored_trace_holds():
    kinds = {
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8": "gemm",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>": "attention",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)": "attention",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, float>": "conv",
        "triton_poi_fused_convolution_relu_12": "pointwise",  # what goes on around a convolution
        "triton_per_fused_native_layer_norm_0": "reduction",
        "triton_red_fused_mean_view_7": "reduction",
        "triton_tem_fused_addmm_3": "gemm",
        "_skinny_linear": "gemm",
        "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float>": "pointwise",
        "void at::native::upsample_trilinear3d_out_frame<float>": "pointwise",
        "_resize_rows": "pointwise",
        "some_kernel_of_my_own": "other",
    }
    assert {name: class_of_name(name) for name in kinds} == kinds


def test_operators_that_no_stored_trace_holds():
    kinds = {
        "aten::_flash_attention_forward": "attention",
        "aten::convolution_overrideable": "conv",
        "aten::native_group_norm": "reduction",
        "aten::mul_": "pointwise",
        "aten::gelu_backward": "pointwise",
        "models::addmm": None,  # not torch's: what it does is not known
        "aten::fft_r2c": None,
    }
    assert {operator: class_of_operator(operator) for operator in kinds} == kinds
    assert class_of(piece(0, 1, 1), "aten::addmm") == "gemm", "the operator decides before the name of the kernel"
