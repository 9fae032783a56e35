"""The metric `energy`: idle power, then windows of calls; what the record says where the counter cannot tell."""

import pytest
import torch
from fake_energy import gpu, measured, subject_on  # noqa: F401 - a fixture

from profiling.metrics.energy import Energy
from profiling.results.measured import Metrics
from profiling.results.record import merge_metric


def test_energy_is_a_section_of_the_record(gpu):  # noqa: F811
    section = measured()
    assert section.idle_w == pytest.approx(120, rel=0.01)
    assert section.step_ms == pytest.approx(100, rel=0.02)
    assert section.joules_per_call == pytest.approx(6.0, rel=0.01)
    assert section.joules_per_frame == pytest.approx(1.5, rel=0.01)
    assert section.above_idle_per_frame == pytest.approx(1.2, rel=0.01)
    metrics, sections = merge_metric(Metrics(), {"energy": section})
    assert metrics == Metrics()
    assert sections["energy"] == section


def test_windows_are_as_many_and_as_long_as_asked(gpu):  # noqa: F811
    began = gpu.seconds
    section = measured(windows=12, window_steps=3)
    assert len(section.windows) == 12
    assert all(each.seconds == pytest.approx(0.3, abs=0.05) for each in section.windows)
    assert gpu.seconds - began < 7


def test_a_cpu_has_no_energy():
    section = Energy().measure(subject_on(torch.device("cpu"))).sections["energy"]
    assert section.reason == "the energy of a CPU is not measured"
    assert section.joules_per_call is None
