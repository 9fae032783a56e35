"""Bytes and FLOPs of operators in stored traces against sums by hand."""

import pytest
import torch
from stored_traces import attributions, stored
from torch.utils.flop_counter import register_flop_formula

from profiling.trace.events import Operator
from profiling.trace.operator_costs import Cost, OperatorCosts

BF16 = 2


def cost(name, *arguments):
    """The cost of an operator with arguments (type, dims, strides, value)."""
    kinds, dims, strides, values = zip(*arguments, strict=True)
    recorded = {
        "Input type": list(kinds),
        "Input Dims": list(dims),
        "Input Strides": list(strides),
        "Concrete Inputs": list(values),
    }
    return OperatorCosts().of(Operator(name, 0, 1, (1, 1), 1, recorded))


def of_class(trace, kind, shape):
    """Costs of the operators of a class in the last call whose recorded shapes hold `shape`."""
    operators = {operator.id: operator for operator in stored(trace).operators}
    found = (item for item in attributions(trace) if item.kind == kind and item.flops is not None)
    return {
        (item.bytes, item.flops) for item in found if shape in operators[item.work.operator].arguments["Input Dims"]
    }


@pytest.mark.parametrize("trace", ["net.eager", "net.compile"])
def test_a_product(trace):
    rows, inner, columns = 256, 512, 1536
    moved = BF16 * (rows * inner + inner * columns + columns + rows * columns)
    assert of_class(trace, "gemm", [inner, columns]) == {(moved, 2 * rows * inner * columns)}


@pytest.mark.parametrize("trace", ["net.eager", "net.compile"])
def test_attention_has_the_cost_of_the_operator_that_selected_it(trace):
    heads, length, width = 8, 256, 64
    moved = {bytes_ for bytes_, _ in of_class(trace, "attention", [1, heads, length, width])}
    assert {flops for _, flops in of_class(trace, "attention", [1, heads, length, width])} == {
        2 * 2 * heads * length * length * width
    }
    four = 4 * BF16 * heads * length * width  # queries, keys, values, output; the rest is a few bytes a row
    assert four <= min(moved) <= 1.05 * four


@pytest.mark.parametrize("trace", ["net.eager", "net.compile"])
def test_a_convolution(trace):
    (found,) = of_class(trace, "conv", [32, 16, 3, 3])
    assert found[1] == 2 * (2 * 64 * 64) * 32 * (16 * 3 * 3)
    assert found[0] == pytest.approx(BF16 * (2 * 16 * 64 * 64 + 32 * 16 * 9 + 2 * 32 * 64 * 64), rel=0.001)


def scalar(value):
    return ("Scalar", [], [], value)


@pytest.mark.parametrize(
    ("name", "arguments", "moved"),
    [
        ("aten::add", [("float", [8, 4], [4, 1], ""), ("float", [8, 4], [0, 1], ""), scalar("1")], 4 * (32 + 4 + 32)),
        ("aten::copy_", [("c10::BFloat16", [10], [1], ""), ("float", [10], [1], ""), scalar("False")], 10 * (4 + 2)),
        ("aten::add_", [("float", [10], [1], ""), ("float", [10], [1], ""), scalar("1")], 3 * 40),
        (
            "aten::linalg_vector_norm",  # a dtype is recorded by its number
            [
                *(("c10::BFloat16", [4, 1024], [1024, 1], ""), scalar("2"), ("", [], [], "[-1]"), scalar("True")),
                scalar("6"),
            ],
            4 * 1024 * BF16 + 4 * 4,
        ),
    ],
)
def test_recorded_arguments_are_those_of_the_call(name, arguments, moved):
    assert cost(name, *arguments).bytes == moved


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("models::start_norm", [("float", [4], [1], "")]),  # whose business that is
        ("aten::cat", [("TensorList", [[4], [4]], [[1], [1]], ""), ("Scalar", [], [], "0")]),  # types are not recorded
        ("aten::mm", [("float", [4, 5], [5, 1], ""), ("float", [4, 5], [5, 1], "")]),  # shapes that do not fit
        ("aten::no_such_operator", [("float", [4], [1], "")]),
    ],
)
def test_a_cost_that_cannot_be_computed_is_absent(name, arguments):
    assert cost(name, *arguments) == Cost()


def test_an_operator_from_outside_has_the_flops_of_its_formula():
    torch.library.define("planted_cost::product", "(Tensor x, Tensor weight) -> Tensor")
    arguments = [("float", [1, 17, 64], [1088, 64, 1], ""), ("float", [32, 64], [64, 1], "")]
    assert cost("planted_cost::product", *arguments) == Cost(), "no formula is registered"
    register_flop_formula(torch.ops.planted_cost.product)(
        lambda x, weight, **_: 2 * x[0] * x[1] * weight[0] * weight[1]
    )
    assert cost("planted_cost::product", *arguments) == Cost(flops=2 * 17 * 64 * 32)
    assert cost("planted_cost::unknown", *arguments) == Cost()


def generated(name, *tensors, lengths):
    recorded = {
        "kernel_backend": "triton",
        "Input type": [*(kind for kind, _ in tensors), *("Scalar" for _ in lengths)],
        "Input Dims": [*(dims for _, dims in tensors), *([] for _ in lengths)],
        "Input Strides": [*([1024, 1] if len(dims) == 2 else [1] for _, dims in tensors), *([] for _ in lengths)],
        "Concrete Inputs": [*("" for _ in tensors), *(str(length) for length in lengths)],
    }
    return OperatorCosts().of(Operator(name, 0, 1, (1, 1), 1, recorded))


def test_a_generated_kernel_reads_an_element_an_iteration():
    """Three rows of a table of 100,000 by their numbers: the table has 200 MB, and 6 kB of it are read."""
    rows = ("c10::BFloat16", [3, 1024])
    table = ("c10::BFloat16", [100_000, 1024])
    numbers = ("long int", [3])
    found = generated("triton_poi_fused_embedding_0", numbers, table, rows, lengths=[3 * 1024])
    assert found == Cost(bytes=3 * 8 + 2 * 3 * 1024 * BF16)
    normed = generated("triton_per_fused_norm_0", rows, rows, lengths=[3, 1024])
    assert normed == Cost(bytes=2 * 3 * 1024 * BF16)


def test_a_generated_kernel_that_writes_in_place_moves_its_first_tensor_twice():
    """An H200 counted 242 MB in DRAM for a bias and activation of 134 MB, in place."""
    picture, bias = ("c10::BFloat16", [512, 1024]), ("c10::BFloat16", [512])
    assert generated("triton_poi_fused_add_1", picture, bias, lengths=[512 * 1024]) == Cost(
        bytes=2 * 512 * 1024 * BF16 + 512 * BF16
    )
    once = Cost(bytes=2 * 512 * 1024 * BF16)
    assert generated("triton_poi_fused_relu_2", picture, picture, lengths=[512 * 1024]) == once, "the last is written"
    read = Cost(bytes=512 * 1024 * BF16 + 512 * BF16)
    assert generated("triton_red_fused_sum_3", picture, bias, lengths=[512, 1024]) == read, "a sum is smaller"


def test_kernels_of_other_libraries_have_no_known_cost():
    ring = ("c10::BFloat16", [61, 1024])
    assert generated("_write_ring", ring, ring, lengths=[3]) == Cost()
    assert generated("triton_tem_fused_mm_1", ring, ring, lengths=[]) == Cost(), "a template has no lengths"
