"""What a trace says about a call, as lines, tables and charts: known numbers in, known text and sums out."""

from __future__ import annotations

from typing import Any

import pytest
from hand_traced import CEILINGS, many, module, trace
from report_records import MIB, build, run_data, titled

from profiling.report.render import render_html
from profiling.report.trace import folded, trace_section
from profiling.results.record import Record

BUSY = "GPU time of a call, busy and idle"
KERNELS, MODULES = "Kernels by total time", "Time by submodule"
BUS = "Waits of the host, and copies between host and device"


def traced(variant: str = "baseline", section: dict[str, Any] | None = None, **changes: Any) -> Record:
    return build(variant, 2.0, trace_analysis=section or trace(), **changes)


def tables(*records: Record, environment: Any = None) -> dict[str, list[dict[str, str]]]:
    return titled(trace_section(run_data(*records, environment=environment or {"ceilings": CEILINGS})))


def column(rows: list[dict[str, str]], header: str) -> list[str]:
    return [row[header] for row in rows]


def test_times_of_a_wrong_cell_are_struck() -> None:
    wrong = traced("cuda_graph", status="failed", reason="parity")
    found = tables(wrong)
    assert column(found[BUSY], "span ms") == ["~~1.600~~"]
    assert column(found[KERNELS], "total ms")[0] == "~~0.8000~~"
    assert column(found[MODULES], "self ms")[0] == "~~0.05000~~"
    assert column(found[BUS], "time ms")[0] == "~~0.3000~~"


def test_busy_and_idle() -> None:
    found = tables(traced())
    assert list(found[BUSY][0].values()) == ["world_model", "baseline", "15", "1.600", "1.480", "0.02000", "0.1000"]


def test_kernels_against_the_ceilings_of_the_run() -> None:
    rows = tables(traced())[KERNELS]
    assert list(rows[0].values())[2:] == [
        *("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "gemm", "8", "100", "0.8000", "53%", "3300", "75%", "6.600", "0.8%")
    ]
    assert column(rows, "of the bandwidth") == ["75%", "–", "110%", "–"], "a copy over the bus has another ceiling"
    assert column(rows, "of the FLOP ceiling") == ["0.8%", "25%", "–", "–"]
    other = tables(traced(dtype="float32"))[KERNELS]
    assert "of the FLOP ceiling" not in other[0], "ceilings of another dtype are none"
    assert "of the bandwidth" not in tables(traced(), environment={"seed": 0})[KERNELS][0]


def test_what_there_is_no_room_for_is_added_up() -> None:
    found = tables(*(traced(f"v{i}", many(40, 30)) for i in range(20)))
    mine = [row for row in found[KERNELS] if row["variant"] == "v0"]
    assert len(mine) == 13
    assert [mine[-1][key] for key in ("kernel", "count", "total ms", "share")] == [
        "and 28 more",
        "28",
        "0.02800",
        "70%",
    ]
    assert sum(float(row["total ms"]) for row in mine) == pytest.approx(0.04)
    modules = [row for row in found[MODULES] if row["variant"] == "v0"]
    assert modules[-1]["module"] == "and 11 more"
    assert sum(float(row["self ms"]) for row in modules) == pytest.approx(0.04, rel=1e-3)
    assert "and" not in str(column(tables(traced(section=many(40, 30)))[KERNELS], "kernel")), "few cells have more rows"


def test_blocks_that_are_built_alike_are_one_row() -> None:
    assert [list(row.values())[2:] for row in tables(traced())[MODULES]] == [
        ["(the whole component)", "14", "1.450", "97%", "0.05000"],
        ["blocks.* (2)", "10", "1.100", "73%", "0.3000"],
        ["blocks.*.attn (2)", "8", "0.8000", "53%", "0.8000"],
        ["head", "3", "0.3000", "20%", "0.3000"],
        ["not attributable", "–", "0.05000", "–", "0.05000"],
    ]


def test_operators_of_a_cpu_stand_where_kernels_do() -> None:
    operators = [
        {"name": "aten::addmm", "class": "operator", "ms": 1.5, "share": 0.5, "count": 26.0, "mean_us": 57.7},
        {"name": "Torch-Compiled Region: 0/0", "class": "operator", "ms": 0.9, "share": 0.3, "count": 1.0},
    ]
    record = traced(section={"calls": 5, "kernels": operators, "modules_from": "fused"})
    rows = tables(record)[KERNELS]
    assert [row["total ms"] for row in rows] == ["1.500", "0.9000"]
    (table,) = (table for table in trace_section(run_data(record)).tables if table.title == KERNELS)
    (note,) = table.notes
    assert note.startswith("On a CPU: operators"), "and nothing of the ceilings of a GPU"


def test_numbers_are_folded_only_where_the_submodules_are_the_same() -> None:
    same = ["", "h", "h.0", "h.0.a", "h.0.b.0", "h.0.b.1", "h.1", "h.1.a", "h.1.b.0", "h.1.b.1"]
    assert folded(same)["h.1.b.0"] == "h.*.b.0", "layers of a sequence may be anything, and keep their numbers"
    assert folded(same)["h.0"] == folded(same)["h.1"] == "h.*"
    different = [*same, "h.1.c"]
    assert folded(different) == {path: path for path in different}
    alone = ["h.0", "h.0.a"]
    assert folded(alone) == {path: path for path in alone}
    nested = ["u.0.r.0.a", "u.0.r.1.a", "u.1.r.0.a", "u.1.r.1.a"]
    assert set(folded(nested).values()) == {"u.*.r.*.a"}


def test_what_is_not_attributable_says_why() -> None:
    lost = trace(unattributed_ms=1.5, modules_from="not attributable: fusion hides it", modules=[])
    record = traced("compile", lost)
    row = tables(record)[MODULES][0]
    assert (row["module"], row["self ms"]) == ("not attributable", "1.500")
    (table,) = (table for table in trace_section(run_data(record)).tables if table.title == MODULES)
    assert "Submodules: not attributable: fusion hides it (world_model.compile)" in table.notes


def test_waits_and_copies_with_their_lines() -> None:
    rows = tables(traced(), traced("compile", trace(waits=[], copies=[])))[BUS]
    assert [list(row.values())[2:] for row in rows] == [
        ["cudaStreamSynchronize", "models/net.py:12", "x.item()", "1", "0.3000", "–"],
        ["device to pageable host", "models/net.py:12", "–", "1", "0.1000", "0.50"],
    ]


def test_modules_alone_are_shown_where_no_device_was_traced() -> None:
    record = traced(section={"modules": [module("", 1.5, 1.5, 1.0)], "modules_from": "spans on the host"})
    assert trace_section(run_data(record)).lines == ()
    assert list(tables(record)) == [MODULES]
    assert not trace_section(run_data(build("baseline", 2.0)))


def test_fifteen_cells_with_many_kernels_and_modules_fit_the_page() -> None:
    records = [traced(f"variant_{i}", many(300, 800)) for i in range(15)]
    page = render_html(run_data(*records, environment={"ceilings": CEILINGS}))
    assert len(page.encode()) <= 1.5 * MIB
