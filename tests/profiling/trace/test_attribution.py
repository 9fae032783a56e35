"""Attribution of GPU work to submodules: by spans, through a replay, through a compiler, in a backward pass."""

import itertools
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from hand_made_events import host, operator, span, work
from planted_modules import Stack, component
from stored_traces import attributions, calls_of

from profiling.run.trace_passes import short_trace
from profiling.trace.attribution import (
    Attributor,
    BackwardModules,
    KernelAttribution,
    aligned,
    attributed_by_reference,
    with_eager_modules,
)
from profiling.trace.events import GpuWork, parents_of, read_events, timeline, traced_calls
from profiling.trace.modules import module_spans
from profiling.trace.operator_costs import OperatorCosts


def known_of(events):
    trace = timeline(events)
    return Attributor(trace, OperatorCosts()).of(traced_calls(trace)[0])


def committed(cell):
    path = Path(__file__).resolve().parents[3] / "docs" / "results" / "h200" / "traces" / f"{cell}.json.gz"
    return timeline(read_events(path)), OperatorCosts()


def modules_of(items):
    return Counter(item.module for item in items)


def test_work_belongs_to_the_innermost_span_that_launched_it():
    events = [
        span(0, 100, "c/v/trace/0"),
        span(1, 90, "module: "),
        span(10, 50, "module: block"),
        span(20, 30, "module: block.norm"),
        *(host(at, at + 1, correlation=at) for at in (5, 15, 25, 40, 60, 95)),
        *(work(100 + at, 101 + at, correlation=at) for at in (5, 15, 25, 40, 60, 95)),
    ]
    assert [item.module for item in known_of(events)] == ["", "block", "block.norm", "block", "", None]


def test_launches_of_another_thread_are_in_no_span():
    elsewhere = {**host(5, 6, correlation=1), "tid": 2}
    events = [span(0, 10, "c/v/trace/0"), span(1, 9, "module: "), elsewhere, work(7, 8, correlation=1)]
    assert [item.module for item in known_of(events)] == [None]


def test_eager_work_is_attributed_whole():
    found = modules_of(attributions("net.eager_hooks"))
    block = {f"blocks.{n}.{part}": 1 for n in range(3) for part in ("qkv", "out", "up", "down")}
    norms = {f"blocks.{n}.norm": 2 for n in range(3)}
    own = {f"blocks.{n}": 5 for n in range(3)}  # attention with its fill, two additions, the activation
    assert found == {**block, **norms, **own, "head": 1, "conv": 5, "": 3}


def test_the_helpers_of_a_convolution_have_the_bytes_of_what_they_convert():
    """An H200 counted 257, 256 and 257 MB in DRAM for input, output and input of 256 channels of 512 x 512."""
    trace, costs = committed("image_decoder.baseline")
    items = Attributor(trace, costs).of(traced_calls(trace)[0])
    largest = [item for item in items if item.arguments.get("Input Dims", [0])[0] == [1, 256, 512, 512]]
    given = [item.bytes for item in largest if "nchwToNhwc" in item.work.name]
    assert sorted(set(given)) == [2 * 2 * 256 * 16 * 9, 2 * 2 * 256 * 512 * 512], "weights and input"
    output = [item.bytes for item in largest if "nhwcToNchw" in item.work.name]
    assert output == pytest.approx([2 * 2 * 256 * 512 * 512] * 3, rel=0.001)


def test_equal_kernels_of_an_operator_share_its_work():
    """A convolution of 64 groups may launch a kernel for each; others of its kernels have none of the work."""
    trace, costs = committed("audio_decoder.baseline")
    items = Attributor(trace, costs).of(traced_calls(trace)[0])
    grouped = [item for item in items if "cutlass_tensorop" in item.work.name and _of_1024_channels(item)]
    assert len(grouped) == 64
    assert {64 * (item.flops or 0) for item in grouped} == {grouped[0].operator_flops}
    assert 64 * (grouped[0].bytes or 0) == pytest.approx(2 * (2 * 1024 * 5880 + 1024 * 16 * 7), rel=0.01)


def test_copies_of_a_group_have_their_bytes_of_input_and_output():
    """An H200 counted 0.11 MB in DRAM as the mean of three convolutions' copies; writes may stay in L2."""
    trace, costs = committed("audio_decoder.baseline")
    items = Attributor(trace, costs).of(traced_calls(trace)[0])
    copies = [item.bytes for item in items if "nhwcSliceC" in item.work.name]
    assert len(copies) == 3 * 2 * 64, "two copies for each group"
    assert sum(copies) / len(copies) == pytest.approx(0.145e6, rel=0.01)
    largest = [item.bytes for item in items if "nhwcSliceC" in item.work.name and _of_1024_channels(item)]
    assert largest == pytest.approx([2 * 2 * 16 * 5880] * 128, rel=0.01)


def _of_1024_channels(item):
    return item.arguments["Input Dims"][0] == [1, 1024, 1, 5880]


def test_a_replay_takes_everything_from_the_step_before_its_capture():
    reference = attributions("net.eager_hooks")
    for call in calls_of("net.graph"):
        result = attributed_by_reference(call.work, reference)
        assert None not in result
        assert modules_of(result) == modules_of(reference)
        assert [item.work for item in result] == list(call.work)  # the times stay the replay's own
        assert [item.flops for item in result] == [item.flops for item in reference]


def test_copies_around_a_replay_have_no_counterpart():
    reference = attributions("world_model_step.baseline")
    call = calls_of("world_model_step.cuda_graph")[0]
    result = attributed_by_reference(call.work, reference)
    assert len(call.work) - len(reference) == 4
    assert [place for place, item in enumerate(result) if item is None] == [0, 1, 349, 350]


def test_a_kernel_that_only_the_replay_uses_is_not_attributed():
    reference = attributions("net.eager_hooks")
    other = [
        replace(item, name="another") if place == 7 else item
        for place, item in enumerate(calls_of("net.graph")[0].work)
    ]
    result = attributed_by_reference(other, reference)
    assert [place for place, item in enumerate(result) if item is None] == [7]
    assert [item.module for item in result if item] == [item.module for item in reference if item is not reference[7]]


def test_branches_of_a_replay_that_run_side_by_side_are_not_mixed_up():
    """The order in which they begin is chance: `norm` is in both branches, `product` in one, `sum` after both."""

    def known(name, module, begin):
        return KernelAttribution(
            GpuWork(name, "kernel", begin, begin + 1, 0, 1, None), "gemm", "aten::mm", module, None, 8
        )

    reference = [known("norm", "a", 0), known("norm", "b", 1), known("product", "b", 2), known("sum", "", 3)]

    def replayed(*stretches):
        return [GpuWork(name, "kernel", begin, end, 9, None, None) for name, begin, end in stretches]

    beside = replayed(("norm", 0, 200), ("norm", 1, 20), ("product", 21, 40), ("sum", 201, 202))
    assert [item and item.module for item in attributed_by_reference(beside, reference)] == [None, None, "b", ""]
    in_turn = replayed(("norm", 0, 20), ("norm", 20, 40), ("product", 40, 60), ("sum", 60, 61))
    assert [item and item.module for item in attributed_by_reference(in_turn, reference)] == ["a", "b", "b", ""]


def test_branches_are_attributed_between_kernels_that_run_alone():
    """Two grouped convolutions, each on streams of its own between kernels of the trunk, as cuDNN captures them."""

    def layer(module):
        parts = ("norm", "scale", "slice", "product", "slice", "product", "sum")
        inner = {"norm": f"{module}.norm", "scale": f"{module}.norm", "sum": module}
        return [known(name, inner.get(name, f"{module}.conv")) for name in parts]

    def known(name, module):
        place = next(count)
        return KernelAttribution(
            GpuWork(name, "kernel", place, place + 1, 0, 1, None, 7), "conv", "aten::conv1d", module, 4, 8
        )

    def replayed(begin, names, beside=0.0):
        spans = {
            "norm": (7, 0, 1 + beside),
            "scale": (7, 1 + beside, 2 + beside),
            "slice": (20, 2, 6),
            "slice'": (21, 2.5, 5),
            "product'": (21, 5, 10),
            "product": (20, 6, 9),
            "sum": (7, 10 + beside, 11 + beside),
        }
        found = [(name.strip("'"), *spans[name]) for name in names]
        return [GpuWork(n, "kernel", begin + a, begin + b, 9, None, None, stream) for n, stream, a, b in found]

    count = itertools.count()
    reference = [*layer("a"), *layer("b")]
    whole = ("norm", "scale", "slice", "slice'", "product'", "product", "sum")
    result = attributed_by_reference([*replayed(100, whole), *replayed(111, whole)], reference)
    of_layers = [m for name in "ab" for m in (*2 * [f"{name}.norm"], *4 * [f"{name}.conv"], name)]
    assert [item and item.module for item in result] == of_layers
    # Where nothing runs alone between the two, nothing says whose the branches are.
    merged = [*replayed(100, whole[:-1]), *replayed(104, whole[:2], beside=5), *replayed(108, whole[2:])]
    result = attributed_by_reference(sorted(merged, key=attrgetter("begin")), reference)
    assert {item and item.module for item in result if item is None or item.work.name in ("slice", "product")} == {None}
    assert result[-1] is not None
    assert result[-1].module == "b"


def test_work_that_a_replay_splits_otherwise_keeps_its_submodule_and_no_sizes():
    reference = [
        KernelAttribution(GpuWork("product", "kernel", 0, 9, 0, 1, None, 7), "gemm", "aten::mm", "a", 4, 1000, 1000)
    ]
    split = [GpuWork("product", "kernel", begin, begin + 3, 9, None, None, 7) for begin in (0, 1, 2)]
    result = attributed_by_reference(split, reference)
    assert [item and (item.module, item.bytes, item.flops) for item in result] == 3 * [("a", None, None)]


def test_operators_that_a_compiler_keeps_keep_their_submodule():
    eager, fused = attributions("net.eager_hooks"), attributions("net.compile")
    found = with_eager_modules(fused, eager)
    products = {item.module for item in eager if item.flops is not None}
    assert {item.module for item in found if item.flops is not None} == products
    assert all(item.module is None for item in found if item.work.name.startswith("triton_"))
    kept = sum(item.work.length for item in found if item.module is not None)
    assert kept > 0.7 * sum(item.work.length for item in found)
    named = [(item.kind, item.flops, item.module) for item in found if item.flops is not None]
    assert named == [(item.kind, item.flops, item.module) for item in eager if item.flops is not None]


def test_products_that_a_library_launches_as_several_kernels_are_anchors_too():
    """In float32 cuBLAS scales, multiplies and adds the bias in kernels of their own, and others when compiled."""
    eager, fused = attributions("float32.eager"), attributions("float32.compile")
    products = list(dict.fromkeys(item.work.operator for item in eager if item.operator == "aten::addmm"))
    layers = ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head")
    paths = dict(zip(products, layers, strict=True))
    known = [replace(item, module=paths.get(item.work.operator, "")) for item in eager]
    found = with_eager_modules(fused, known)
    by_module = {}
    for item in found:
        by_module.setdefault(item.module, []).append(item)
    assert list(by_module) == [None, *layers], "in the order of the network"
    assert [len(by_module[layer]) for layer in layers] == [1, 2, 1, 2, 4]
    assert all(item.operator.startswith("triton_") for item in by_module[None])


def test_another_number_of_products_of_one_size_leaves_them_open():
    eager, fused = attributions("net.eager_hooks"), attributions("net.compile")
    first = next(place for place, item in enumerate(eager) if item.module == "blocks.0.qkv")
    fewer = (*eager[:first], *eager[first + 1 :])
    pairs = zip(with_eager_modules(fused, eager), with_eager_modules(fused, fewer), strict=True)
    open_now = [before for before, after in pairs if before.module and not after.module]
    assert {item.module for item in open_now} == {f"blocks.{n}.qkv" for n in range(3)}


def test_custom_operators_are_anchors():
    def events(name):
        return [
            span(0, 100, "c/v/trace/0"),
            span(1, 90, "module: ring"),
            operator(10, 20, "models::attend", 5),
            host(12, 13, correlation=1),
            {**work(20, 30, correlation=1, name=name), "args": {"correlation": 1, "External id": 5}},
        ]

    eager, fused = known_of(events("_attend")), known_of(events("_attend"))
    assert [item.module for item in with_eager_modules(fused, eager)] == ["ring"]


LAYER = tuple("abcdea")


def pairs(names, known):
    return {(place, other) for place, other in enumerate(aligned(tuple(names), tuple(known))) if other is not None}


def test_equal_sequences():
    assert aligned(LAYER, LAYER) == tuple(range(6))


def test_names_before_and_after_have_no_counterpart():
    assert aligned(("copy", *LAYER, "clone"), LAYER) == (None, *range(6), None)


@pytest.mark.parametrize("layer", range(4))
def test_a_layer_that_chose_another_kernel_does_not_shift_the_others(layer):
    known = list(LAYER * 4)
    names = ["copy", *known, "clone"]
    names[1 + 6 * layer + 2] = "other"
    expected = {(place + 1, place) for place in range(24)} - {(1 + 6 * layer + 2, 6 * layer + 2)}
    assert pairs(names, known) == expected


def test_a_kernel_more_in_every_layer():
    split = (*LAYER[:3], "reduce", *LAYER[3:])
    found = pairs(split * 4, LAYER * 4)
    assert found == {(7 * n + place + (place > 2), 6 * n + place) for n in range(4) for place in range(6)}


def test_places_rise():
    places = [place for place in aligned((*LAYER * 3, "x", *LAYER), LAYER * 5) if place is not None]
    assert len(places) == 24
    assert places == sorted(set(places))


def test_nothing_in_common():
    assert aligned(tuple("xyz"), LAYER) == (None, None, None)
    assert aligned((), LAYER) == ()
    assert aligned(LAYER, ()) == (None,) * 6


def test_too_much_to_align_is_left_alone():
    names = tuple(f"k{number % 7}" for number in range(8000))
    assert set(aligned(names, (*names[:-1], "x"))) == {None}


def test_every_backward_node_belongs_to_its_forward_submodule():
    planted = component(Stack())
    planted.module.train()
    trace = short_trace(
        lambda: planted.call().square().sum().backward(),
        torch.device("cpu"),
        lambda: module_spans(planted.module),
        cell=("planted", "baseline"),
    )
    backward = BackwardModules(trace, parents_of(trace.operators))
    nodes = [operator for operator in trace.operators if operator.name.endswith("Backward0")]
    found = [(node.name, backward.of(node)) for node in nodes if not node.name.startswith("autograd::")]
    assert [module for name, module in found if name == "AddmmBackward0"] == [
        "head",
        "blocks.1.down",
        "blocks.1.up",
        "blocks.0.down",
        "blocks.0.up",
    ]
    assert [module for name, module in found if name == "GeluBackward0"] == ["blocks.1", "blocks.0"]
    assert [module for name, module in found if name == "SoftmaxBackward0"] == [""]
    assert [module for name, module in found if name in ("PowBackward0", "SumBackward0")] == [None, None]
    products = [operator for operator in trace.operators if operator.name == "aten::mm"]
    assert {backward.of(product) for product in products} >= {"head", "blocks.0.down", "blocks.1.up"}
    forward = [operator for operator in trace.operators if operator.name == "aten::addmm"]
    assert {backward.of(product) for product in forward} == {None}


def test_kernels_of_another_thread_follow_their_node():
    def numbered(begin, end, name, number, sequence, *, thread, forward):
        arguments = {"External id": number, "Sequence number": sequence, "Fwd thread id": forward}
        return {**span(begin, end, name), "cat": "cpu_op", "tid": thread, "args": arguments}

    def launched(at, operator, thread):
        kernel = work(at + 1, at + 2, correlation=at)
        kernel["args"]["External id"] = operator
        return [{**host(at, at + 1, correlation=at), "tid": thread}, kernel]

    events = [
        span(0, 100, "c/v/trace/0"),
        span(1, 90, "module: "),
        span(2, 20, "module: up"),
        numbered(3, 19, "aten::addmm", 1, 7, thread=1, forward=0),
        *launched(4, 1, 1),
        numbered(30, 40, "AddmmBackward0", 2, 7, thread=2, forward=1),
        {**span(31, 39, "aten::mm"), "cat": "cpu_op", "tid": 2, "args": {"External id": 3}},
        *launched(32, 3, 2),
        {**span(41, 45, "torch::autograd::AccumulateGrad"), "cat": "cpu_op", "tid": 2, "args": {"External id": 4}},
        *launched(42, 4, 2),
    ]
    trace = timeline(events)
    found = Attributor(trace, OperatorCosts()).of(traced_calls(trace)[0])
    assert [item.module for item in found] == ["up", "up", None]
