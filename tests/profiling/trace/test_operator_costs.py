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
    known = [each for each in attributions(trace) if each.kind == kind and each.flops is not None]
    shapes = (operators[each.work.operator].arguments["Input Dims"] for each in known)
    return {(each.bytes, each.flops) for each, dims in zip(known, shapes, strict=True) if shape in dims}


@pytest.mark.parametrize("trace", ["net.eager", "net.compile"])
def test_operators_of_a_trace_have_the_cost_of_their_shapes(trace):
    rows, inner, columns = 256, 512, 1536
    moved = BF16 * (rows * inner + inner * columns + columns + rows * columns)
    assert of_class(trace, "gemm", [inner, columns]) == {(moved, 2 * rows * inner * columns)}

    heads, length, width = 8, 256, 64
    attention = of_class(trace, "attention", [1, heads, length, width])
    assert {flops for _, flops in attention} == {2 * 2 * heads * length * length * width}
    four = 4 * BF16 * heads * length * width  # queries, keys, values, output; the rest is a few bytes a row
    assert all(four <= moved <= 1.05 * four for moved, _ in attention)

    (convolution,) = of_class(trace, "conv", [32, 16, 3, 3])
    assert convolution[1] == 2 * (2 * 64 * 64) * 32 * (16 * 3 * 3)
    assert convolution[0] == pytest.approx(BF16 * (2 * 16 * 64 * 64 + 32 * 16 * 9 + 2 * 32 * 64 * 64), rel=0.001)


def test_recorded_arguments_are_those_of_the_call():
    ten, half = ("float", [10], [1], ""), ("c10::BFloat16", [10], [1], "")
    one, eight = ("Scalar", [], [], "1"), ("float", [8, 4], [4, 1], "")
    assert cost("aten::add", eight, ("float", [8, 4], [0, 1], ""), one).bytes == 4 * (32 + 4 + 32)
    assert cost("aten::copy_", half, ten, ("Scalar", [], [], "False")).bytes == 10 * (4 + 2)
    assert cost("aten::add_", ten, ten, one).bytes == 3 * 40
    wide, dim = ("c10::BFloat16", [4, 1024], [1024, 1], ""), ("", [], [], "[-1]")
    options = [("Scalar", [], [], value) for value in ("2", "True", "6")]  # a dtype is recorded by its number
    norm = cost("aten::linalg_vector_norm", wide, options[0], dim, *options[1:])
    assert norm.bytes == 4 * 1024 * BF16 + 4 * 4


def test_a_cost_that_cannot_be_computed_is_absent():
    for name, *arguments in (
        ("models::start_norm", ("float", [4], [1], "")),  # whose business that is
        ("aten::cat", ("TensorList", [[4], [4]], [[1], [1]], ""), ("Scalar", [], [], "0")),  # types are not recorded
        ("aten::mm", ("float", [4, 5], [5, 1], ""), ("float", [4, 5], [5, 1], "")),  # shapes that do not fit
        ("aten::no_such_operator", ("float", [4], [1], "")),
    ):
        assert cost(name, *arguments) == Cost(), name


def test_an_operator_from_outside_has_the_flops_of_its_formula():
    torch.library.define("planted_cost::product", "(Tensor x, Tensor weight) -> Tensor")
    arguments = [("float", [1, 17, 64], [1088, 64, 1], ""), ("float", [32, 64], [64, 1], "")]
    assert cost("planted_cost::product", *arguments) == Cost(), "no formula is registered"
    register_flop_formula(torch.ops.planted_cost.product)(lambda x, weight, **_: 2 * x[1] * weight[0] * weight[1])
    assert cost("planted_cost::product", *arguments) == Cost(flops=2 * 17 * 64 * 32)
    assert cost("planted_cost::unknown", *arguments) == Cost()


RING, BIAS = ("c10::BFloat16", [3, 1024]), ("c10::BFloat16", [1024])
ROWS = 3 * 1024 * BF16


@pytest.mark.parametrize(
    ("name", "tensors", "lengths", "moved"),
    [
        # Three rows of a table of 100,000 by their numbers: the table has 200 MB, and 6 kB of it are read.
        ("poi_fused_embedding_0", [("long int", [3]), ("c10::BFloat16", [100_000, 1024]), RING], [3072], 24 + 2 * ROWS),
        ("per_fused_norm_0", [RING, RING], [3, 1024], 2 * ROWS),
        # In place: an H200 counted 242 MB in DRAM for a bias and activation of 134 MB.
        ("poi_fused_add_1", [RING, BIAS], [3072], 2 * ROWS + 1024 * BF16),
        ("poi_fused_relu_2", [RING, RING], [3072], 2 * ROWS),  # the last one is written
        ("red_fused_sum_3", [RING, BIAS], [3, 1024], ROWS + 1024 * BF16),  # a sum is smaller
        ("tem_fused_mm_1", [RING, RING], [], None),  # a template has no lengths
        ("write_ring", [RING, RING], [3], None),  # the user's own
    ],
)
def test_a_generated_kernel_reads_and_writes_at_most_an_element_an_iteration(name, tensors, lengths, moved):
    recorded = {
        "kernel_backend": "triton",
        "Input type": [*(kind for kind, _ in tensors), *("Scalar" for _ in lengths)],
        "Input Dims": [*(dims for _, dims in tensors), *([] for _ in lengths)],
        "Input Strides": [*([1024, 1] if len(dims) == 2 else [1] for _, dims in tensors), *([] for _ in lengths)],
        "Concrete Inputs": [*("" for _ in tensors), *(str(length) for length in lengths)],
    }
    name = name if name == "write_ring" else f"triton_{name}"
    assert OperatorCosts().of(Operator(name, 0, 1, (1, 1), 1, recorded)) == Cost(bytes=moved)
