"""Energy."""

import pynvml
import pytest
from fake_energy import DEVICE, FakeGpu, fails, gpu, measured  # noqa: F401 - a fixture
from table import promise

from profiling.machine import nvml
from profiling.metrics.monitor import FrameMonitor


class Later:
    """Shows the right value for a number of readings, then what `fault` makes of it."""

    def __init__(self, readings, fault):
        self.left, self.fault = readings, fault

    def __call__(self, value):
        self.left -= 1
        return value if self.left > 0 else self.fault(value)


COUNTERS = (
    ("the driver has no energy counter for the GPU", fails(pynvml.NVML_ERROR_NOT_SUPPORTED), "has no energy counter"),
    ("the user may not read the energy counter", fails(pynvml.NVML_ERROR_NO_PERMISSION), "does not permit this user"),
    ("there is no driver library", fails(pynvml.NVML_ERROR_NOT_FOUND), "NVML"),
    ("the driver fails when it is asked for the energy", fails(pynvml.NVML_ERROR_UNKNOWN), "cannot be read: Unknown"),
    ("the GPU is lost while its energy is measured", Later(900, fails(pynvml.NVML_ERROR_GPU_IS_LOST)), "GPU is lost"),
    ("the energy counter stands still", lambda value: 5_000_000_000, "has not changed for 2 s"),
    ("the energy counter stands still once calls run", Later(1100, lambda value: 6_000_000_000), "has not changed"),
    ("the energy counter goes back", Later(1100, lambda value: value - 7_000_000), "went back by"),
)


@promise("energy")
@pytest.mark.parametrize(("shows", "says"), [pytest.param(*row[1:], id=row[0]) for row in COUNTERS])
def test_a_counter_that_cannot_tell(gpu, shows, says):  # noqa: F811
    gpu.fault = shows
    section = measured()
    assert says in section.reason
    assert section.joules_per_call is None
    assert section.watts is None
    assert not section.windows


@promise("energy")
def test_a_part_of_a_gpu_and_others_that_use_it(gpu, monkeypatch):  # noqa: F811
    with monkeypatch.context() as patched:
        patched.setattr(nvml, "is_mig", lambda device: True)
        assert "MIG is on" in measured().reason
    with monkeypatch.context() as patched:
        patched.setattr(nvml, "share_of_others", lambda device, seconds: 0.3)
        assert "other processes used the GPU for 30% of the time" in measured().reason
    gpu.use = 0.1
    assert "other processes use the GPU (10%)" in measured().reason


@promise("energy")
def test_a_counter_that_fails_in_a_loop(monkeypatch):
    made = FakeGpu()
    made.install(monkeypatch)
    monkeypatch.setattr(nvml, "limited_ns", lambda device: {})
    monkeypatch.setattr(nvml, "sm_clock_mhz", lambda device: None)
    monkeypatch.setattr(nvml, "memory_used", lambda device: 1)
    monkeypatch.setattr("profiling.machine.memory.malloc_cost", lambda device: None)
    monkeypatch.setattr("torch.cuda.memory_stats_as_nested_dict", _no_memory)
    monitor = FrameMonitor(DEVICE)
    rows = []
    for frame in range(96):
        made.work(0.02)
        if frame == 48:
            made.fault = fails(pynvml.NVML_ERROR_GPU_IS_LOST)
        rows.append(monitor(frame, 20.0))
    monitor.close()
    assert [frame for frame, row in enumerate(rows) if "energy_j" in row] == [0, 16, 32]
    assert "GPU is lost" in monitor.energy_reason
    assert rows[32]["energy_j"] == pytest.approx(33 * 0.02 * 600, abs=0.1 * 600)


def _no_memory(_device):
    sizes = {"all": {"current": 0}}
    return {"num_alloc_retries": 0, "num_device_alloc": 0, "allocated_bytes": sizes, "reserved_bytes": sizes}
