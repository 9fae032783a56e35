"""Hand-written graph sections and graph passes: known numbers in, known cells out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiling.reporting.graphs import graph_tables
from profiling.reporting.render import render_console, render_markdown, write_report
from profiling.results.records import Record

Make = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]

MIB = 2**20
DASH = "–"
BY_HAND = "CUDA graphs captured by hand: host launches and time of a call, uncaptured (before) and replayed"
PASSES = "Graph passes, each against the module before it"

GRAPHS: dict[str, Any] = {
    "recorded": 2,
    "replayed": 40,
    "held": 2,
    "capture_seconds": 0.0392,
    "pool_bytes": 34 * MIB,
    "graph_breaks": 3,
    "compiled_pieces": 4,
    "host_launches": {"before": 412.0, "after": 3.0},
    "wall_ms": {"before": 8.75, "after": 2.5},
    "gain": 3.5,
}
FOLDED: dict[str, Any] = {
    "name": "fold_batch_norm",
    "replaced": 12,
    "rel_l2": 0.00031,
    "replay_ms": {"before": 2.5, "after": 2.0},
    "speedup": 1.25,
}


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table; all lines must have as many cells."""
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
    header, rule, *body = lines
    assert set("".join(rule)) <= set(":-")
    assert {len(line) for line in lines} == {len(header)}
    return [dict(zip(header, row, strict=True)) for row in body]


def titled(*records: Record) -> dict[str, list[dict[str, str]]]:
    return {title: rows(table) for title, table in graph_tables(records, markdown=True)}


def test_a_graph_captured_by_hand_shows_the_planted_numbers(make: Make) -> None:
    found = titled(make("baseline", 8.75), make("compile_cuda_graph", 2.5, graphs=GRAPHS))
    assert list(found) == [BY_HAND], "no empty table of passes"
    assert found[BY_HAND] == [
        {
            "component": "world_model",
            "variant": "compile_cuda_graph",
            "graph breaks": "3",
            "compiled pieces": "4",
            "launches before": "412.0",
            "launches after": "3.000",
            "ms before": "8.750",
            "ms after": "2.500",
            "gain": "3.50×",
            "capture s": "0.0392",
            "pool MiB": "34",
            "graphs": "2",
        }
    ]


def test_what_was_not_measured_is_a_dash_and_a_measured_zero_is_zero(make: Make) -> None:
    plain = {key: GRAPHS[key] for key in ("held", "capture_seconds", "wall_ms", "gain")}
    bare = plain | {"host_launches": {"before": None, "after": None}, "graph_breaks": 0}
    first, second = titled(make("compile", graphs=GRAPHS), make("cuda_graph", graphs=bare))[BY_HAND]
    assert second["graph breaks"] == "0"
    dashes = {"compiled pieces", "launches before", "launches after", "pool MiB"}
    assert {header for header, shown in second.items() if shown == DASH} == dashes
    assert DASH not in first.values()


def test_a_column_that_nobody_measured_is_left_out(make: Make) -> None:
    (row,) = titled(make("cuda_graph", graphs={"held": 1, "gain": 2.0}))[BY_HAND]
    assert row == {"component": "world_model", "variant": "cuda_graph", "gain": "2.00×", "graphs": "1"}


def test_passes_stand_in_their_order(make: Make) -> None:
    nothing = {"name": "fuse_linear_gelu", "replaced": 0, "rel_l2": 0.0}
    alone = {"name": "make_capturable", "replaced": 1, "unmeasured": "a sync in line 3"}
    found = titled(make("fx_cuda_graph", passes=(FOLDED, nothing, alone)))
    assert list(found) == [PASSES]
    assert [row["pass"] for row in found[PASSES]] == ["fold_batch_norm", "fuse_linear_gelu", "make_capturable"]
    assert list(found[PASSES][0].values())[3:] == ["12", "0.00031", "2.500", "2.000", "1.25×"]
    assert list(found[PASSES][1].values())[3:] == ["0", "0.0", DASH, DASH, DASH]
    assert list(found[PASSES][2].values())[3:] == ["1", DASH, DASH, DASH, DASH]


def test_console_and_markdown_hold_the_same_cells(make: Make) -> None:
    records = [make("fx_cuda_graph", graphs=GRAPHS, passes=(FOLDED, {"name": "other", "replaced": 1}))]
    for title, table in graph_tables(records, markdown=False):
        body = [re.split(r" {2,}", line.strip()) for line in table.splitlines()[2:]]
        assert body == [list(row.values()) for row in titled(*records)[title]]


def test_names_cannot_break_either_table(make: Make) -> None:
    record = make("x*y|z\nw", component="a|b", graphs=GRAPHS, passes=(FOLDED | {"name": "p|q\nr"},))
    for (row,) in titled(record).values():
        assert (row["component"], row["variant"]) == ("a\\|b", "x\\*y\\|z w")
        assert row.get("pass", "p\\|q r") == "p\\|q r"
    for _, table in graph_tables([record], markdown=False):
        assert len(table.splitlines()) == 3
        assert "x*y|z w" in table


def test_report_and_console_show_both_tables_once(make: Make, save: Save) -> None:
    run = save([make("fx_cuda_graph", 2.5, graphs=GRAPHS, passes=(FOLDED,))])
    console, report = write_report(run), (run / "report.md").read_text(encoding="utf-8")
    for title in (BY_HAND, PASSES):
        assert console.count(f"{title}:\n") == 1
        assert report.count(f"### {title}\n") == 1
    assert sorted(path.name for path in run.iterdir()) == ["classic.txt", "report.html", "report.md", "results.jsonl"]


def test_records_without_the_sections_change_nothing(three: tuple[Record, ...], tmp_path: Path) -> None:
    empty = [replace(r, graphs={}, passes=()) for r in three]
    full = [replace(r, graphs=GRAPHS, passes=(FOLDED,)) for r in three]
    for render in (render_console, render_markdown):
        plain = render(three, {}, tmp_path)
        assert render(empty, {}, tmp_path) == plain
        left = iter(render(full, {}, tmp_path).splitlines())
        assert all(line in left for line in plain.splitlines()), "tables are added, and nothing else changes"
        assert BY_HAND not in plain
        assert PASSES not in plain
    assert graph_tables(three, markdown=True) == ()


@pytest.mark.parametrize(
    "graphs",
    [
        3,
        "text",
        ["held"],
        {"held": "NaN"},
        {"gain": float("nan"), "pool_bytes": True},
        {"host_launches": 3, "wall_ms": [1, 2], "memory": "much"},
        {"host_launches": {"before": "many"}, "wall_ms": {"before": {}}},
    ],
)
def test_hostile_graphs_do_not_break_the_others(make: Make, tmp_path: Path, graphs: Any) -> None:
    records = [make("cuda_graph", graphs=GRAPHS), make("odd", graphs=graphs)]
    good, *others = titled(*records)[BY_HAND]
    assert (good["gain"], good["pool MiB"]) == ("3.50×", "34")
    assert all(set(list(row.values())[2:]) == {DASH} for row in others)
    for render in (render_console, render_markdown):
        assert "nan" not in render(records, {}, tmp_path).lower()


@pytest.mark.parametrize(
    "item",
    [
        None,
        3,
        "text",
        {},
        {"name": None, "replaced": "NaN", "rel_l2": "small"},
        {"replay_ms": 3, "speedup": float("inf")},
        {"replay_ms": {"before": []}, "replaced": None},
    ],
)
def test_a_hostile_pass_does_not_break_the_others(make: Make, tmp_path: Path, item: Any) -> None:
    records = [make("fx_cuda_graph", passes=(item, FOLDED))]
    *others, good = titled(*records)[PASSES]
    assert good["speedup"] == "1.25×"
    assert all(set(list(row.values())[3:]) == {DASH} for row in others)
    for render in (render_console, render_markdown):
        assert not re.search(r"\b(nan|inf|None)\b", render(records, {}, tmp_path))
