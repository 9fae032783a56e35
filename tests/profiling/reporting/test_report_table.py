from collections.abc import Callable
from typing import Any

import pytest

from profiling.reporting.table import render_table
from profiling.results.records import Record

Make = Callable[..., Record]


def row(table: str, variant: str, component: str = "world_model") -> list[str]:
    """Return the cells of a Markdown row."""
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return next(cells for cells in lines if cells[:2] == [component, variant])


def test_row_shows_the_known_numbers(three: tuple[Record, ...]) -> None:
    table = render_table(three, markdown=True)
    assert row(table, "compile") == [
        "world_model",
        "compile",
        "ok",
        "2.500 ± 0.019",
        "2.500",
        "2.600",
        "2.460",
        "2.700",
        "2.500",
        "400 (370–407)",
        "11.5× [11.4, 11.6]",
        "2506",
        "28.0",
        "ok 4.1e-03",
    ]


def test_every_measured_column_names_its_unit(three: tuple[Record, ...]) -> None:
    header = render_table(three, markdown=True).splitlines()[0]
    for name in ("wall ms mean", "p50 ms", "p99 ms", "min ms", "max ms", "device p50 ms", "FPS", "speedup vs baseline"):
        assert name in header
    for name in ("peak allocated MiB", "prepare s", "parity rel. L2"):
        assert name in header
    assert "frames" not in header


def test_wrong_answer_is_struck_out_and_claims_nothing(three: tuple[Record, ...]) -> None:
    for markdown in (True, False):
        table = render_table(three, markdown=markdown)
        assert "~~1.230~~" in table
        assert "23.3" not in table
        assert "FAIL 1.2e+00" in table
        line = next(line for line in table.splitlines() if "cuda_graph" in line)
        assert "failed" in line
        assert " 1.230 " not in line


def test_invalid_record_is_struck_out(make: Make) -> None:
    bad = make("compile", 2.5, status="invalid", reason="recompiled in the timed window")
    table = render_table([make("baseline", 28.7), bad])
    assert "~~2.500~~" in table
    assert "recompiled" not in table


def test_no_speedup_against_a_baseline_that_is_missing_or_wrong(make: Make) -> None:
    speedup = {"vs": "baseline", "wall": 11.5, "ci95": [11.4, 11.6]}
    compiled = make("compile", 2.5, speedup=speedup)
    wrong = make("baseline", 28.7, status="invalid", reason="throttled")
    assert "11.5" not in render_table([compiled])
    assert "11.5" not in render_table([wrong, compiled])
    assert "11.5× [11.4, 11.6]" in render_table([make("baseline", 28.7), compiled])


def test_of_a_chaotic_training_the_losses_were_judged(make: Make) -> None:
    parity = {"rel_l2": 1.2, "weights_judged": False, "loss_error": 0.0275, "passed": True}
    assert "ok losses 2.8e-02" in render_table([make("compile", 2.5, parity=parity)])
    assert "ok 1.2e+00" in render_table([make("compile", 2.5, parity=parity | {"weights_judged": True})])


def test_ok_with_a_parity_that_failed_is_not_trusted(make: Make) -> None:
    lie = make("compile", 2.5, parity={"rel_l2": 1.0, "passed": False}, speedup={"vs": "baseline", "wall": 11.5})
    table = render_table([make("baseline", 28.7), lie])
    assert "~~2.500~~" in table
    assert "11.5" not in table


def test_cpu_table_has_no_device_column_and_names_its_memory(
    make: Make, make_clocks: Callable[..., dict[str, Any]]
) -> None:
    record = make("baseline", 2.5, metrics=make_clocks(2.5, device=False), memory={"peak_host_rss": 812 * 2**20})
    header, _, cells = render_table([record], markdown=True).splitlines()
    assert "device" not in header
    assert "peak host RSS MiB" in header
    assert "812" in cells


def test_mixed_kinds_of_memory_are_named_in_the_cells(make: Make) -> None:
    table = render_table(
        [make("baseline", 2.5), make("baseline", 3.5, component="x", memory={"peak_host_rss": 812 * 2**20})]
    )
    assert "2291 allocated" in table
    assert "812 host RSS" in table


def test_frames_per_call_shows_where_it_is_not_one(make: Make) -> None:
    table = render_table([make("baseline", 2.5), make("compile", 2.0, frames_per_call=4)], markdown=True)
    assert "frames / call" in table
    assert row(table, "compile")[3] == "4"


def test_what_was_not_measured_is_a_dash(make: Make) -> None:
    table = render_table([make("compile", status="skipped", reason="no GPU")], markdown=True)
    cells = row(table, "compile")
    assert cells[2] == "skipped"
    assert set(cells[3:]) == {"–"}
    assert "nan" not in table


@pytest.mark.parametrize("metrics", [{"wall_ms": None}, {"wall_ms": 3}, {"fps": {"mean": "fast"}}, {"wall_ms": {}}])
def test_malformed_sections_are_absent(make: Make, metrics: dict[str, Any]) -> None:
    assert "ok" in render_table([make("compile", metrics=metrics, parity={}, memory={}, prepare={}, speedup={})])


def test_rows_are_grouped_by_component_in_the_order_of_records(make: Make) -> None:
    cells = [("b", "y"), ("a", "x"), ("b", "x")]
    lines = render_table([make(variant, component=component) for component, variant in cells]).splitlines()
    assert [tuple(line.split()[:2]) for line in lines if line[:1] in "ab"] == [("b", "y"), ("b", "x"), ("a", "x")]


def test_names_cannot_break_either_table(make: Make) -> None:
    record = make("a|b\nc", 2.5, component="modèle_世界")
    markdown = render_table([record], markdown=True)
    assert "a\\|b c" in markdown
    assert len(markdown.splitlines()) == 3
    assert "a|b c" in render_table([record])
    assert "modèle_世界" in markdown


def test_longest_names_on_a_gpu_fit_a_wide_terminal(make: Make) -> None:
    speedup = {"vs": "baseline", "wall": 11.5, "ci95": [11.4, 11.6]}
    records = [make("baseline", 28.7, component="image_decoder")]
    records += [make("compile_cuda_graph", 2.5, component="image_decoder", speedup=speedup)]
    assert max(map(len, render_table(records).splitlines())) <= 165


def test_no_records_no_table() -> None:
    assert render_table([]) == "No cell has ended yet."
