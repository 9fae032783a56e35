"""Energy in the report: the cells, the reason where it is not known, and the exports."""

import csv
import io
import json

import pytest
from report_records import build, cells, run_data

from profiling.report.answer import notes_section
from profiling.report.export import as_csv, as_json


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


def test_the_exports_have_the_energy_of_the_fastest_and_a_note_says_why_there_is_none(data):
    assert notes_section(data).lines[0] == (
        "world_model.compile: no energy: the driver has no energy counter for this GPU"
    )
    assert json.loads(as_json(data))["answer"][0]["joules_per_frame"] == 1.25
    rows = {row["variant"]: row for row in csv.DictReader(io.StringIO(as_csv(data)))}
    assert rows["cuda_graph"]["joules_per_frame"] == "1.25"
    assert rows["compile"]["joules_per_frame"] == ""


def test_frames_of_a_call_share_its_energy():
    record = build("cuda_graph", 30.0, frames_per_call=10, energy=energy(2.0, frames=10))
    (row,) = cells(record)
    assert row["J/frame"] == "0.2000 ±0.5%"
