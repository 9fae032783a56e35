"""Energy by a counter that steps: the step, the idle power and the joules of calls are those of a known GPU."""

import pytest
from fake_energy import DEVICE, gpu  # noqa: F401 - a fixture

from profiling.machine.energy import EnergyCounter, NoEnergy, energy_windows, idle_power
from profiling.results.energy import energy_section

PLAN = {"windows": 8, "window_steps": 5, "settle_s": 1.0, "max_s": 20.0}


def measured_on(call, **plan):
    counter = EnergyCounter(DEVICE)
    idle = idle_power(counter)
    return idle, energy_windows(call, counter, idle.step_s, **PLAN | plan)


@pytest.mark.parametrize("step_s", [0.02, 0.1, 0.25])
def test_idle_power_and_step_are_those_of_the_gpu(gpu, step_s):  # noqa: F811
    gpu.step_s = step_s
    idle = idle_power(EnergyCounter(DEVICE))
    assert idle.watts == pytest.approx(120, rel=0.01)
    assert idle.step_s == pytest.approx(step_s, rel=0.02)


def test_a_counter_that_runs_on(gpu):  # noqa: F811
    gpu.step_s = 1e-5
    idle, windows = measured_on(gpu.call(0.002))
    assert idle.step_s < 0.005
    assert idle.watts == pytest.approx(120, rel=0.01)
    assert energy_section(windows).joules_per_call == pytest.approx(600 * 0.002, rel=0.01)


@pytest.mark.parametrize("call_s", [0.0003, 0.007, 0.09, 0.4], ids="{}s".format)
@pytest.mark.parametrize("lag_s", [0.0, 0.08])
def test_joules_of_a_call_whatever_its_length_and_the_lag_of_the_counter(gpu, call_s, lag_s):  # noqa: F811
    gpu.lag_s = lag_s
    idle, windows = measured_on(gpu.call(call_s))
    section = energy_section(windows, idle_w=idle.watts, frames_per_call=2)
    assert len(windows) == 8
    assert section.joules_per_call == pytest.approx(600 * call_s, rel=0.005)
    assert section.above_idle_per_call == pytest.approx(480 * call_s, rel=0.01)
    assert section.watts == pytest.approx(600, rel=0.005)
    assert section.joules_per_frame == pytest.approx(300 * call_s, rel=0.005)
    assert section.frames_per_joule == pytest.approx(1 / (300 * call_s), rel=0.005)
    low, high = section.joules_per_call_ci95
    assert low <= section.joules_per_call <= high
    assert all(each.joules / each.calls == pytest.approx(600 * call_s, rel=0.03) for each in windows)


def test_a_call_that_only_the_host_computes_is_polled_at_its_end(gpu):  # noqa: F811
    _, windows = measured_on(gpu.call(0.013, polls=1))
    assert energy_section(windows).joules_per_call == pytest.approx(600 * 0.013, rel=0.01)


def test_calls_before_the_windows_do_not_count(gpu):  # noqa: F811
    slow_rise = (gpu.call(0.01, 300.0), gpu.call(0.01))
    began = gpu.seconds
    risen = began + 3.0  # after the idle power and most of the second in which the power settles

    def call(poll):
        slow_rise[gpu.seconds > risen](poll)

    _, windows = measured_on(call, settle_s=3.0)
    assert energy_section(windows).watts == pytest.approx(600, rel=0.005)


def test_twice_the_work_takes_twice_the_energy_above_idle(gpu):  # noqa: F811
    once, twice = (
        energy_section(measured_on(gpu.call(seconds))[1], idle_w=120).above_idle_per_call for seconds in (0.004, 0.008)
    )
    assert twice / once == pytest.approx(2.0, abs=0.01)


def test_reading_the_counter_takes_a_small_part_of_the_time(gpu):  # noqa: F811
    def slow_read(value):
        gpu.work(0.005)
        return value

    gpu.fault = slow_read
    _, windows = measured_on(gpu.call(0.0002, polls=2))
    gpu.reads = 0
    counter = EnergyCounter(DEVICE)
    energy_windows(gpu.call(0.0002, polls=2), counter, 0.1, **PLAN)
    seconds = sum(each.seconds for each in windows)
    assert gpu.reads * 0.005 < 0.05 * seconds


@pytest.mark.parametrize("read_s", [0.0001, 0.0024, 0.006])
def test_windows_are_so_long_that_slow_readings_leave_them_within_3_percent(gpu, read_s):  # noqa: F811
    def slow_read(value):
        gpu.work(read_s)
        return value

    gpu.fault = slow_read
    _, windows = measured_on(gpu.call(0.003))
    joules = [each.joules / each.calls for each in windows]
    assert max(joules) / min(joules) < 1.03
    assert sum(each.seconds for each in windows) < 22


def test_power_that_differs_between_windows_widens_the_interval(gpu):  # noqa: F811
    watts = iter(int(500 + 40 * (number // 60 % 5)) for number in range(10**6))
    _, windows = measured_on(lambda poll: gpu.call(0.01, next(watts))(poll))
    low, high = energy_section(windows).joules_per_call_ci95
    assert high - low > 0.2


def test_use_by_others_ends_in_a_reason_unless_it_is_the_last_work_of_this_process(gpu, monkeypatch):  # noqa: F811
    gpu.use = 0.4
    with pytest.raises(NoEnergy, match=r"other processes use the GPU \(40%\)"):
        idle_power(EnergyCounter(DEVICE))

    began = gpu.seconds

    def sleep(counter, seconds):
        gpu.use = 0.0 if gpu.seconds > began + 1 else 0.4
        gpu.sleep(seconds)

    monkeypatch.setattr(EnergyCounter, "sleep", sleep)
    assert idle_power(EnergyCounter(DEVICE)).watts == pytest.approx(120, rel=0.01)
