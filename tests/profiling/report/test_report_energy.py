"""Energy in the report: the table, the reason where it is not known, the answer and the exports."""

import csv
import io
import json

import pytest
from report_records import build, run_data

from profiling.report.energy import energy_section, joules_per_frame
from profiling.report.export import as_csv, as_json
from profiling.report.format import Estimate
from profiling.report.render import render_console


def energy(joules, frames=1, **changes):
    return {
        **{"step_ms": 100.0, "idle_w": 118.0, "watts": 600.0, "joules_per_call": joules},
        **{"joules_per_call_ci95": [joules - 0.01, joules + 0.01], "above_idle_per_call": 0.8 * joules},
        **{"joules_per_frame": joules / frames, "above_idle_per_frame": 0.8 * joules / frames},
        "windows": [{"seconds": 0.5, "calls": 100.0, "joules": 100 * joules}] * 8,
        **changes,
    }


@pytest.fixture
def data():
    reason = {"reason": "the driver has no energy counter for this GPU"}
    return run_data(
        build("baseline", 12.0, energy=energy(4.4)),
        build("cuda_graph", 3.0, energy=energy(1.25)),
        build("compile", 6.0, energy=reason),
    )


def test_a_row_for_each_cell_whose_energy_is_known(data):
    section = energy_section(data)
    (table,) = section.tables
    assert [record.variant for record in table.rows] == ["baseline", "cuda_graph"]
    text = render_console(data)
    assert "1.250 ±0.8%" in text
    assert "(0.66-0.66)" in text, "above idle, of windows that are alike"
    assert "Energy of world_model.compile is not known: the driver has no energy counter for this GPU." in text
    assert "600" in text
    assert "118" in text


def test_the_exports_have_the_energy_of_the_fastest(data):
    assert json.loads(as_json(data))["answer"][0]["joules_per_frame"] == 1.25
    rows = {row["variant"]: row for row in csv.DictReader(io.StringIO(as_csv(data)))}
    assert rows["cuda_graph"]["joules_per_frame"] == "1.25"
    assert rows["compile"]["joules_per_frame"] == ""


def test_frames_of_a_call_share_its_energy():
    record = build("cuda_graph", 30.0, frames_per_call=10, energy=energy(2.0, frames=10))
    assert joules_per_frame(record) == Estimate(0.2, pytest.approx(0.199), pytest.approx(0.201))
