"""The clocks on a device whose costs are planted: 4 µs of the host a launch, 1.5 µs of the device."""

from functools import partial

import pytest
from fake_device import FakeDevice

from profiling.launch_overhead.sampling import Gate, call_times, free_sample

CPU = None  # the gate asks for a device only where torch has no spinning kernel


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice()
    fake.install(monkeypatch)
    return fake


def launches(device, count, *, host_us=4.0, gpu_us=1.5):
    return partial(call_times, partial(device.launch, host_us, gpu_us), count)


def test_on_a_free_device_the_slower_of_the_two_sets_the_pace(device):
    starved = free_sample(launches(device, 100))
    assert starved.host_us == pytest.approx(400)
    assert starved.device_us == pytest.approx(401.5)
    busy = free_sample(launches(device, 100, gpu_us=9.0))
    assert busy.host_us == pytest.approx(400)
    assert busy.device_us == pytest.approx(904)


def test_behind_the_gate_only_the_device_is_timed(device):
    timing = Gate(CPU).sample(launches(device, 100), milliseconds=2)
    assert timing.device_us == pytest.approx(150)
    assert timing.host_us is None


def test_a_gate_that_opened_too_early_is_noticed_and_made_longer(device):
    gate = Gate(CPU)
    start = device.host
    assert gate.sample(launches(device, 100), milliseconds=0.1).device_us == pytest.approx(150)
    assert device.host - start > 500, "0.1 ms is less than queueing takes, so there were more tries"


def test_a_queue_that_fills_makes_no_number(device):
    device.depth = 64
    assert Gate(CPU).sample(launches(device, 100), milliseconds=2).device_us is None
    device.depth = 128
    assert Gate(CPU).sample(launches(device, 100), milliseconds=2).device_us == pytest.approx(150)
