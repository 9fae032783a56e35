"""Which submodule work belongs to: from spans, through a replay, and through a compiler."""

import itertools
from collections import Counter
from dataclasses import replace
from operator import attrgetter

import pytest
from hand_made_events import host, operator, span, work
from stored_traces import calls_of, stored, witnesses

from profiling.trace.attribution import Witness, Witnesses, anchored, told_by
from profiling.trace.events import Work, timeline, traced_calls


def known_of(events):
    trace = timeline(events)
    return Witnesses(trace, lambda operator: (None, None)).of(traced_calls(trace)[0])


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
    found = modules_of(witnesses("net.eager_hooks"))
    block = {f"blocks.{n}.{part}": 1 for n in range(3) for part in ("qkv", "out", "up", "down")}
    norms = {f"blocks.{n}.norm": 2 for n in range(3)}
    own = {f"blocks.{n}": 5 for n in range(3)}  # attention with its fill, two additions, the activation
    assert found == {**block, **norms, **own, "head": 1, "conv": 5, "": 3}


def test_a_replay_takes_everything_from_the_step_before_its_capture():
    reference = witnesses("net.eager_hooks")
    for call in calls_of("net.graph"):
        told = told_by(reference, call.work)
        assert None not in told
        assert modules_of(told) == modules_of(reference)
        assert [item.work for item in told] == list(call.work)  # the times stay the replay's own
        assert [item.flops for item in told] == [item.flops for item in reference]


def test_copies_around_a_replay_have_no_counterpart():
    reference = witnesses("world_model_step.baseline")
    call = calls_of("world_model_step.cuda_graph")[0]
    told = told_by(reference, call.work)
    assert len(call.work) - len(reference) == 4
    assert [place for place, item in enumerate(told) if item is None] == [0, 1, 349, 350]


def test_a_kernel_that_the_replay_chose_otherwise_is_nobodys():
    reference = witnesses("net.eager_hooks")
    other = [
        replace(item, name="another") if place == 7 else item
        for place, item in enumerate(calls_of("net.graph")[0].work)
    ]
    told = told_by(reference, other)
    assert [place for place, item in enumerate(told) if item is None] == [7]
    assert [item.module for item in told if item] == [item.module for item in reference if item is not reference[7]]


def test_branches_of_a_replay_that_run_side_by_side_are_not_mixed_up():
    """The order in which they begin is chance: `norm` is in both branches, `product` in one, `sum` after both."""

    def known(name, module, begin):
        return Witness(Work(name, "kernel", begin, begin + 1, 0, 1, None), "gemm", "aten::mm", module, None, 8)

    reference = [known("norm", "a", 0), known("norm", "b", 1), known("product", "b", 2), known("sum", "", 3)]

    def replayed(*stretches):
        return [Work(name, "kernel", begin, end, 9, None, None) for name, begin, end in stretches]

    beside = replayed(("norm", 0, 200), ("norm", 1, 20), ("product", 21, 40), ("sum", 201, 202))
    assert [item and item.module for item in told_by(reference, beside)] == [None, None, "b", ""]
    in_turn = replayed(("norm", 0, 20), ("norm", 20, 40), ("product", 40, 60), ("sum", 60, 61))
    assert [item and item.module for item in told_by(reference, in_turn)] == ["a", "b", "b", ""]


def test_branches_between_what_runs_alone_belong_to_what_lies_there():
    """Two grouped convolutions, each on streams of its own between kernels of the trunk, as cuDNN captures them."""

    def layer(module):
        parts = ("norm", "scale", "slice", "product", "slice", "product", "sum")
        inner = {"norm": f"{module}.norm", "scale": f"{module}.norm", "sum": module}
        return [known(name, inner.get(name, f"{module}.conv")) for name in parts]

    def known(name, module):
        place = next(count)
        return Witness(Work(name, "kernel", place, place + 1, 0, 1, None, 7), "conv", "aten::conv1d", module, 4, 8)

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
        return [Work(n, "kernel", begin + a, begin + b, 9, None, None, stream) for n, stream, a, b in found]

    count = itertools.count()
    reference = [*layer("a"), *layer("b")]
    whole = ("norm", "scale", "slice", "slice'", "product'", "product", "sum")
    told = told_by(reference, [*replayed(100, whole), *replayed(111, whole)])
    of_layers = [m for name in "ab" for m in (*2 * [f"{name}.norm"], *4 * [f"{name}.conv"], name)]
    assert [item and item.module for item in told] == of_layers
    # Where nothing runs alone between the two, nothing says whose the branches are.
    merged = [*replayed(100, whole[:-1]), *replayed(104, whole[:2], beside=5), *replayed(108, whole[2:])]
    told = told_by(reference, sorted(merged, key=attrgetter("begin")))
    assert {item and item.module for item in told if item is None or item.work.name in ("slice", "product")} == {None}
    assert told[-1] is not None
    assert told[-1].module == "b"


def test_work_that_a_replay_splits_otherwise_keeps_its_submodule_and_no_sizes():
    reference = [Witness(Work("product", "kernel", 0, 9, 0, 1, None, 7), "gemm", "aten::mm", "a", 4, 1000, 1000)]
    split = [Work("product", "kernel", begin, begin + 3, 9, None, None, 7) for begin in (0, 1, 2)]
    told = told_by(reference, split)
    assert [item and (item.module, item.bytes, item.flops) for item in told] == 3 * [("a", None, None)]


def test_what_a_compiler_leaves_whole_keeps_its_submodule():
    eager, fused = witnesses("net.eager_hooks"), witnesses("net.compile")
    found = anchored(fused, eager)
    products = {item.module for item in eager if item.flops is not None}
    assert {item.module for item in found if item.flops is not None} == products
    assert all(item.module is None for item in found if item.work.name.startswith("triton_"))
    kept = sum(item.work.length for item in found if item.module is not None)
    assert kept > 0.7 * sum(item.work.length for item in found)
    named = [(item.kind, item.flops, item.module) for item in found if item.flops is not None]
    assert named == [(item.kind, item.flops, item.module) for item in eager if item.flops is not None]


def test_products_that_a_library_launches_as_several_kernels_are_anchors_too():
    """In float32 cuBLAS scales, multiplies and adds the bias in kernels of their own, and others when compiled."""
    eager, fused = witnesses("float32.eager"), witnesses("float32.compile")
    products = list(dict.fromkeys(item.work.operator for item in eager if item.operator == "aten::addmm"))
    layers = ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head")
    paths = dict(zip(products, layers, strict=True))
    known = [replace(item, module=paths.get(item.work.operator, "")) for item in eager]
    found = anchored(fused, known)
    by_module = {}
    for item in found:
        by_module.setdefault(item.module, []).append(item)
    assert list(by_module) == [None, *layers], "in the order of the network"
    assert [len(by_module[layer]) for layer in layers] == [1, 2, 1, 2, 4]
    assert all(item.operator.startswith("triton_") for item in by_module[None])


def test_another_number_of_products_of_one_size_leaves_them_open():
    eager, fused = witnesses("net.eager_hooks"), witnesses("net.compile")
    first = next(place for place, item in enumerate(eager) if item.module == "blocks.0.qkv")
    fewer = (*eager[:first], *eager[first + 1 :])
    open_now = [
        a for a, b in zip(anchored(fused, eager), anchored(fused, fewer), strict=True) if a.module and not b.module
    ]
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
    assert [item.module for item in anchored(fused, eager)] == ["ring"]


@pytest.mark.parametrize("name", ["net.eager", "net.graph", "world_model_step.cuda_graph"])
def test_calls_of_a_trace_have_the_same_work(name):
    first, *rest = calls_of(name)
    assert rest
    for call in rest:
        assert [work.name for work in call.work] == [work.name for work in first.work]
    assert sum(len(call.work) for call in (first, *rest)) == len(stored(name).work)


def test_spans_of_a_users_own_are_no_traced_calls():
    launch, kernel = host(12, 13, correlation=1), work(20, 30, correlation=1)
    for begin, end in ((1, 90), (200, 300)):
        trace = timeline([span(0, 100, "c/v/trace/0"), span(begin, end, "mine/trace/7"), launch, kernel])
        assert [call.name for call in trace.calls] == ["c/v/trace/0"]
    nested = timeline([span(0, 100, "c/v/trace/0"), span(1, 90, "my/own/trace/7"), launch, kernel])
    assert [len(call.work) for call in traced_calls(nested)] == [1]


@pytest.mark.parametrize("fault", [{"args": None}, {"dur": float("nan")}, {"dur": -3.0}, {"dur": "long"}])
def test_damaged_events_cost_only_themselves(fault):
    sound = [span(0, 100, "c/v/trace/0"), host(12, 13, correlation=1), work(20, 30, correlation=1)]
    (call,) = traced_calls(timeline([*sound, {**work(40, 50, correlation=1), **fault}, {**host(14, 15), **fault}]))
    assert call.work[0].length == 10
    assert all(item.length >= 0 for item in call.work)
