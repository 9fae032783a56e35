"""Rows of kernels, classes and submodules, and the section that they make."""

from pathlib import Path

import pytest
from hand_made_events import piece
from stored_traces import NAMES, stored

from profiling.run.trace_passes import costs
from profiling.trace.analysis import Traces, class_rows, inside_of, kernel_rows, on_host
from profiling.trace.attribution import Witness
from profiling.trace.events import Stretch, Timeline
from profiling.trace.modules import module_rows, own_times

EMPTY = Timeline((), (), (), (), (), ())


def section(name, **beside):
    found = inside_of(Traces(stored(name), "here", "there", **beside), costs(), Path("/nowhere"))
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_section_adds_up(name):
    found = section(name)
    assert found["busy_ms"] + found["idle_ms"] == pytest.approx(found["span_ms"], rel=0.01)
    assert found["idle"]["host_ms"] + found["idle"]["between_ms"] == pytest.approx(found["idle_ms"])
    for rows in (found["kernels"], found["classes"]):
        assert sum(row["ms"] for row in rows) == pytest.approx(found["kernel_ms"])
        assert sum(row["count"] for row in rows) == pytest.approx(found["count"])
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
    assert found["unattributed_ms"] == pytest.approx(found["kernel_ms"] if "hooks" not in name else 0)
    assert ("modules" in found) == ("hooks" in name)


def test_frames_of_a_call_that_is_traced_in_one_piece_share_it():
    """A loop whose frames overlap is one call of the tracer: of its frames everything is a mean."""
    whole = section("faulty.eager_hooks")
    traces = Traces(stored("faulty.eager_hooks"), "here", "there")
    part = inside_of(traces, costs(), Path("/nowhere"), parts=4)
    assert part["calls"] == 4 * whole["calls"]
    for key in ("span_ms", "busy_ms", "idle_ms", "kernel_ms", "count"):
        assert part[key] == pytest.approx(whole[key] / 4), key
    for rows in ("kernels", "classes", "modules", "waits", "copies"):
        for mine, all_of_it in zip(part[rows], whole[rows], strict=True):
            for key in ("ms", "count", "own_ms", "host_ms", "bytes"):
                if key in all_of_it:
                    assert mine[key] == pytest.approx(all_of_it[key] / 4), (rows, key)
            for key in ("share", "mean_us", "gbps", "tflops"):
                assert mine.get(key) == pytest.approx(all_of_it.get(key)), (rows, key)


def test_a_replay_with_its_reference():
    plain, found = section("net.graph"), section("net.graph", reference=stored("net.eager_hooks"))
    assert found["kernel_ms"] == plain["kernel_ms"]
    assert found["unattributed_ms"] == 0
    whole = {row["path"]: row for row in found["modules"]}
    assert whole[""]["ms"] == pytest.approx(found["kernel_ms"])
    assert sum(row["own_ms"] for row in found["modules"]) == pytest.approx(found["kernel_ms"])
    assert whole["blocks"]["ms"] == pytest.approx(sum(whole[f"blocks.{n}"]["ms"] for n in range(3)))
    assert whole["blocks"]["own_ms"] == 0
    assert [row["path"] for row in found["modules"]][:4] == ["", "blocks", "blocks.0", "blocks.0.norm"]
    gemm = next(row for row in found["kernels"] if row["class"] == "gemm")
    assert gemm["tflops"] > 0
    assert "tflops" not in next(row for row in plain["kernels"] if row["class"] == "gemm")


def test_a_compiled_replay_with_both():
    found = section("net.compile_graph", reference=stored("net.compile"), eager=stored("net.eager_hooks"))
    attributed = next(row for row in found["modules"] if row["path"] == "")["ms"]
    assert attributed + found["unattributed_ms"] == pytest.approx(found["kernel_ms"])
    assert 0.7 < attributed / found["kernel_ms"] < 0.9
    assert "blocks.0.norm" not in {row["path"] for row in found["modules"]}  # fused away: not known, and not 0


def test_nothing_on_a_device_is_no_section():
    assert inside_of(Traces(EMPTY, "", ""), costs(), Path()) is None
    assert on_host(EMPTY) is None


def test_rates_are_over_what_is_known():
    known = Witness(piece(0, 10, 1), "gemm", bytes=30_000, flops=2_000_000)
    unknown = Witness(piece(20, 26, 2), "gemm")
    (row,) = kernel_rows([[known, unknown]])
    assert row["mean_us"] == 8
    assert row["gbps"] == pytest.approx(3)
    assert row["tflops"] == pytest.approx(0.2)
    longer = Witness(piece(20, 40, 2), "gemm")
    (row,) = kernel_rows([[known, longer]])
    assert not {"gbps", "tflops"} & set(row)  # most of its time is not known


def test_a_name_has_one_class():
    calls = [[Witness(piece(0, 10, 1), "conv"), Witness(piece(10, 12, 2), "copy")]]
    rows = kernel_rows(calls)
    assert [(row["class"], row["count"]) for row in rows] == [("conv", 2)]
    assert [row["class"] for row in class_rows(rows)] == ["conv"]


def test_parents_hold_what_their_children_took():
    order = ["", "b", "b.1", "b.0", "a.x", "c"]
    pieces = [("b", 1e3), ("b.1", 2e3), ("b.1", 2e3), ("a.x", 4e3), ("", 8e3), (None, 16e3), ("unseen", 32e3)]
    rows, unattributed = module_rows(pieces, 2, order)
    assert unattributed == 24
    assert [(row["path"], row["ms"], row["own_ms"], row["count"]) for row in rows] == [
        ("", 8.5, 4, 2.5),
        ("b", 2.5, 0.5, 1.5),
        ("b.1", 2, 2, 1),
        ("a", 2, 0, 0.5),
        ("a.x", 2, 2, 0.5),
    ]


def test_own_time_is_without_what_ran_inside():
    row = (1, 1)
    spans = [
        Stretch("module: ", 0, 100, row),
        Stretch("module: a", 10, 40, row),
        Stretch("module: a.b", 20, 30, row),
        Stretch("module: c", 50, 55, row),
    ]
    assert own_times(spans) == [("", 65), ("a", 20), ("a.b", 10), ("c", 5)]
