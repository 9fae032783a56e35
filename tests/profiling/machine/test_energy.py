"""Energy by a counter that steps: the step, the idle power and the joules of calls are those of a known GPU."""

import threading
import time

import pynvml
import pytest
import torch
from fake_energy import DEVICE, gpu, measured, subject_on  # noqa: F401 - a fixture

from profiling.machine import energy, nvml
from profiling.machine.energy import EnergyCounter, NoEnergy, energy_windows, idle_power
from profiling.metrics.energy import Energy
from profiling.results.energy import EnergyWindow, energy_section

PLAN = {"windows": 8, "window_steps": 5, "settle_s": 1.0, "max_s": 20.0}


def measured_on(call, **plan):
    counter = EnergyCounter(DEVICE)
    idle = idle_power(counter)
    return idle, energy_windows(call, counter, idle.step_s, **PLAN | plan)


@pytest.mark.parametrize("step_s", [1e-5, 0.02, 0.25], ids=["runs on", "0.02 s", "0.25 s"])
def test_idle_power_and_step_are_those_of_the_gpu(gpu, step_s):  # noqa: F811
    gpu.step_s = step_s
    idle, windows = measured_on(gpu.call(0.002))
    assert idle.watts == pytest.approx(120, rel=0.01)
    assert idle.step_s == pytest.approx(step_s, rel=0.02) if step_s > 0.001 else idle.step_s < 0.005
    assert energy_section(windows).joules_per_call == pytest.approx(600 * 0.002, rel=0.01)


@pytest.mark.parametrize(("call_s", "lag_s"), [(0.0003, 0.08), (0.007, 0.0), (0.4, 0.08)])
def test_joules_of_a_call_whatever_its_length_and_the_lag_of_the_counter(gpu, call_s, lag_s):  # noqa: F811
    gpu.lag_s = lag_s
    idle, windows = measured_on(gpu.call(call_s))
    section = energy_section(windows, idle_w=idle.watts, frames_per_call=2)
    assert len(windows) == 8
    assert section.joules_per_call == pytest.approx(600 * call_s, rel=0.005)
    assert section.above_idle_per_call == pytest.approx(480 * call_s, rel=0.01)
    assert section.watts == pytest.approx(600, rel=0.005)
    assert section.joules_per_frame == pytest.approx(300 * call_s, rel=0.005)
    assert energy_section(windows, frames_per_call=0).joules_per_frame is None, "a call that makes no frames"
    low, high = section.joules_per_call_ci95
    assert low <= section.joules_per_call <= high
    assert all(each.joules / each.calls == pytest.approx(600 * call_s, rel=0.03) for each in windows)


def test_waiting_of_unequal_length_widens_only_the_interval_that_contains_idle_power():
    """A host that launches at changing speed: a call takes 0.4 J of work, and idle power while it lasts."""
    windows = [EnergyWindow(seconds=0.5, calls=n, joules=120 * 0.5 + 0.4 * n) for n in (25, 30, 35, 28, 40, 33, 26, 31)]
    section = energy_section(windows, idle_w=120)
    low, high = section.joules_per_call_ci95
    assert high - low > 0.2
    assert section.above_idle_per_frame_ci95 == pytest.approx((0.4, 0.4))
    assert energy_section(windows).above_idle_per_frame_ci95 is None
    assert energy_section(windows, idle_w=1000).above_idle_per_frame_ci95 is None, "less than idle is no energy"


def test_calls_before_the_windows_do_not_count(gpu):  # noqa: F811
    slow_rise = (gpu.call(0.01, 300.0), gpu.call(0.01))
    risen = gpu.seconds + 3.0  # after the idle power and most of the second in which the power settles

    def call():
        slow_rise[gpu.seconds > risen]()

    _, windows = measured_on(call, settle_s=3.0)
    assert energy_section(windows).watts == pytest.approx(600, rel=0.005)


def slow_reading(gpu, read_s):  # noqa: F811
    """Let each reading take so long, while calls go on."""

    def slow_read(value):
        gpu.work(read_s)
        return value

    gpu.fault = slow_read


@pytest.mark.parametrize(("read_s", "longest_s"), [(0.0001, 0.6), (0.006, 1.5)])
def test_windows_are_so_long_that_slow_readings_leave_them_within_3_percent(gpu, read_s, longest_s):  # noqa: F811
    slow_reading(gpu, read_s)
    _, windows = measured_on(gpu.call(0.003))
    joules = [each.joules / each.calls for each in windows]
    assert max(joules) / min(joules) < 1.03
    assert max(each.seconds for each in windows) < longest_s


def test_the_counter_is_read_only_while_a_step_is_awaited_also_while_a_long_call_is_under_way(gpu):  # noqa: F811
    slow_reading(gpu, 0.005)
    gpu.reads = 0
    windows = energy_windows(gpu.call(0.0002), EnergyCounter(DEVICE), 0.1, **PLAN | {"settle_s": 0.1})
    assert gpu.reads * 0.005 < 0.1 * sum(each.seconds for each in windows)
    slow_reading(gpu, 0.0024)
    _, windows = measured_on(gpu.call(0.25))
    assert energy_section(windows).joules_per_call == pytest.approx(150, rel=0.005)
    assert all(each.joules / each.calls == pytest.approx(150, rel=0.01) for each in windows)


@pytest.mark.parametrize("readings", [None, 3, 20])
def test_a_thread_sees_the_steps_while_calls_are_made(monkeypatch, readings):
    """A GPU that takes 500 W, in steps of 20 ms of the real clock; it may be lost after so many readings."""
    left = iter(range(readings or 10**9))

    def counter(_device):
        if next(left, None) is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return int(500e3 * 0.02 * (time.perf_counter() // 0.02))

    def measure():
        plan = {"windows": 4, "window_steps": 5, "settle_s": 0.1, "max_s": 2.0}
        return energy_windows(lambda: time.sleep(0.001), EnergyCounter(DEVICE), 0.02, **plan)

    monkeypatch.setattr(nvml, "is_mig", lambda device: False)
    monkeypatch.setattr(nvml, "energy_mj", counter)
    if readings is None:
        windows = measure()
        assert len(windows) == 4
        assert energy_section(windows).watts == pytest.approx(500, rel=0.2)
    else:
        with pytest.raises(NoEnergy, match="cannot be read"):
            measure()
    assert not [thread for thread in threading.enumerate() if thread.name == "energy-counter"]


def test_the_last_work_of_this_process_is_no_use_by_others(gpu, monkeypatch):  # noqa: F811
    gpu.use, began = 0.4, gpu.seconds

    def sleep(seconds):
        gpu.use = 0.0 if gpu.seconds > began + 1 else 0.4
        gpu.sleep(seconds)

    monkeypatch.setattr(energy, "sleep", sleep)
    assert idle_power(EnergyCounter(DEVICE)).watts == pytest.approx(120, rel=0.01)


def test_the_metric_measures_as_many_windows_as_asked_and_says_that_a_cpu_has_none(gpu):  # noqa: F811
    began = gpu.seconds
    section = measured(windows=12, window_steps=3)
    assert gpu.seconds - began < 7
    assert len(section.windows) == 12
    assert all(each.seconds == pytest.approx(0.3, abs=0.05) for each in section.windows)
    assert section.idle_w == pytest.approx(120, rel=0.01)
    assert section.step_ms == pytest.approx(100, rel=0.02)
    assert section.joules_per_call == pytest.approx(6.0, rel=0.01)
    assert section.above_idle_per_frame == pytest.approx(1.2, rel=0.01)
    on_cpu = Energy().measure(subject_on(torch.device("cpu"))).sections["energy"]
    assert (on_cpu.reason, on_cpu.joules_per_call) == ("the energy of a CPU is not measured", None)
