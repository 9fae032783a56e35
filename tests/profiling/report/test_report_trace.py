"""What a trace says about a call, as lines, tables and charts: known numbers in, known text and sums out."""

import pytest
from hand_traced import CEILINGS, many, module, trace
from report_records import MIB, build, run_data, titled

from profiling.report.render import run_report
from profiling.report.trace import folded, trace_section

BUSY = "GPU time of a call, busy and idle"
KERNELS, MODULES = "Kernels by total time", "Time by submodule"
BUS = "Waits of the host, and copies between host and device"
COUNTERS = "Hardware counters of the longest kernels"


def traced(variant="baseline", section=None, **changes):
    return build(variant, 2.0, trace_analysis=section or trace(), **changes)


def tables(*records, environment=None):
    return titled(trace_section(run_data(*records, environment=environment or {"ceilings": CEILINGS})))


def notes(title, record):
    (found,) = (table.notes for table in trace_section(run_data(record)).tables if table.title == title)
    return list(found)


def column(rows, header):
    return [row[header] for row in rows]


def test_the_tables_of_a_call():
    found = tables(traced())
    values = {title: [list(row.values())[2:] for row in rows] for title, rows in found.items()}
    assert values[BUSY] == [["15", "1.600", "1.480", "0.02000", "0.1000"]]
    name, *known = values[KERNELS][0]
    assert name == "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
    assert known == ["gemm", "8", "100", "0.8000", "53%", "3300", "75%", "6.600", "0.8%"]
    assert column(found[KERNELS], "of the bandwidth") == ["75%", "–", "110%", "–"], "a bus has another ceiling"
    assert column(found[KERNELS], "of the FLOP ceiling") == ["0.8%", "25%", "–", "–"]
    assert values[MODULES] == [
        ["(the whole component)", "14", "1.450", "97%", "0.05000"],
        ["blocks.* (2)", "10", "1.100", "73%", "0.3000"],
        ["blocks.*.attn (2)", "8", "0.8000", "53%", "0.8000"],
        ["head", "3", "0.3000", "20%", "0.3000"],
        ["not attributable", "–", "0.05000", "–", "0.05000"],
    ]
    assert values[BUS] == [
        ["cudaStreamSynchronize", "models/net.py:12", "x.item()", "1", "0.3000", "–"],
        ["device to pageable host", "models/net.py:12", "–", "1", "0.1000", "0.50"],
    ]
    assert COUNTERS not in found
    other = tables(traced(dtype="float32"))[KERNELS]
    assert "of the FLOP ceiling" not in other[0], "ceilings of another dtype are none"
    assert "of the bandwidth" not in tables(traced(), environment={"seed": 0})[KERNELS][0]


def test_what_there_is_no_room_for_is_added_up():
    found = tables(*(traced(f"v{i}", many(40, 30)) for i in range(20)))
    kernels, modules = ([row for row in found[title] if row["variant"] == "v0"] for title in (KERNELS, MODULES))
    assert len(kernels) == 13
    rest = [kernels[-1][key] for key in ("kernel", "count", "total ms", "share of kernel time")]
    assert rest == ["and 28 more", "28", "0.02800", "70%"]
    assert sum(float(row["total ms"]) for row in kernels) == pytest.approx(0.04)
    assert modules[-1]["module"] == "and 11 more"
    assert sum(float(row["self ms"]) for row in modules) == pytest.approx(0.04, rel=1e-3)
    assert "and" not in str(column(tables(traced(section=many(40, 30)))[KERNELS], "kernel")), "few cells have more rows"


def test_operators_of_a_cpu_stand_where_kernels_do():
    operators = [
        {"name": "aten::addmm", "class": "operator", "ms": 1.5, "share": 0.5, "count": 26.0, "mean_us": 57.7},
        {"name": "Torch-Compiled Region: 0/0", "class": "operator", "ms": 0.9, "share": 0.3, "count": 1.0},
    ]
    record = traced(section={"calls": 5, "kernels": operators, "modules_from": "fused"})
    assert column(tables(record)[KERNELS], "total ms") == ["1.500", "0.9000"]
    (note,) = notes(KERNELS, record)
    assert note.startswith("On a CPU: operators"), "and nothing of the ceilings of a GPU"


def test_numbers_are_folded_only_where_the_submodules_are_the_same():
    same = ["", "h", "h.0", "h.0.a", "h.0.b.0", "h.0.b.1", "h.1", "h.1.a", "h.1.b.0", "h.1.b.1"]
    assert folded(same)["h.1.b.0"] == "h.*.b.0", "layers of a sequence may be anything, and keep their numbers"
    assert folded(same)["h.0"] == folded(same)["h.1"] == "h.*"
    for different in ([*same, "h.1.c"], ["h.0", "h.0.a"]):
        assert folded(different) == {path: path for path in different}
    nested = ["u.0.r.0.a", "u.0.r.1.a", "u.1.r.0.a", "u.1.r.1.a"]
    assert set(folded(nested).values()) == {"u.*.r.*.a"}


def test_what_is_not_attributable_says_why_and_modules_may_stand_alone():
    lost = trace(unattributed_ms=1.5, modules_from="not attributable: fusion hides it", modules=[])
    record = traced("compile", lost)
    row = tables(record)[MODULES][0]
    assert (row["module"], row["self ms"]) == ("not attributable", "1.500")
    assert "Submodules: not attributable: fusion hides it (world_model.compile)" in notes(MODULES, record)
    alone = traced(section={"modules": [module("", 1.5, 1.5, 1.0)], "modules_from": "spans on the host"})
    assert list(tables(alone)) == [MODULES], "no device was traced"
    assert not trace_section(run_data(build("baseline", 2.0)))


def test_hardware_counters_of_kernels_with_both_bounds():
    bandwidth, neither = ({"bound_by_trace": bound} for bound in ("memory bandwidth", "neither"))
    kernels = [
        {
            **{"name": "nvjet_tst", "ms": 0.6, "share": 0.6, "launches": 3, "counted_us": 31.0, "mean_us": 30.0},
            **{"dram": 0.85, "dram_bytes": 2**20, "l2": 0.4, "tensor": 0.1, "sm": 0.2, "occupancy": 0.125},
            **{"l2_bytes": 2**21, "bound_by_counters": "memory bandwidth", **bandwidth},
        },
        {"name": "norm", "ms": 0.2, "share": 0.2, "launches": 1, "bound_by_counters": "compute", **neither},
        {"name": "not_met", "ms": 0.2, "share": 0.2, "launches": 0, **neither},
    ]
    counted = traced(hardware_counters={"file": "counters/world_model.baseline.csv", "kernels": kernels})
    first, second, third = (list(row.values()) for row in tables(counted)[COUNTERS])
    assert first[2:] == [
        *("nvjet_tst", "0.6000", "60%", "30.0", "31.0", "85%", "40%", "10%", "20%", "12%"),
        *("memory bandwidth", "memory bandwidth"),
    ]
    assert (second[-2:], third[-2:]) == (["compute", "neither"], ["–", "neither"])


def test_fifteen_cells_with_many_kernels_and_modules_fit_the_page():
    records = [traced(f"variant_{i}", many(300, 800)) for i in range(15)]
    page = run_report(run_data(*records, environment={"ceilings": CEILINGS})).page()
    assert len(page.encode()) <= 1.5 * MIB
