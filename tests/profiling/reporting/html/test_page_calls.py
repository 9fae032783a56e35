"""What the charts of calls draw, against the records and against numbers computed another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from profiling.reporting.html.distribution_section import distribution_section
from profiling.reporting.html.figure import share
from profiling.reporting.html.latency_section import latency_section
from profiling.reporting.html.material import Material
from profiling.reporting.html.memory_section import memory_section
from profiling.reporting.html.section import Chart
from profiling.results.records import Record
from profiling.results.stats import summarize

Make = Callable[..., Record]
Gather = Callable[..., Material]
MIB = 2**20


def sampled(make: Make, samples: np.ndarray) -> Record:
    """Make a record of these samples; bootstrapping their median is not what is tried here."""
    wall = {"p50": float(np.median(samples)), "samples": samples.tolist()}
    return make("baseline", metrics={"wall_ms": wall})


def traces(chart: Chart, view: int = 0) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in chart.views[view].figure["data"]}


def test_bars_are_medians_with_their_intervals_and_a_wrong_one_is_pale(
    three: tuple[Record, ...], material: Gather
) -> None:
    (chart,) = latency_section(material(*three)).charts
    drawn = traces(chart)
    bar = drawn["baseline"]
    assert (bar["y"], bar["error_y"]["array"], bar["error_y"]["arrayminus"]) == ([28.7], [0.01], [0.01])
    assert drawn["baseline, p99"]["y"] == [28.8]
    assert bar["marker"]["opacity"] == [1.0]
    wrong = drawn["cuda_graph"]
    assert wrong["marker"]["opacity"] == [0.25]
    assert wrong["x"] == ["cuda_graph (failed: does not count)"]
    lines = [shape["y0"] for shape in chart.views[0].figure["layout"]["shapes"]]
    assert lines == [1000 / rate for rate in (24, 30, 60, 120)]


def test_a_budget_far_above_every_call_is_left_out(make: Make, material: Gather) -> None:
    (chart,) = latency_section(material(make("baseline", 5.0))).charts
    assert [shape["y0"] for shape in chart.views[0].figure["layout"]["shapes"]] == [1000 / 120]


def test_the_floor_is_drawn_where_it_is_known(make: Make, material: Gather) -> None:
    records = (make("baseline", 5.0, limits={"floor_ms": 1.25}), make("compile", 4.0))
    drawn = traces(latency_section(material(*records)).charts[0])
    assert drawn["baseline, floor"]["y"] == [1.25]
    assert "compile, floor" not in drawn


def test_components_together_and_each_alone(make: Make, material: Gather) -> None:
    records = [make(v, p50, component=c) for c, p50 in (("a", 1.0), ("b", 2.0)) for v in ("baseline", "compile")]
    (chart,) = latency_section(material(*records)).charts
    assert [view.label for view in chart.views] == ["all components", "a", "b"]
    assert traces(chart)["compile"]["x"] == ["a", "b"]
    assert traces(chart)["compile"]["y"] == [1.0, 2.0]
    assert traces(chart, 2)["compile"]["x"] == ["compile"]


@pytest.mark.parametrize("count", [50, 100_000])
def test_the_distribution_is_the_empirical_one(count: int, make: Make, material: Gather) -> None:
    samples = np.random.default_rng(0).gamma(3.0, 2.0, count)
    section = distribution_section(material(sampled(make, samples)))
    chart = next(chart for chart in section.charts if chart.key == "ecdf-calls")
    (line,) = traces(chart).values()
    assert len(line["x"]) == min(count, share(1))
    for x, y in zip(line["x"][:: max(1, count // 1000)], line["y"][:: max(1, count // 1000)], strict=True):
        assert y == pytest.approx((samples <= x * (1 + 1e-5)).mean(), abs=1e-4)
    assert line["x"][0] == pytest.approx(samples.min(), rel=1e-5)
    assert line["x"][-1] == pytest.approx(samples.max(), rel=1e-5)
    assert line["y"][-1] == 1.0
    assert ("thinned" in chart.note) == (count > share(1))


def test_flagged_samples_are_the_outliers_that_the_record_counts(make: Make, material: Gather) -> None:
    samples = 5 + 0.01 * np.random.default_rng(1).standard_normal(200)
    samples[[7, 90]] = 9.0, 1.0
    record = make("baseline", metrics={"wall_ms": summarize(samples).to_json()})
    section = distribution_section(material(record))
    drawn = traces(next(chart for chart in section.charts if chart.key == "samples"))
    assert {8, 91} <= set(drawn["baseline, flagged"]["x"])
    assert len(drawn["baseline, flagged"]["x"]) == record.metrics["wall_ms"]["outliers"]
    assert drawn["baseline"]["x"] == list(range(1, 201))


def test_thinned_samples_keep_the_lowest_and_the_highest(make: Make, material: Gather) -> None:
    samples = 5 + 0.01 * np.random.default_rng(2).standard_normal(200_000)
    samples[123_456], samples[7] = 50.0, 0.5
    section = distribution_section(material(sampled(make, samples)))
    drawn = traces(next(chart for chart in section.charts if chart.key == "samples"))["baseline"]
    assert len(drawn["x"]) <= share(1)
    assert (drawn["x"][drawn["y"].index(50.0)], drawn["x"][drawn["y"].index(0.5)]) == (123_457, 8)


def test_memory_is_drawn_by_phase_and_kind(make: Make, material: Gather) -> None:
    phases = {"start": {"allocated": 0, "host_rss": 600 * MIB}, "loaded": {"allocated": 3 * MIB, "host_rss": 700 * MIB}}
    memory = {"phases": phases, "peak_allocated": 5 * MIB}
    (chart,) = memory_section(material(make("baseline", 1.0, memory=memory))).charts
    views = {view.label: view.figure for view in chart.views}
    assert set(views) == {"world_model: allocated", "world_model: host RSS"}
    (bars,) = views["world_model: allocated"]["data"]
    assert dict(zip(bars["x"], bars["y"], strict=True)) == {"start": 0, "loaded": 3, "steady peak": 5}
    assert views["world_model: allocated"]["layout"]["yaxis"]["title"]["text"] == "allocated, MiB"
