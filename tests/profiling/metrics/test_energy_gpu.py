"""Energy on a GPU: of cells, and of a loop; the numbers agree with what the driver says of the power."""

from __future__ import annotations

import os

import pynvml
import pytest
import torch

from profiling.machine import nvml
from profiling.machine.energy import EnergyCounter, NoEnergy, energy_windows, idle_power
from profiling.results.energy import energy_section

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(
        os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1",
        reason="the driver counts the energy of all processes on the GPU: run these tests with -n 0",
    ),
]

DEVICE = torch.device("cuda:0")


@pytest.fixture
def counter() -> EnergyCounter:
    try:
        return EnergyCounter(DEVICE)
    except NoEnergy as reason:
        pytest.skip(str(reason))


def test_the_idle_power_is_what_the_driver_says(counter):
    torch.ones(1, device=DEVICE)
    idle = idle_power(counter)
    reported = pynvml.nvmlDeviceGetPowerUsage(nvml.handle_of(DEVICE)) / 1e3
    assert idle.watts == pytest.approx(reported, rel=0.15)
    assert 0.001 < idle.step_s < 0.5


def test_power_and_energy_of_products_of_matrices(counter):
    matrix = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)

    def work():
        product = matrix
        for _ in range(20):
            product = (matrix @ product).clamp_(-1, 1)
        torch.cuda.synchronize(DEVICE)

    idle = idle_power(counter)
    plan = {"windows": 6, "window_steps": 5, "settle_s": 1.5, "max_s": 10.0}
    windows = energy_windows(work, counter, idle.step_s, **plan)
    reported = pynvml.nvmlDeviceGetPowerUsage(nvml.handle_of(DEVICE)) / 1e3  # the mean of the last second
    section = energy_section(windows, idle_w=idle.watts)
    assert section.watts == pytest.approx(reported, rel=0.1)
    assert section.watts > 1.5 * idle.watts
    assert section.above_idle_per_call < section.joules_per_call


def test_energy_in_a_run(profile):
    outcome = profile(
        "component=[net]", "variant=[baseline,cuda_graph]", "metric=[parity,latency,energy]", "device=cuda"
    )
    assert outcome.code == 0, outcome.err
    for record in outcome.records.values():
        assert record.energy.reason is None, record.energy.reason
        assert len(record.energy.windows) == 8
        assert record.energy.joules_per_call > 0
        assert record.energy.idle_w > 10
        assert record.energy.watts >= 0.9 * record.energy.idle_w


def test_energy_of_a_loop(realtime):
    outcome = realtime(
        *("variant=[cuda_graph]", "device=cuda", "scale=tiny", "loop.frames=600", "loop.warmup_frames=60"),
        *("loop.pace=realtime", "loop.fps=60"),
    )
    assert outcome.code == 0, outcome.out
    energy = outcome.records["realtime", "cuda_graph"].energy
    assert energy.reason is None, energy.reason
    assert energy.joules_per_frame == pytest.approx(energy.watts / 60, rel=0.03)
    assert energy.joules_per_call_ci95 is not None
