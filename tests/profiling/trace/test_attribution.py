"""Attribution of GPU work to submodules: by spans, through a replay, through a compiler, in a backward pass."""

from collections import Counter
from dataclasses import replace

import pytest
from hand_made_events import host, span, work
from planted_modules import Stack, component
from stored_traces import attributions, calls_of, stored

from profiling.trace.attribution import (
    Attributor,
    KernelAttribution,
    attributed_by_reference,
    in_exact_order,
    with_eager_modules,
)
from profiling.trace.device_work import profiled
from profiling.trace.events import GpuWork, Span, innermost, timeline, traced_calls
from profiling.trace.modules import module_spans
from profiling.trace.operator_costs import OperatorCosts


def known_of(events):
    trace = timeline(events)
    return Attributor(trace, OperatorCosts()).of(traced_calls(trace)[0])


def modules_of(items):
    return Counter(item.module for item in items)


def completed(trace, reference, *, call=0):
    """The attribution of a traced call by the reference, and how many kernels have no counterpart there."""
    own = Attributor(trace, OperatorCosts()).of(traced_calls(trace)[call])
    return attributed_by_reference(own, reference)


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
    elsewhere = [{**event, "tid": 2} if event["cat"] == "cuda_runtime" else event for event in events]
    assert {item.module for item in known_of(elsewhere)} == {None}, "launched by another thread"


def test_a_span_may_outlast_the_one_that_it_begins_in():
    """A line's span begins inside the operator that opens it, which has a span of its own."""
    row = (1, 1)
    spans = [Span("opens", 10, 20, row), Span("line", 15, 90, row), Span("closes", 80, 95, row)]
    found = innermost(spans, [(moment, row) for moment in (12, 18, 50, 85, 99)])
    assert [each and each.name for each in found] == ["opens", "line", "line", "closes", None]


def test_eager_work_is_attributed_whole():
    found = modules_of(attributions("net.eager_hooks"))
    block = {f"blocks.{n}.{part}": 1 for n in range(3) for part in ("qkv", "out", "up", "down")}
    norms = {f"blocks.{n}.norm": 2 for n in range(3)}
    own = {f"blocks.{n}": 5 for n in range(3)}  # attention with its fill, two additions, the activation
    assert found == {**block, **norms, **own, "head": 1, "conv": 5, "": 3}


def test_the_helpers_of_a_convolution_have_the_bytes_of_what_they_convert():
    """An H200 counted 257, 256 and 257 MB in DRAM for input, output and input of 256 channels of 512 x 512."""
    items = attributions("main_job/image_decoder.baseline")
    largest = [item for item in items if item.arguments.get("Input Dims", [0])[0] == [1, 256, 512, 512]]
    given = [item.bytes for item in largest if "nchwToNhwc" in item.work.name]
    assert sorted(set(given)) == [2 * 2 * 256 * 16 * 9, 2 * 2 * 256 * 512 * 512], "weights and input"
    output = [item.bytes for item in largest if "nhwcToNchw" in item.work.name]
    assert output == pytest.approx([2 * 2 * 256 * 512 * 512] * 3, rel=0.001)


def test_a_convolution_with_a_kernel_for_each_of_64_groups():
    """Each kernel has its part of the work; an H200 counted 0.11 MB in DRAM as the mean of the groups' copies."""
    items = attributions("main_job/audio_decoder.baseline")
    largest = [item for item in items if item.arguments.get("Input Dims", [0])[0] == [1, 1024, 1, 5880]]
    grouped = [item for item in largest if "cutlass_tensorop" in item.work.name]
    assert len(grouped) == 64
    assert {64 * (item.flops or 0) for item in grouped} == {grouped[0].operator_flops}
    assert 64 * (grouped[0].bytes or 0) == pytest.approx(2 * (2 * 1024 * 5880 + 1024 * 16 * 7), rel=0.01)
    copies = [item.bytes for item in items if "nhwcSliceC" in item.work.name]
    assert len(copies) == 3 * 2 * 64, "of three convolutions, two for each group"
    assert sum(copies) / len(copies) == pytest.approx(0.145e6, rel=0.01)
    of_the_largest = [item.bytes for item in largest if "nhwcSliceC" in item.work.name]
    assert of_the_largest == pytest.approx([2 * 2 * 16 * 5880] * 128, rel=0.01)


def test_a_replay_takes_everything_from_the_step_before_its_capture():
    reference = attributions("net.eager_hooks")
    for place, call in enumerate(calls_of("net.graph")):
        result, unmatched = completed(stored("net.graph"), reference, call=place)
        assert unmatched == 0
        assert modules_of(result) == modules_of(reference)
        assert [item.work for item in result] == list(call.work)  # the times stay the replay's own
        assert [item.flops for item in result] == [item.flops for item in reference]
    launched_again, unmatched = completed(stored("net.eager"), reference)
    assert (unmatched, modules_of(launched_again)) == (0, modules_of(reference)), "its own trace knows the operators"


@pytest.mark.parametrize("component", ["world_model", "image_decoder", "audio_decoder"])
@pytest.mark.parametrize(("capture", "launched"), [("cuda_graph", "baseline"), ("compile_cuda_graph", "compile")])
def test_recorded_replays_have_the_exact_order_of_their_capture(component, capture, launched):
    """Traces of an H200; a graph of the audio decoder has branches on nine streams."""
    items = attributions(f"main_job/{component}.{launched}")
    reference = sorted(items, key=lambda item: item.work.launch.begin)
    result, unmatched = completed(stored(f"main_job/{component}.{capture}"), reference)
    assert unmatched == 0
    assert sum(item.flops or 0 for item in result) == sum(item.flops or 0 for item in reference)


def test_copies_around_a_replay_have_no_counterpart():
    reference = tuple(replace(item, module="") for item in attributions("world_model_step.baseline"))
    result, unmatched = completed(stored("world_model_step.cuda_graph"), reference)
    assert unmatched == 0
    assert len(result) - len(reference) == 4
    assert [place for place, item in enumerate(result) if item.module is None] == [0, 1, 349, 350]


#: Two branches side by side; the order in which they begin is chance: `norm` is in both, `sum` after both.
BRANCHES = (("norm", 0, 9, 7), ("norm", 1, 2, 8), ("product", 3, 4, 8), ("sum", 10, 11, 7))
#: On one stream. Kernels may overlap there: programmatic dependent launch begins one before the end of another.
IN_TURN = (("norm", 0, 3, 7), ("norm", 1, 5, 7), ("product", 4, 6, 7), ("sum", 5, 7, 7))
WITH_IDS = (("norm", 1, 2, 8, 1), ("product", 3, 4, 8, 2), ("norm", 0, 9, 7, 3), ("sum", 10, 11, 7, 4))


@pytest.mark.parametrize(
    ("kernels", "reference", "expected"),
    [
        (BRANCHES, "product b, norm b, norm a, sum c", [None, None, "b", "c"]),
        (BRANCHES, "product b, norm b, norm b, sum c", ["b", "b", "b", "c"]),
        (IN_TURN, "norm a, norm b, product b, sum c", ["a", "b", "b", "c"]),
        (WITH_IDS, "norm b, product b, norm a, sum c", ["a", "b", "b", "c"]),  # the order of the capture
        ([("memset32", 0, 1, 7)], "Memset a", ["a"]),  # which a replay does by a kernel
    ],
)
def test_branches_of_a_replay_are_not_mixed_up(kernels, reference, expected):
    """Kernels are (name, begin, end, stream, id of the node), the reference is in the order of launch."""
    events = [span(0, 5, "c/v/trace/0"), host(1, 2, correlation=9, name="cudaGraphLaunch")]
    for name, begin, end, stream, *node in kernels:
        event = work(begin, end, correlation=9, name=name, stream=stream)
        event["args"] |= {"graph node id": node[0]} if node else {}
        events.append(event)
    known = []
    for name, module in map(str.split, reference.split(", ")):
        kernel = GpuWork(name, "gpu_memset" if name == "Memset" else "kernel", 0, 1, 0, 1, None)
        known.append(KernelAttribution(kernel, "gemm", "aten::mm", module))
    assert [item.module for item in completed(timeline(events), known)[0]] == expected


def test_operators_that_a_compiler_keeps_keep_their_submodule_but_for_products_of_another_number():
    eager, fused = attributions("net.eager_hooks"), attributions("net.compile")
    found = with_eager_modules(fused, eager)
    assert all(item.module is None for item in found if item.work.name.startswith("triton_"))
    kept = sum(item.work.length for item in found if item.module is not None)
    assert kept > 0.7 * sum(item.work.length for item in found)
    named = [(item.kind, item.flops, item.module) for item in found if item.flops is not None]
    assert named == [(item.kind, item.flops, item.module) for item in eager if item.flops is not None]
    first = next(place for place, item in enumerate(eager) if item.module == "blocks.0.qkv")
    fewer = with_eager_modules(fused, (*eager[:first], *eager[first + 1 :]))
    open_now = {before.module for before, after in zip(found, fewer, strict=True) if before.module and not after.module}
    assert open_now == {f"blocks.{n}.qkv" for n in range(3)}
    custom = KernelAttribution(GpuWork("_attend", "kernel", 20, 30, 1, 5, None), "attention", "models::attend", "ring")
    assert [each.module for each in with_eager_modules([replace(custom, module=None)], [custom])] == ["ring"]


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


def test_only_what_the_order_decides_corresponds():
    for names, known, expected in (
        ("abc", "abc", [0, 1, 2]),
        ("abxcd", "abycd", [0, 1, None, 3, 4]),
        ("abxcd", "abcd", [0, 1, None, 2, 3]),
        ("abcd", "abxxcd", [0, 1, 4, 5]),
        ("xbcy", "abcd", [None, None, None, None]),
        ("abab", "ababab", [None, None, None, None]),  # a layer less: any of the three may be missing
        ("aa", "aaa", [None, None]),
        ("caab", "caaab", [0, None, None, 4]),
        ("", "ab", []),
        ("ab", "", [None, None]),
    ):
        assert in_exact_order(names, known) == expected, (names, known)


def test_every_backward_node_belongs_to_its_forward_submodule():
    planted = component(Stack())
    planted.module.train()
    around = {"cuda": False, "around": lambda: module_spans(planted.module)}
    trace = profiled(lambda: planted.call().square().sum().backward(), 1, **around)
    attributor = Attributor(trace, OperatorCosts())
    nodes = [operator for operator in trace.operators if operator.name.endswith("Backward0")]
    found = [(node.name, attributor.module_of(node, None)) for node in nodes if not node.name.startswith("autograd::")]
    layers = ["head", "blocks.1.down", "blocks.1.up", "blocks.0.down", "blocks.0.up"]
    assert [module for name, module in found if name == "AddmmBackward0"] == layers
    assert [module for name, module in found if name == "GeluBackward0"] == ["blocks.1", "blocks.0"]
    assert [module for name, module in found if name == "SoftmaxBackward0"] == [""]
    assert [module for name, module in found if name in ("PowBackward0", "SumBackward0")] == [None, None]
    products = [operator for operator in trace.operators if operator.name == "aten::mm"]
    assert {attributor.module_of(product, None) for product in products} >= {"head", "blocks.0.down", "blocks.1.up"}
