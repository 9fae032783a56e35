"""Classes of kernels (gemm, conv, attention, …): by the operator that launched a kernel, else by its name."""

from __future__ import annotations

import re
from functools import cache

from profiling.results.explanations import Kernel
from profiling.trace.events import GpuWork

_OPERATORS = {
    "gemm": r"addmm|mm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|_scaled_mm|_int_mm|_addmm_activation|einsum",
    "conv": r"(\w*_)?convolution\w*|conv(_transpose)?[123]d|_slow_conv\w*|slow_conv\w*|_conv_depthwise\w*",
    "attention": r"\w*attention\w*",
    "reduction": r"(native_)?(layer|group|batch)_norm\w*|cudnn_batch_norm\w*|_?fused_rms_norm\w*|rms_norm"
    r"|_?(log_)?softmax|_(log_)?softmax_backward_data|sum|mean|std|var|var_mean|std_mean|norm|linalg_vector_norm|_foreach_norm"
    r"|a?max|a?min|argmax|argmin|prod|all|any|cumsum|cumprod|logsumexp|topk|sort|\w*_norm(_backward)?"
    r"|\w*nll_loss\w*|\w*_pool[123]?d\w*",
    "copy": r"copy_?|_to_copy|clone|contiguous|cat|_foreach_copy_?|fill_?|zero_?|_foreach_zero_|stack|repeat"
    r"|constant_pad_nd|index(_select|_copy_?|_put_?)?|_index_put_impl_|gather|scatter_?|embedding|roll|flip",
    "pointwise": r"_?(foreach|fused)?_?(add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp|log|log1p|sin|cos|tan|neg|abs|sign"
    r"|floor|ceil|round|trunc|remainder|fmod|atan2|hypot|reciprocal|addcmul|addcdiv|lerp|clamp|clamp_min|clamp_max"
    r"|minimum|maximum|where|masked_fill|relu|leaky_relu|elu|gelu|silu|sigmoid|tanh|hardtanh|softplus|mish|threshold"
    r"|eq|ne|lt|le|gt|ge|logical_(and|or|not|xor)|bitwise_(and|or|not|xor)|isnan|isfinite|erf|square|lerp|sgd|adamw?"
    r"|normal|uniform|bernoulli|arange|upsample_\w+|native_dropout|snake)_?(_backward)?",
}
_OPERATOR_CLASSES = {kind: re.compile(rf"aten::(?:{names})", re.IGNORECASE) for kind, names in _OPERATORS.items()}

#: Patterns of kernel names; the first match counts, because a name may contain an operator of another class.
_NAMES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("pointwise", r"^triton_poi"),
        ("reduction", r"^triton_(red|per|split)"),
        ("attention", r"flash|fmha|attention|attend|sdpa|mha_"),
        (
            "copy",
            r"nchwToNhwc|nhwcToNchw|CatArrayBatchedCopy|direct_copy|copy_kernel|FillFunctor|TensorListMetadata.*Copy",
        ),
        ("conv", r"conv|fprop|dgrad|wgrad|implicit_gemm|winograd|cudnn.*scudnn|im2col|col2im"),
        (
            "gemm",
            r"gemm|gemv|nvjet|cublas|splitKreduce|cutlass|triton_tem_\w*mm|xmma|_mm_|dot_kernel|matmul|(?<!bi)(?<!tri)linear",
        ),
        ("reduction", r"reduce_kernel|softmax|norm|cub::|reduction|MeanOps|RowwiseMoments|Welford|sort"),
        ("copy", r"copy|transpose|scatter|gather|index_(put|select|elementwise)|embedding|pad"),
        ("pointwise", r"elementwise|multi_tensor_apply|distribution|upsample|resize|arange|pointwise|_fused_"),
    )
)


def class_of(work: GpuWork, operator: str | None) -> str:
    """Return the class of `work`, which `operator` (`aten::addmm`, for example; None if unknown) launched.

    Copies and fills are `copy`, whatever launched them. The kernel's name decides where the operator is unknown or in
    no list (a custom one, for example).
    """
    if work.kind != "kernel":
        return "copy"
    known = None if operator is None or operator == work.name else class_of_operator(operator)
    return known or class_of_name(work.name)


@cache
def class_of_operator(operator: str) -> str | None:
    """Return the class of a torch operator; None if it is in no list."""
    return next((kind for kind, names in _OPERATOR_CLASSES.items() if names.fullmatch(operator)), None)


@cache
def class_of_name(name: str) -> str:
    """Return the class of a kernel by its name."""
    return next((kind for kind, pattern in _NAMES if pattern.search(name)), "other")


def kernel_class(kernel: Kernel) -> str:
    """Return the class of a kernel, or of an operator of a CPU."""
    if kernel.kind != "operator":
        return kernel.kind
    return class_of_operator(kernel.name) or class_of_name(kernel.name)
