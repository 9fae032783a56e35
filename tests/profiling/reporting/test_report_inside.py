"""What a trace says about a call, as lines and tables: known numbers in, known text out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand_traced import CEILINGS, inside, many, module

from profiling.reporting.details import artefacts
from profiling.reporting.inside import inside_lines, inside_tables
from profiling.reporting.inside_modules import folded
from profiling.reporting.render import render_console, render_markdown
from profiling.results.records import Record

Make = Callable[..., Record]
KNOWN = {"ceilings": CEILINGS}
BUSY, CLASSES = "Device time of a call, busy and idle", "Device time by class of kernel, ms"
KERNELS, MODULES = "Kernels by total time", "Time by submodule"
BUS = "Waits of the host, and copies between host and device"


def tables(*records: Record, environment: Any = KNOWN, **most: int) -> dict[str, list[list[str]]]:
    """Return the rows below each title, the headers first."""
    return {
        title: [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in text.splitlines()
            if line.startswith("|") and not line.startswith("|--")
        ]
        for title, text in inside_tables(records, environment, **most)
    }


def column(rows: list[list[str]], header: str) -> list[str]:
    return [row[rows[0].index(header)] for row in rows[1:]]


def test_one_line_a_cell(make: Make) -> None:
    quiet = inside(waits=[], idle={}, classes=[])
    records = [make("baseline", 2.0, inside=inside()), make("compile", 2.0), make("cuda_graph", 2.0, inside=quiet)]
    assert inside_lines(records) == (
        "world_model.baseline: 15 kernels, busy 1.48 of 1.60 ms, idle 0.12 ms (waiting for the profiled host 0.02, "
        "between kernels 0.10); gemm 53%, attention 27%, pointwise 13%, copy 7%; the host waits 1 time a call "
        "(models/net.py:12)",
        "world_model.cuda_graph: 15 kernels, busy 1.48 of 1.60 ms, idle 0.12 ms",
    )


def test_the_longest_of_several_waits_is_named(make: Make) -> None:
    waits = [{"count": 1.0, "ms": 0.1, "line": "a.py:1"}, {"count": 2.0, "ms": 0.3, "line": "b.py:2"}]
    (line,) = inside_lines([make("baseline", 2.0, inside=inside(waits=waits))])
    assert line.endswith("; the host waits 3 times a call (longest at b.py:2)")


def test_times_of_a_wrong_cell_are_struck_and_not_told(parity_failed: Record, make: Make) -> None:
    wrong = make("cuda_graph", 1.0, status="failed", reason="parity", inside=inside())
    assert inside_lines([wrong]) == ()
    found = tables(wrong)
    assert column(found[BUSY], "span ms") == ["~~1.600~~"]
    assert column(found[KERNELS], "total ms")[0] == "~~0.8000~~"
    assert column(found[MODULES], "own ms")[0] == "~~0.05000~~"
    assert column(found[BUS], "ms")[0] == "~~0.3000~~"


def test_busy_and_idle_and_classes(make: Make) -> None:
    found = tables(make("baseline", 2.0, inside=inside()))
    assert found[BUSY][1] == [
        *("world_model", "baseline", "5", "15", "1.600", "1.480", "0.1200", "7.5%", "0.02000", "0.1000", "1.500")
    ]
    assert found[CLASSES] == [
        ["component", "variant", "gemm", "attention", "pointwise", "copy"],
        ["world_model", "baseline", "0.8000 (53%)", "0.4000 (27%)", "0.2000 (13%)", "0.1000 (7%)"],
    ]


def test_kernels_against_the_ceilings_of_the_run(make: Make) -> None:
    rows = tables(make("baseline", 2.0, inside=inside()))[KERNELS]
    assert rows[1] == [
        *("world_model", "baseline", r"nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "gemm", "8", "100", "0.8000", "53.3%"),
        *("3300", "75%", "6.60", "1%"),
    ]
    assert column(rows, "of the bandwidth") == ["75%", "–", "110%", "–"], "a copy over the bus has another ceiling"
    assert column(rows, "of the product rate") == ["1%", "25%", "–", "–"]


def test_a_rate_of_another_dtype_and_no_ceilings_are_no_ceiling(make: Make) -> None:
    other = tables(make("baseline", 2.0, inside=inside(), dtype="float32"))[KERNELS]
    assert "of the product rate" not in other[0]
    assert column(other, "TFLOP/s") == ["6.60", "200", "–", "–"]
    assert "of the bandwidth" not in tables(make("baseline", 2.0, inside=inside()), environment={})[KERNELS][0]


def test_what_there_is_no_room_for_is_added_up(make: Make) -> None:
    record = make("baseline", 2.0, inside=many(40, 30))
    found = tables(record, kernels=10, modules=5)
    assert found[KERNELS][-1][2:8] == ["and 30 more", "–", "30", "–", "0.03000", "75.0%"]
    shown = [float(text) for text in column(found[KERNELS], "total ms")]
    assert len(shown) == 11
    assert sum(shown) == pytest.approx(0.04)
    assert found[MODULES][-1][2:4] == ["and 26 more", "26"]
    own = [float(text) for text in column(found[MODULES], "own ms")]
    assert len(own) == 6
    assert sum(own) == pytest.approx(0.04, rel=1e-3)
    assert "and" not in str(column(tables(record, kernels=40)[KERNELS], "kernel"))


def test_blocks_that_are_built_alike_are_one_row(make: Make) -> None:
    rows = tables(make("baseline", 2.0, inside=inside()))[MODULES]
    assert [row[2:] for row in rows[1:]] == [
        ["(the whole component)", "1", "14", "1.450", "96.7%", "0.05000", "3.3%"],
        [r"blocks.\*", "2", "10", "1.100", "73.3%", "0.3000", "20.0%"],
        [r"blocks.\*.attn", "2", "8", "0.8000", "53.3%", "0.8000", "53.3%"],
        ["head", "1", "3", "0.3000", "20.0%", "0.3000", "20.0%"],
        ["not attributable", "–", "–", "0.05000", "3.3%", "–", "–"],
    ]


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


def test_nothing_is_attributable(make: Make) -> None:
    lost = inside(unattributed_ms=1.5, modules_from="not attributable: fused by the compiler")
    del lost["modules"]
    titled = dict(inside_tables([make("compile", 2.0, inside=lost)], KNOWN))
    rows = tables(make("compile", 2.0, inside=lost))[MODULES]
    assert [row[2:] for row in rows] == [["module", "ms", "share"], ["not attributable", "1.500", "100.0%"]]
    assert r"- Submodules: not attributable: fused by the compiler (world_model.compile)" in titled[MODULES]


def test_waits_and_copies_with_their_lines(make: Make) -> None:
    rows = tables(make("baseline", 2.0, inside=inside()), make("compile", 2.0, inside=inside(waits=[], copies=[])))[BUS]
    assert [row[2:] for row in rows[1:]] == [
        ["cudaStreamSynchronize", "models/net.py:12", "x.item()", "1", "0.3000", "–"],
        ["device to pageable host", "models/net.py:12", "–", "1", "0.1000", "0.50"],
    ]


def test_modules_alone_are_shown_where_no_device_was_traced(make: Make) -> None:
    record = make("baseline", 2.0, inside={"modules": [module("", 1.5, 1.5, 1.0)], "modules_from": "spans on the host"})
    assert inside_lines([record]) == ()
    assert list(tables(record)) == [MODULES]


def test_a_section_that_is_damaged_costs_its_numbers_only(make: Make) -> None:
    broken = inside(classes=[None, {"class": "new", "ms": 0.5}], kernels=[None, {"name": "k", "ms": 1.0}])
    broken |= {"modules": [7, {"path": None}], "waits": None, "copies": [{}], "idle": None}
    found = tables(make("baseline", 2.0, inside=broken))
    assert found[CLASSES][1][2:] == ["0.5000 (33%)"]
    assert column(found[KERNELS], "kernel") == ["k"]


def test_where_it_stands(make: Make, tmp_path: Path) -> None:
    records = [make("baseline", 2.0, inside=inside())]
    console, page = (render(records, KNOWN, tmp_path) for render in (render_console, render_markdown))
    assert console.count("15 kernels, busy 1.48 of 1.60 ms") == 1
    assert KERNELS not in console
    for title in ("Inside a call", BUSY, CLASSES, KERNELS, MODULES, BUS):
        assert f"### {title}\n" in page
    assert r"flash_fwd_splitkv_kernel\<Flash_fwd_kernel_traits\<64, 64\>\>" in page


def test_nothing_traced_is_nothing_told(make: Make) -> None:
    assert inside_lines([make("baseline", 2.0)]) == ()
    assert inside_tables([make("baseline", 2.0)], KNOWN) == ()


def test_seconds_of_compiling_by_phase(make: Make) -> None:
    compiled = {"compile_seconds": 21.04, "phases": {"dynamo": 1.25, "inductor": 18.0, "odd": None}}
    assert artefacts([make("compile", 2.0, compile=compiled)]) == (
        "world_model.compile: compiled in 21.0 s: dynamo 1.2 s, inductor 18 s",
    )
