"""What the page draws of loops, sweeps and training steps, and what it links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiling.reporting.frame_series import frames_file
from profiling.reporting.html.artefact_sections import compile_section, trace_section
from profiling.reporting.html.budget_chart import budget_chart
from profiling.reporting.html.figure import share
from profiling.reporting.html.material import Material
from profiling.reporting.html.realtime_section import realtime_section
from profiling.reporting.html.sweep_section import sweep_section
from profiling.reporting.html.training_section import training_section
from profiling.results.records import Record

Make = Callable[..., Record]
Section = dict[str, Any]
Loop = Callable[..., Section]
Gather = Callable[..., Material]


def kept(gathered: Material, record: Record, frames: np.ndarray) -> Material:
    """Leave the series of a loop where it leaves them."""
    (gathered.run / "cells").mkdir()
    np.savez_compressed(gathered.run / frames_file(record), frame_ms=frames)
    return gathered


def by_name(data: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in data}


def test_frames_stand_against_the_deadline_with_their_causes(
    make_loop: Make, stalled: Section, material: Gather
) -> None:
    record = make_loop("cuda_graph", stalled)
    frames = 9 + 0.1 * np.random.default_rng(0).standard_normal(100_000)
    frames[61], frames[49_999] = 45.1, 1.5  # primes: no stride meets both
    section = realtime_section(kept(material(record), record, frames))
    chart = section.charts[0]
    figure = chart.views[0].figure
    drawn = by_name(figure["data"])
    assert (max(drawn["frame time"]["y"]), min(drawn["frame time"]["y"])) == (45.1, 1.5)
    assert drawn["frame time"]["x"][drawn["frame time"]["y"].index(1.5)] == 49_999
    assert len(drawn["frame time"]["x"]) <= share(1)
    assert "lowest and the highest" in chart.note
    assert drawn["slow: recompile"]["x"] == [60]
    assert sorted(drawn["slow: garbage collection"]["x"]) == [60, *(100 + 20 * i for i in range(8))]
    line, shade = figure["layout"]["shapes"]
    assert line["y0"] == line["y1"] == 1000 / 60
    assert (shade["x0"], shade["x1"]) == (0, 12)
    height = figure["layout"]["annotations"][0]["y"]
    assert figure["layout"]["yaxis"]["type"] == "log"  # 45.1 is more than 20 times 1.5
    assert height == pytest.approx(np.log10(1000 / 60))


def test_stages_in_turn_add_up_and_overlapping_ones_stand_apart(make_loop: Make, loop: Loop) -> None:
    stages = {"world": 4.0, "picture": 3.0, "sound": 1.0, "deliver": 0.25}
    turn, apart = make_loop("a"), make_loop("b", loop(schedule="overlap"))
    wrong = make_loop("c", status="failed", reason="broken")
    first, second = budget_chart((turn, apart, wrong))
    bars = {trace["name"]: trace for trace in first.figure["data"] if trace["type"] == "bar"}
    assert {name: bar["y"] for name, bar in bars.items()} == {
        **{name: [ms] for name, ms in stages.items()},
        "beside the stages": [0.75],
    }
    assert first.figure["layout"]["barmode"] == "stack"
    assert second.figure["layout"]["barmode"] == "group"
    assert "beside the stages" not in by_name(second.figure["data"])
    assert {place for bar in bars.values() for place in bar["x"]} == {"realtime.a"}
    assert first.figure["layout"]["shapes"][0]["y0"] == 1000 / 60


def test_sweeps_draw_totals_with_preparation(make: Make, material: Gather) -> None:
    points = [{"calls": 1, "seconds": 0.5, "measured": True}, {"calls": 100, "seconds": 50.0, "measured": False}]
    record = make("compile", 1.0, metrics={"calls": {"points": points}}, prepare={"seconds": 2.0})
    (chart,) = sweep_section(material(record)).charts
    (line,) = chart.views[0].figure["data"]
    assert (line["x"], line["y"]) == ([1, 100], [2.5, 52.0])
    assert line["marker"]["symbol"] == ["circle", "circle-open"]


def test_training_draws_the_loss_beside_eagers_and_the_step_times(make: Make, material: Gather) -> None:
    log = [{"step": 0, "loss": 7.0, "step_ms": 40.0}, {"step": 10, "loss": 6.5, "step_ms": 41.0}]
    training = {"log": log, "eager_log": [{"step": 0, "loss": 7.25, "step_ms": 90.0}]}
    loss, times = training_section(material(make("cuda_graph", 41.0, training=training))).charts
    drawn = by_name(loss.views[0].figure["data"])
    assert (drawn["cuda_graph"]["x"], drawn["cuda_graph"]["y"]) == ([0, 10], [7.0, 6.5])
    assert drawn["cuda_graph: eager"]["y"] == [7.25]
    assert [trace["y"] for trace in times.views[0].figure["data"]] == [[40.0, 41.0]]


@pytest.mark.parametrize(
    ("path", "href"),
    [
        ("traces/a b#1.json.gz", "traces/a%20b%231.json.gz"),
        ("traces/missing.json.gz", None),
        ("javascript:alert(1)", None),
        ("../outside.txt", None),
        ("/etc/passwd", None),
        ("traces", None),
        ("a\0b", None),
        (7, None),
    ],
)
def test_only_files_of_the_run_are_linked(path: Any, href: str | None, make: Make, material: Gather) -> None:
    gathered = material(make("baseline", 1.0))
    (gathered.run / "traces").mkdir()
    (gathered.run / "traces" / "a b#1.json.gz").touch()
    (gathered.run.parent / "outside.txt").touch()
    assert gathered.link(path) == href


def test_compile_reports_reasons_and_traces(make: Make, material: Gather, tmp_path: Path) -> None:
    breaks = [{"reason": "call to print", "file": "models/net.py", "line": 40}]
    compiled = {"compile_seconds": 20.5, "graph_breaks": breaks, "cudagraph_skips": ["mutated inputs"]}
    record = make(
        "compile",
        2.5,
        compile={**compiled, "index": "tl_out/x/index.html"},
        prepare={"seconds": 28.0, "graphs": 2, "graph_breaks": 1, "recompiles": 0},
        trace={"trace": "traces/x.json.gz", "operators": "traces/x.txt"},
        kernels=({"name": "triton_poi", "file": "kernels/a.py", "kind": "triton"},),
    )
    gathered = material(record, make("baseline", 3.0))
    for name in ("tl_out/x/index.html", "traces/x.json.gz"):
        (gathered.run / name).parent.mkdir(parents=True)
        (gathered.run / name).touch()
    summary, reasons, kernels = compile_section(gathered).tables
    assert [cell.text for cell in summary.rows[0]][:6] == ["world_model", "compile", "20.5", "2", "1", "0"]
    assert summary.rows[0][-1].href == "tl_out/x/index.html"
    assert len(summary.rows) == 1
    assert [[cell.text for cell in row][2:] for row in reasons.rows] == [
        ["graph break", "call to print", "models/net.py:40"],
        ["CUDA graph skipped", "mutated inputs", "–"],
    ]
    assert [cell.text for cell in kernels.rows[0]][2:] == ["triton_poi", "triton", "kernels/a.py"]
    section = trace_section(gathered)
    assert "ui.perfetto.dev" in section.lines[0]
    _, _, trace, operators = section.tables[0].rows[0]
    assert (trace.href, operators.href) == ("traces/x.json.gz", None)


def test_what_a_run_has_nothing_of_is_absent(make: Make, material: Gather) -> None:
    gathered = material(make("baseline", 1.0))
    for section in (realtime_section, sweep_section, training_section, compile_section, trace_section):
        assert not section(gathered)
