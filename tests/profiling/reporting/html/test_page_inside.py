"""The page's section on the inside of a call: what its charts add up to, and how much room it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hand_traced import CEILINGS, inside, many, module

from profiling.reporting.html.artefact_sections import compile_section
from profiling.reporting.html.inside_charts import module_views, split_views
from profiling.reporting.html.inside_section import inside_section
from profiling.reporting.html.material import Material
from profiling.reporting.html.page import render_html
from profiling.reporting.html.section import Figure, View
from profiling.results.records import Record

Make = Callable[..., Record]
MIB = 2**20


def tree(view: View) -> dict[str, dict[str, Any]]:
    """Return label, parent and value of each node, by its path."""
    (trace,) = view.figure["data"]
    keys = {"labels": "label", "parents": "parent", "values": "value", "text": "text"}
    return {path: {name: trace[key][i] for key, name in keys.items()} for i, path in enumerate(trace["ids"])}


def bars(figure: Figure, place: int) -> dict[str, float]:
    return {trace["name"]: trace["x"][place] for trace in figure["data"] if len(trace["x"]) > place}


def test_the_bar_of_a_cell_is_its_classes_and_its_idle_time(make: Make) -> None:
    (view,) = split_views([make("baseline", 2.0, inside=inside()), make("compile", 2.0)])
    found = bars(view.figure, 0)
    assert found == {
        **{"gemm": 0.8, "attention": 0.4, "pointwise": 0.2, "copy": 0.1},
        **{"idle, waiting for the host": 0.02, "idle, between kernels": 0.1, "span": 1.6},
    }
    section = inside()
    overlap = section["kernel_ms"] - section["busy_ms"]
    assert sum(ms for name, ms in found.items() if name != "span") == pytest.approx(found["span"] + overlap)


def test_several_components_are_seen_together_and_each_by_itself(make: Make) -> None:
    records = [make("baseline", 2.0, component=name, inside=inside()) for name in ("net", "other")]
    assert [view.label for view in split_views(records)] == ["all components", "net", "other"]
    assert [len(view.figure["data"][0]["y"]) for view in split_views(records)] == [2, 1, 1]


def test_the_tree_holds_each_modules_own_time_once(make: Make) -> None:
    (view,) = module_views([make("baseline", 2.0, inside=inside()), make("compile", 2.0, inside=inside(modules=[]))])
    nodes = tree(view)
    assert sum(node["value"] for node in nodes.values()) == pytest.approx(1.5)
    assert {path: (node["label"], node["parent"]) for path, node in nodes.items()} == {
        ".": ("world_model.baseline", ""),
        "blocks.0": ("blocks.0", "."),
        "blocks.0.attn": ("attn", "blocks.0"),
        "blocks.1": ("blocks.1", "."),
        "blocks.1.attn": ("attn", "blocks.1"),
        "head": ("head", "."),
        "..": ("not attributable", "."),
    }
    assert nodes["blocks.1"]["text"] == "blocks.1: 0.6000 ms (40.0%), its own 0.2000 ms, 5 kernels"
    (on_cpu,) = module_views([make("baseline", 2.0, inside={"modules": [module("a", 3.0, 3.0, 2.0, whole=4.0)]})])
    assert tree(on_cpu)["a"]["text"] == "a: 3.000 ms (75.0%), its own 3.000 ms, 2 calls"
    go.Figure(view.figure)  # raises where a property is misspelt or out of its range


def test_what_a_tree_has_no_room_for_is_its_parents_own_time(make: Make) -> None:
    modules = [module("", 3.0, 0.0, 1.0), module("a", 3.0, 1.0, 1.0)]
    modules += [module(f"a.{i}", 0.001, 0.001, 1.0) for i in range(2000)]
    record = make("baseline", 2.0, inside=inside(modules=modules, unattributed_ms=0.0))
    views = module_views([record] * 5)
    for nodes in map(tree, views):
        assert len(nodes) <= 500
        assert sum(node["value"] for node in nodes.values()) == pytest.approx(3.0)
        assert nodes["a"]["value"] == pytest.approx(1.0 + 0.001 * (2000 - (len(nodes) - 2)))


def test_the_section(make: Make, material: Callable[..., Material]) -> None:
    record = make("baseline", 2.0, inside=inside(), trace={"trace": "traces/net.json.gz"})
    section = inside_section(material(record, make("compile", 2.0)))
    assert [chart.key for chart in section.charts] == ["inside-split", "inside-modules"]
    titles = [table.title for table in section.tables]
    assert titles[2:] == [
        *("Kernels by total time", "Time by submodule", "Waits of the host, and copies between host and device")
    ]
    assert len(section.lines) == 1
    assert not inside_section(Material((), {}, Path()))


def test_the_page_shows_more_kernels_than_the_report(make: Make, material: Callable[..., Material]) -> None:
    found = material(make("baseline", 2.0, inside=many(100, 100)))
    (kernels,) = (table for table in inside_section(found).tables if table.title == "Kernels by total time")
    (shorter,) = found.titled("Kernels by total time")
    assert (len(kernels.rows), len(shorter.rows)) == (100, 13)
    page = render_html(found.records, {"ceilings": CEILINGS}, found.run)
    assert page.count("<h3>Kernels by total time</h3>") == 1


def test_the_traces_stand_beside_with_a_word_on_opening_them(
    make: Make, material: Callable[..., Material], parse: Callable[[str], Any]
) -> None:
    found = material(make("baseline", 2.0, inside=inside(), trace={"trace": "traces/net.json.gz"}))
    page = render_html(found.records, {}, found.run)
    sections = [attributes["id"] for attributes in parse(page).all("section")]
    assert {"inside", "traces"} <= set(sections)
    assert "ui.perfetto.dev" in page.partition('<section id="traces">')[2].partition("</section>")[0]


def test_fifteen_cells_with_many_kernels_and_modules_fit_the_page(
    make: Make, material: Callable[..., Material]
) -> None:
    records = [make(f"variant_{i}", 2.0, inside=many(300, 800)) for i in range(15)]
    found = material(*records)
    assert len(render_html(found.records, {"ceilings": CEILINGS}, found.run).encode()) <= 6 * MIB


def test_seconds_of_compiling_by_phase(make: Make, material: Callable[..., Material]) -> None:
    phases = ({"dynamo": 1.25, "inductor": 18.0}, {"dynamo": 2.5}, None)
    compiled = [
        make(f"v{i}", 2.0, compile={"compile_seconds": 20.0, **({"phases": found} if found else {})})
        for i, found in enumerate(phases)
    ]
    tables = {table.title: table for table in compile_section(material(*compiled)).tables}
    table = tables["Seconds of compiling by phase"]
    assert table.headers == ("component", "variant", "dynamo", "inductor")
    assert [[cell.text for cell in row[1:]] for row in table.rows] == [["v0", "1.25", "18.0"], ["v1", "2.50", "–"]]
