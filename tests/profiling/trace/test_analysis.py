"""The trace analysis: it adds up, and kernels, classes and submodules have the times of hand-made and stored traces."""

from dataclasses import replace
from pathlib import Path

import pytest
from hand_made_events import launch, operator, piece, span
from stored_traces import NAMES, stored

from profiling.trace.analysis import (
    Traces,
    analyze_host_trace,
    analyze_trace,
    gpu_time,
    kernel_classes,
    kernels_by_name,
    self_times,
)
from profiling.trace.attribution import KernelAttribution
from profiling.trace.events import Span, Timeline, timeline
from profiling.trace.modules import module_times


def analysis(name, parts=1, **beside):
    return analyze_trace(Traces(stored(name), "here", **beside), Path("/nowhere"), parts=parts)


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_adds_up(name):
    found = analysis(name)
    assert found.busy_ms + found.idle.host_ms + found.idle.between_ms == pytest.approx(found.span_ms, rel=0.01)
    for rows in (found.kernels, found.classes):
        assert sum(row.ms for row in rows) == pytest.approx(found.kernel_ms)
        assert sum(row.count for row in rows) == pytest.approx(found.count)
        assert sum(row.share for row in rows) == pytest.approx(1)
        assert [row.ms for row in rows] == sorted((row.ms for row in rows), reverse=True)
    assert found.unattributed_ms == pytest.approx(found.kernel_ms if "hooks" not in name else 0)
    assert bool(found.modules) == ("hooks" in name)


def test_a_replay_with_its_reference():
    plain, found = analysis("net.graph"), analysis("net.graph", reference=stored("net.eager_hooks"))
    assert found.kernel_ms == plain.kernel_ms
    assert found.unattributed_ms == 0
    modules = {module.path: module for module in found.modules}
    assert modules[""].ms == pytest.approx(found.kernel_ms)
    assert sum(module.self_ms for module in found.modules) == pytest.approx(found.kernel_ms)
    assert modules["blocks"].ms == pytest.approx(sum(modules[f"blocks.{n}"].ms for n in range(3)))
    assert modules["blocks"].self_ms == 0
    assert [module.path for module in found.modules][:4] == ["", "blocks", "blocks.0", "blocks.0.norm"]
    assert next(kernel for kernel in found.kernels if kernel.kind == "gemm").tflops > 0
    assert next(kernel for kernel in plain.kernels if kernel.kind == "gemm").tflops is None


def test_kernels_in_another_order_than_the_reference_are_counted():
    found = analysis("net.graph", reference=stored("net.compile"))
    assert found.unattributed_ms == pytest.approx(found.kernel_ms)
    assert found.modules_from == "here; 42 kernels of a call run in another order than there, so they belong to none"


def test_frames_of_one_traced_call_share_it():
    """Overlapping frames of a loop are traced as one call: every number is the mean of a frame."""
    whole, part = analysis("faulty.eager_hooks"), analysis("faulty.eager_hooks", parts=4)
    assert part.calls == 4 * whole.calls
    rows = ("kernels", "classes", "modules", "waits", "copies")
    pairs = [
        (part, whole),
        *(pair for name in rows for pair in zip(getattr(part, name), getattr(whole, name), strict=True)),
    ]
    for mine, all_of_it in pairs:
        for key in ("span_ms", "busy_ms", "kernel_ms", "ms", "count", "self_ms", "bytes"):
            if (value := getattr(all_of_it, key, None)) is not None:
                assert getattr(mine, key) == pytest.approx(value / 4), (mine, key)
        for key in ("share", "mean_us", "gbps", "tflops"):
            assert getattr(mine, key, None) == pytest.approx(getattr(all_of_it, key, None)), (mine, key)


def test_without_gpu_work_there_is_no_analysis():
    empty = Timeline((), (), (), (), (), ())
    assert analyze_trace(Traces(empty, ""), Path()) is None
    assert analyze_host_trace(empty, None, "nothing") is None


def test_on_a_cpu_operators_have_their_self_time_and_submodules_add_up_to_the_call():
    call = [span(at, at + 1000, "net/baseline/trace/0") for at in (0, 2000)]
    operators = [
        *(operator(at + 100, at + 700, "aten::linear", 1) for at in (0, 2000)),
        *(operator(at + 200, at + 600, "aten::addmm", 2) for at in (0, 2000)),
        operator(5000, 6000, "aten::outside_of_every_call", 3),
    ]
    modules = ((50, 900, "module: "), (100, 700, "module: head"))
    spans = [span(at + begin, at + end, name) for at in (0, 2000) for begin, end, name in modules]
    found = analyze_host_trace(timeline([*call, *operators]), timeline([*call, *spans]), "hooks")
    assert [(each.name, each.ms, each.count, each.share) for each in found.kernels] == [
        ("aten::addmm", 0.4, 1, 0.4),
        ("aten::linear", pytest.approx(0.2), 1, pytest.approx(0.2)),
    ]
    assert [(each.path, each.self_ms) for each in found.modules] == [("", pytest.approx(0.25)), ("head", 0.6)]
    assert found.unattributed_ms == pytest.approx(0.15)
    assert sum(each.self_ms for each in found.modules) + found.unattributed_ms == pytest.approx(1.0)


def test_a_name_has_one_class_and_rates_over_what_is_known():
    known = KernelAttribution(piece(0, 10, 1), "gemm", bytes=30_000, flops=2_000_000)
    (row,) = kernels_by_name([[known, KernelAttribution(piece(20, 26, 2), "copy")]])
    assert (row.kind, row.count, row.mean_us) == ("gemm", 2, 8)
    assert (row.gbps, row.tflops) == (pytest.approx(3), pytest.approx(0.2))
    assert [each.kind for each in kernel_classes([row])] == ["gemm"]
    (row,) = kernels_by_name([[known, KernelAttribution(piece(20, 40, 2), "gemm")]])
    assert (row.gbps, row.tflops) == (None, None), "most of its time is not known"
    names = [200 * "k" + end for end in "ab"]  # of which a record holds the same
    long = [KernelAttribution(replace(piece(0, 10, 1), name=name), "gemm") for name in names]
    (row,) = kernels_by_name([long])
    assert (row.name, row.count, row.ms) == (200 * "k", 2, 0.02)


def test_parents_hold_the_times_of_their_children():
    order = ["", "b", "b.1", "b.0", "a.x", "c"]
    times = [("b", 1e3), ("b.1", 2e3), ("b.1", 2e3), ("a.x", 4e3), ("", 8e3), (None, 16e3), ("unseen", 32e3)]
    modules, unattributed_ms = module_times(times, 2, order)
    assert unattributed_ms == 24
    assert [(module.path, module.ms, module.self_ms, module.count) for module in modules] == [
        ("", 8.5, 4, 2.5),
        ("b", 2.5, 0.5, 1.5),
        ("b.1", 2, 2, 1),
        ("a", 2, 0, 0.5),
        ("a.x", 2, 2, 0.5),
    ]


def test_self_time_is_without_inner_spans_and_never_negative():
    for spans, expected in (
        ([("", 0, 100, 1), ("a", 10, 40, 1), ("a.b", 20, 30, 1), ("c", 50, 55, 1)], [65, 20, 10, 5]),
        ([("a", 0, 5, 1), ("b", 5, 20, 1)], [5, 15]),  # begins when the other ends
        ([("a", 0, 5, 1), ("b", 1, 20, 2)], [5, 19]),  # of another thread
        ([("a", 0, 5, 1), ("b", 1, 5.5, 1)], [1, 4]),  # outlasts the span around it
    ):
        found = self_times([Span(f"module: {name}", begin, end, (1, row)) for name, begin, end, row in spans])
        assert found == [(name, each) for (name, *_), each in zip(spans, expected, strict=True)]


EARLY = [(-5, -4, number) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("work", "calls", "expected"),
    [
        ([(0, 10, 1), (15, 20, 2)], [(-5, -1, 1), (8, 13, 2)], (20, 5, 0)),  # launched after the GPU ran dry at 10
        ([(0, 10, 1), (15, 20, 2)], [(-5, -1, 1), (2, 9, 2)], (20, 0, 5)),  # queued before that
        # A copy, then a graph: only its first node waited for the launch, which is still returning.
        ([(0, 2, 1), (10, 12, 2), (13, 15, 2), (18, 20, 2)], [(-3, -1, 1), (4, 40, 2)], (20, 8, 4)),
        ([(0, 5, 1), (6, 10, 1), (12, 15, 2)], [(-3, -1, 1), (0, 4, 2)], (15, 0, 3)),  # a replay behind another
        # Overlapping streams are busy once.
        ([(0, 10, 1), (2, 4, 2), (8, 14, 3), (20, 21, 4)], [*EARLY, (16, 18, 4)], (21, 6, 0)),
        ([(0, 10, 1), (15, 20, 2)], [], (20, 0, 5)),  # without a launch in the trace the host is not blamed
    ],
)
def test_gaps_by_cause(work, calls, expected):
    launches = {call.correlation: call for call in (launch(*each) for each in calls)}
    assert gpu_time([replace(piece(*each), launch=launches.get(each[2])) for each in work]) == expected
