"""Hand-written shape sweeps: known seconds in, known totals, crossings and curves out."""

import math
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiling.errors import MissingExtraError
from profiling.reporting.plot import PLOT_FILE, plot_sweep
from profiling.reporting.render import render_console, render_markdown, write_report
from profiling.reporting.sweep import sweep_legend, sweep_tables
from profiling.results.records import Record

Make = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]

ROOT = Path(__file__).parents[3]
MIB = 2**20
DASH = "–"
SHAPE = "image_encoder@batch=1"
WITH, WITHOUT, HELD = "Total time with preparation", "Total time without preparation", "Memory held"

HOSTILE: tuple[Any, ...] = (
    {"calls": 10},
    {"calls": 10, "seconds": None, "measured": True},
    {"calls": 10, "seconds": "NaN", "measured": True},
    {"calls": 10, "seconds": math.nan, "measured": True},
    {"calls": 10, "seconds": [1.0], "measured": True},
    {"seconds": 1.0, "measured": True},
    {"calls": "NaN", "seconds": 1.0, "measured": True},
    {"calls": math.inf, "seconds": 1.0, "measured": True},
    {"calls": None, "seconds": 1.0, "measured": True},
    {},
    None,
    3,
    "text",
)


def calls(per_call: float, measured: Sequence[int] = (1, 10, 100), computed: Sequence[int] = (1000,)) -> dict[str, Any]:
    """Make the metric of a step whose every call takes `per_call` seconds."""
    points = [{"calls": n, "seconds": n * per_call, "measured": n in measured} for n in (*measured, *computed)]
    return {"calls": {"points": points, "seconds_per_call": per_call}}


def pays(wall: float, after: int | None) -> dict[str, Any]:
    return {"vs": "baseline", "wall": wall} | ({} if after is None else {"break_even_calls": after})


@pytest.fixture
def cell(make: Make) -> Make:
    def build(variant: str, per_call: float, seconds: float, **changes: Any) -> Record:
        content = {"component": SHAPE, "metrics": calls(per_call), "prepare": {"seconds": seconds}}
        return make(variant, **(content | changes))

    return build


@pytest.fixture
def sweep(cell: Make) -> tuple[Record, ...]:
    """A baseline, a variant that pays after 3334 calls, one that never does, and one that is wrong."""
    return (
        cell("baseline", 0.010, 0.5),
        cell("compile", 0.004, 20.5, speedup=pays(2.5, 3334)),
        cell("cuda_graph", 0.020, 1.0, speedup=pays(0.5, None)),
        cell("quantized", 0.001, 2.0, status="failed", reason="parity: too far", speedup=pays(10, 123)),
    )


def rows(table: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of a Markdown table by component and variant; all lines must have as many cells."""
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
    header, rule, *body = lines
    assert set("".join(rule)) <= set(":-")
    assert {len(line) for line in lines} == {len(header)}
    return {(row[0], row[1]): dict(zip(header[2:], row[2:], strict=True)) for row in body}


def titled(records: Sequence[Record]) -> dict[str, dict[tuple[str, str], dict[str, str]]]:
    return {title: rows(table) for title, table in sweep_tables(records, markdown=True)}


def test_totals_with_preparation_hold_the_planted_numbers(sweep: tuple[Record, ...]) -> None:
    table = titled(sweep)[WITH]
    assert list(table) == [(SHAPE, record.variant) for record in sweep]
    assert table[SHAPE, "baseline"] == {
        "1 call s": "0.510",
        "10 calls s": "0.600",
        "100 calls s": "1.50",
        "1000 calls s": "~10.5",
        "ms a call": "10.00",
        "speedup": DASH,
        "pays after calls": DASH,
    }
    assert list(table[SHAPE, "compile"].values()) == ["20.5", "20.5", "20.9", "~24.5", "4.000", "2.50×", "3334"]
    assert list(table[SHAPE, "cuda_graph"].values())[-3:] == ["20.00", "0.500×", "never"]


def test_preparation_is_the_difference_between_the_two_tables(cell: Make) -> None:
    found = titled([cell("baseline", 0.25, 64.0)])
    built, without = found[WITH][SHAPE, "baseline"], found[WITHOUT][SHAPE, "baseline"]
    assert list(without.values()) == ["0.250", "2.50", "25.0", "~250"]
    assert list(built.values())[:4] == ["64.2", "66.5", "89.0", "~314"]


def test_only_computed_totals_are_marked(sweep: tuple[Record, ...]) -> None:
    for title in (WITH, WITHOUT):
        for row in titled(sweep)[title].values():
            marked = [header for header, shown in row.items() if "~" in shown.replace("~~", "")]
            assert marked == ["1000 calls s"]
    assert any(line.startswith("~: computed") for line in sweep_legend(sweep))


def test_no_mark_is_explained_that_does_not_stand_there(cell: Make) -> None:
    record = cell("baseline", 0.01, 0.5, metrics=calls(0.01, computed=()))
    assert "~" not in "".join(table for _, table in sweep_tables([record], markdown=True))
    assert not any("computed" in line for line in sweep_legend([record]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "failed", "reason": "parity: too far"},
        {"status": "invalid", "reason": "recompiled in the timed window"},
        {"parity": {"passed": False}},
    ],
)
def test_a_wrong_answer_is_struck_out_and_claims_nothing(cell: Make, wrong: dict[str, Any]) -> None:
    bad = cell("compile", 0.004, 20.5, speedup=pays(2.5, 3334), **wrong)
    found = titled([cell("baseline", 0.010, 0.5), bad])
    with_build = list(found[WITH][SHAPE, "compile"].values())
    assert with_build[:3] == ["~~20.5~~", "~~20.5~~", "~~20.9~~"]
    assert with_build[4:] == ["~~4.000~~"], "and no column of speedups, where nobody has one"
    assert list(found[WITHOUT][SHAPE, "compile"].values())[:3] == ["~~0.00400~~", "~~0.0400~~", "~~0.400~~"]


def test_a_computed_total_that_is_wrong_is_still_struck_out_in_markdown(sweep: tuple[Record, ...]) -> None:
    """Three tildes in a row strike nothing out."""
    found = titled(sweep)[WITH][SHAPE, "quantized"]["1000 calls s"]
    assert found.replace("\\", "").count("~") == 5
    assert "3.00" in found
    assert "~~~" not in found


def test_against_a_wrong_baseline_nothing_pays(sweep: tuple[Record, ...], cell: Make) -> None:
    wrong = cell("baseline", 0.010, 0.5, status="invalid", reason="throttled")
    table = titled([wrong, *sweep[1:]])[WITH]
    for row in table.values():
        assert row.get("speedup", DASH) == DASH
        assert row.get("pays after calls", DASH) == DASH


def test_variants_are_compared_within_their_shape(cell: Make) -> None:
    records = [
        cell("baseline", 0.010, 0.5),
        cell("baseline", 0.080, 0.5, component="image_encoder@batch=8"),
        cell("compile", 0.016, 20.5, component="image_encoder@batch=8", speedup=pays(5.0, 313)),
    ]
    found = titled(records)[WITH]["image_encoder@batch=8", "compile"]
    assert (found["speedup"], found["pays after calls"]) == ("5.00×", "313")


def test_a_range_is_a_row_and_is_explained(sweep: tuple[Record, ...], cell: Make) -> None:
    name = "image_encoder@batch=1-8"
    one = {"component": "image_encoder", "axis": "batch", "value": 1}
    together = cell("compile", 0.032, 41.0, component=name, point=one | {"value": "all"})
    assert titled([*sweep, together])[WITH][name, "compile"]["10 calls s"] == "41.3"
    assert any("all shapes prepared in one process" in line for line in sweep_legend([together]))
    assert not any("range" in line for line in sweep_legend([cell("compile", 0.032, 41.0, point=one)]))


def test_memory_held_by_kind_and_graphs(cell: Make) -> None:
    steady = {"allocated": 100 * MIB, "reserved": 120 * MIB, "device_used": 900 * MIB, "host_rss": 700 * MIB}
    memory = {"phases": {"steady": steady}, "peak_host_rss": 800 * MIB}
    records = [
        cell("baseline", 0.01, 0.5, memory={"phases": {"steady": {"host_rss": 650 * MIB}}}),
        cell("cuda_graph", 0.01, 0.5, memory=memory, graphs={"held": 4}, prepare={"cudagraph_captures": 9}),
        cell("compile_reduce_overhead", 0.01, 0.5, prepare={"seconds": 9.0, "cudagraph_captures": 2}),
    ]
    table = titled(records)[HELD]
    assert table[SHAPE, "cuda_graph"] == {
        "allocated MiB": "100",
        "reserved MiB": "120",
        "device used MiB": "900",
        "host RSS peak MiB": "800",
        "host RSS settled MiB": "700",
        "graphs held": "4",
    }
    assert list(table[SHAPE, "baseline"].values()) == [DASH, DASH, DASH, DASH, "650", DASH]
    assert list(table[SHAPE, "compile_reduce_overhead"].values()) == [DASH] * 5 + ["2"]


def test_what_was_not_measured_is_a_dash_and_never_zero(cell: Make) -> None:
    short = cell("compile", 0.004, 0, prepare=None, metrics=calls(0.004, (1, 10), ()), speedup=pays(2.5, None))
    found = titled([cell("baseline", 0.010, 0.5), short])
    assert list(found[WITHOUT][SHAPE, "compile"].values()) == ["0.00400", "0.0400", DASH, DASH]
    with_build = found[WITH][SHAPE, "compile"]
    assert list(with_build.values())[:4] == [DASH] * 4, "without the seconds of preparing there is no total with them"
    assert with_build.get("pays after calls", DASH) == DASH, "what preparing costs is not known, so neither is `never`"
    only = titled([short])
    assert not any("calls s" in header for header in only[WITH][SHAPE, "compile"])
    assert list(only[HELD][SHAPE, "compile"]) == []


def test_console_and_markdown_hold_the_same_cells(sweep: tuple[Record, ...]) -> None:
    marked, plain = (sweep_tables(sweep, markdown=flag) for flag in (True, False))
    for (title, markdown), (same, console) in zip(marked, plain, strict=True):
        assert title == same
        body = [re.split(r" {2,}", line.strip()) for line in console.splitlines()[2:]]
        expected = [[*name, *row.values()] for name, row in rows(markdown).items()]
        assert body == [[text.replace("\\", "") for text in row] for row in expected]


def test_names_cannot_break_either_table(cell: Make) -> None:
    record = cell("x*y|z\nw", 0.01, 0.5, component="a|b@batch=1")
    for _, table in sweep_tables([record], markdown=True):
        assert list(rows(table)) == [("a\\|b@batch=1", "x\\*y\\|z w")]
    for _, table in sweep_tables([record], markdown=False):
        assert len(table.splitlines()) == 3
        assert "x*y|z w" in table


def test_sections_are_added_and_nothing_else_changes(three: tuple[Record, ...], tmp_path: Path) -> None:
    """A plain run's report stands in that of a sweep line by line, and holds no word of one."""
    swept = [replace(r, metrics={**r.metrics, **calls(0.01)}) for r in three]
    for render in (render_console, render_markdown):
        plain, more = render(three, {}, tmp_path), render(swept, {}, tmp_path)
        left = iter(more.splitlines())
        assert all(line in left for line in plain.splitlines())
        for title in (WITH, WITHOUT, HELD):
            assert title not in plain
            assert more.count(f"{title}\n" if render is render_markdown else f"{title}:\n") == 1
        assert "calls in a row" not in plain
    assert sweep_tables(three, markdown=True) == ()
    assert sweep_legend(three) == ()


@pytest.mark.parametrize("empty", [{}, {"points": []}, {"points": 3}, {"points": None}, 3.5, "text", None])
def test_a_metric_without_rows_is_no_sweep(three: tuple[Record, ...], tmp_path: Path, empty: Any) -> None:
    records = [replace(r, metrics={**r.metrics, "calls": empty}) for r in three]
    assert render_console(records, {}, tmp_path) == render_console(three, {}, tmp_path)
    assert not plot_sweep(records, tmp_path / PLOT_FILE)
    assert "Total time" not in render_markdown(records, {}, tmp_path)


@pytest.mark.parametrize("point", HOSTILE)
def test_a_hostile_point_is_a_dash(cell: Make, tmp_path: Path, point: Any) -> None:
    first, *_, last = calls(0.004)["calls"]["points"]
    metrics = {"calls": {"points": [first, point, last], "seconds_per_call": "NaN"}}
    records = [cell("baseline", 0.010, 0.5), cell("compile", 0.004, 20.5, metrics=metrics, speedup=pays(2.5, None))]
    found = titled(records)
    assert list(found[WITHOUT][SHAPE, "compile"].values()) == ["0.00400", DASH, DASH, "~4.00"]
    assert list(found[WITHOUT][SHAPE, "baseline"].values()) == ["0.0100", "0.100", "1.00", "~10.0"]
    assert found[WITH][SHAPE, "compile"]["ms a call"] == DASH
    for render in (render_console, render_markdown):
        assert not re.search(r"\b(nan|inf|None)\b", render(records, {}, tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"prepare": {"seconds": "NaN"}},
        {"prepare": {"seconds": True}},
        {"prepare": 3},
        {"speedup": "fast"},
        {"speedup": {"vs": 3, "wall": "NaN", "break_even_calls": "many"}},
        {"memory": "much"},
        {"memory": {"phases": {"steady": 3}, "peak_host_rss": "NaN"}},
        {"graphs": {"held": "NaN"}},
        {"point": "all"},
        {"point": {"value": ["all"]}},
    ],
)
def test_hostile_sections_do_not_break_rendering(cell: Make, tmp_path: Path, changes: dict[str, Any]) -> None:
    records = [cell("baseline", 0.010, 0.5), cell("compile", 0.004, 20.5, **changes)]
    for render in (render_console, render_markdown):
        text = render(records, {}, tmp_path)
        assert re.search(r"baseline +\|? +0\.510 ", text)
        assert re.search(r"compile +\|? +0\.00400 ", text)


def drawn(figure: Any, place: int = 0) -> dict[str, dict[str, dict[float, float]]]:
    """Return seconds by calls of each variant's line, full and hollow markers; the legend says whose colour it is."""
    legend = figure.legends[0]
    pairs = zip(legend.legend_handles, legend.get_texts(), strict=True)
    names = {line.get_color(): text.get_text() for line, text in pairs}
    found: dict[str, dict[str, dict[float, float]]] = {}
    for line in figure.axes[place].lines:
        kind = line.get_fillstyle() if line.get_marker() == "o" else "line"
        points = {float(x): float(y) for x, y in line.get_xydata()}
        found.setdefault(names[line.get_color()], {}).setdefault(kind, {}).update(points)
    return found


def test_a_line_a_variant_and_hollow_markers_where_computed(
    sweep: tuple[Record, ...], figures: Any, save: Save
) -> None:
    run = save(sweep)
    text = write_report(run)
    assert text.endswith(f"\nplot: {run / PLOT_FILE}")
    assert f"({PLOT_FILE})" in (run / "report.md").read_text(encoding="utf-8")
    assert ET.parse(run / PLOT_FILE).getroot().tag.endswith("}svg")
    (figure,) = figures
    found = drawn(figure)
    assert list(found) == ["baseline", "compile", "cuda_graph"], "the wrong one is left out"
    measured, computed = {1: 20.504, 10: 20.54, 100: 20.9}, {1000: 24.5}
    assert found["compile"]["line"] == pytest.approx(measured | computed)
    assert found["compile"]["full"] == pytest.approx(measured)
    assert found["compile"]["none"] == pytest.approx(computed)
    assert found["baseline"]["line"] == pytest.approx({1: 0.51, 10: 0.6, 100: 1.5, 1000: 10.5})
    panel = figure.axes[0]
    assert (panel.get_title(), panel.get_xscale(), panel.get_yscale()) == (SHAPE, "log", "log")


def test_a_panel_a_shape_and_empty_places_are_off(cell: Make, figures: Any, tmp_path: Path) -> None:
    shapes = [f"image_encoder@batch={batch}" for batch in (1, 2, 4, 8)]
    records = [cell("baseline", 0.01 * place, 0.5, component=shape) for place, shape in enumerate(shapes, 1)]
    assert plot_sweep(records, tmp_path / PLOT_FILE)
    panels = figures[0].axes
    assert [panel.get_title() for panel in panels if panel.axison] == shapes
    assert [panel.axison for panel in panels] == [True] * 4 + [False] * 2
    for place in range(4):
        assert drawn(figures[0], place)["baseline"]["line"][1] == pytest.approx(0.5 + 0.01 * (place + 1))


def test_a_total_that_is_not_known_is_not_drawn(cell: Make, figures: Any, tmp_path: Path) -> None:
    unknown = cell("compile", 0.004, 0, prepare={"graphs": 1})
    assert plot_sweep([cell("baseline", 0.010, 0.5), unknown], tmp_path / PLOT_FILE)
    assert list(drawn(figures[0])) == ["baseline"], "preparing took some time, not none"


def test_hostile_points_are_not_drawn(cell: Make, figures: Any, tmp_path: Path) -> None:
    first, *_, last = calls(0.004)["calls"]["points"]
    metrics = {"calls": {"points": [first, *HOSTILE, last]}}
    assert plot_sweep([cell("compile", 0.004, 20.5, metrics=metrics)], tmp_path / PLOT_FILE)
    assert drawn(figures[0])["compile"]["line"] == pytest.approx({1: 20.504, 1000: 24.5})


def test_dollars_in_names_are_no_formulas(cell: Make, figures: Any, tmp_path: Path) -> None:
    assert plot_sweep([cell("a $\\frac$ b", 0.01, 0.5, component="c $\\nothing$ d")], tmp_path / PLOT_FILE)
    assert ET.parse(tmp_path / PLOT_FILE).getroot().tag.endswith("}svg")


def test_no_plot_without_rows_that_are_right(three: tuple[Record, ...], sweep: tuple[Record, ...], save: Save) -> None:
    run = save([*three, sweep[-1]])
    text = write_report(run)
    assert WITH in text
    assert "plot:" not in text
    assert not (run / PLOT_FILE).exists()
    assert PLOT_FILE not in (run / "report.md").read_text(encoding="utf-8")


def test_without_matplotlib_the_report_comes_with_a_line(
    sweep: tuple[Record, ...], save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    run = save(sweep)
    *_, line = write_report(run).splitlines()
    assert line.startswith("no plot: matplotlib is not installed")
    report = (run / "report.md").read_text(encoding="utf-8")
    assert WITH in report
    assert PLOT_FILE not in report
    assert not (run / PLOT_FILE).exists()
    with pytest.raises(MissingExtraError):
        plot_sweep(sweep, run / PLOT_FILE)
    extra = re.search(r"\.\[(\w+)\]", line)
    assert extra, line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any("matplotlib" in wanted for wanted in project["optional-dependencies"][extra[1]])
