"""The calibration on a device with planted costs, on this CPU, and with wrong options."""

import gc
import math
from functools import partial

import numpy as np
import pytest
import torch
from fake_device import FakeDevice, plant_graphs

from profiling.errors import InputError
from profiling.launch_overhead.cell import ChainSamples, calibrate
from profiling.launch_overhead.chains import Chain, make_chains
from profiling.launch_overhead.options import CalibrationOptions
from profiling.launch_overhead.sampling import (
    Series,
    StreamBlocker,
    Timing,
    call_repeatedly,
    idle_sample,
    sample_rounds,
    samplers_of,
)
from profiling.metrics.clocks import CudaClock
from profiling.results.explained import LaunchCosts
from profiling.results.record import encode_sections

COUNTS = (1, 50, 100, 200, 400)
HOST_US, GPU_US = 4.0, 1.5
SIZES = tuple(4**power for power in range(9))


def gpu_us(size):
    """Grow so that the device needs the host's 4 µs at 10 000 elements."""
    return GPU_US + 2.5 * size / 10_000


def planted(monkeypatch, sizes=SIZES, **device):
    fake = FakeDevice(**device)
    fake.install(monkeypatch)
    plant_graphs(fake, monkeypatch)
    chain = Chain("elementwise", "elements", sizes, lambda size: partial(fake.launch, HOST_US, gpu_us(size)))
    times = sample_rounds(samplers_of((chain,), COUNTS, torch.device("cuda")), COUNTS, 9, 0, lambda line: None)
    return ChainSamples(chain, times)


@pytest.mark.parametrize("interrupts", [0.0, 0.0005])
def test_each_cost_is_found(monkeypatch, interrupts):
    samples = planted(monkeypatch, interrupt_share=interrupts)
    costs = LaunchCosts(**samples.launch(), **samples.graph())
    for key, value in {
        "host_us_per_launch": HOST_US,
        "gpu_us_per_launch": gpu_us(1),
        "graph_us_per_node": 1.2,
        "graph_launch_host_us": 8,
        "graph_host_us_per_node": 0.01,
        "graph_launch_device_us": 5,
        "starvation_elements": 10_000,
        "starvation_us": 4,
    }.items():
        # Between two sizes the crossing is interpolated, and the planted durations are no straight line in logarithms.
        tolerance = 0.1 if key == "starvation_elements" else 0.02
        cost = getattr(costs, key)
        assert cost.p50 == pytest.approx(value, rel=tolerance), key
        assert cost.n == 9
        assert cost.ci95[0] <= cost.p50 <= cost.ci95[1]


def test_the_operators_show_where_the_device_waits(monkeypatch):
    operators = planted(monkeypatch).operators()
    assert [operator.elements for operator in operators] == list(SIZES)
    for operator in operators:
        assert operator.pace_us.p50 == pytest.approx(max(operator.host_us.p50, operator.gpu_us.p50), rel=0.02)


@pytest.mark.parametrize(("sizes", "where"), [((1, 10, 100), "up to elements 100"), ((2**16, 2**18), "from elements")])
def test_a_sweep_without_a_crossing_has_a_note_in_its_place(monkeypatch, sizes, where):
    costs = planted(monkeypatch, sizes=sizes).launch()
    assert where in costs["starvation_note"]
    assert "starvation_elements" not in costs


def test_samples_that_overflow_the_queue_are_absent(monkeypatch):
    samples = planted(monkeypatch, depth=30)
    costs = LaunchCosts(**samples.launch())
    assert costs.gpu_us_per_launch is costs.starvation_elements is costs.starvation_note is None
    assert costs.host_us_per_launch is not None
    queued = [times.device for series, times in samples.times.items() if series.mode == "eager_queued"]
    assert all(np.isfinite(device[:, 0]).all() and np.isnan(device[:, 1:]).all() for device in queued)


def test_rounds_shuffle_the_counts_and_the_warm_up_is_dropped():
    seen = []

    def sample(count):
        seen.append(count)
        return Timing(host_us=1000.0 if len(seen) <= 6 else 3.0 + 2 * count)

    lines = []
    key = Series("elementwise", 1, "eager")
    times = sample_rounds({key: sample}, COUNTS, 4, 0, lines.append)
    assert lines == ["warm-up", "round 1 of 4", "round 2 of 4", "round 3 of 4", "round 4 of 4"]
    rounds = [seen[start + 1 : start + 6] for start in range(0, len(seen), 6)]
    assert all(sorted(counts) == list(COUNTS) for counts in rounds)
    assert len({tuple(counts) for counts in rounds}) > 1, "in another order each round"
    assert times[key].host_lines().slope == pytest.approx([2] * 4)
    assert times[key].host_lines().intercept == pytest.approx([3] * 4)


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice()
    fake.install(monkeypatch)
    return fake


def launches(device, count, *, host_us=4.0, gpu_us=1.5):
    return partial(call_repeatedly, partial(device.launch, host_us, gpu_us), count)


def test_on_an_idle_device_the_slower_of_the_two_sets_the_pace(device):
    starved = idle_sample(CudaClock(), launches(device, 100))
    assert starved.host_us == pytest.approx(400)
    assert starved.device_us == pytest.approx(401.5)
    busy = idle_sample(CudaClock(), launches(device, 100, gpu_us=9.0))
    assert busy.host_us == pytest.approx(400)
    assert busy.device_us == pytest.approx(904)


def test_behind_the_blocker_only_the_device_is_timed(device):
    timing = StreamBlocker().sample(launches(device, 100), milliseconds=2)
    assert timing.device_us == pytest.approx(150)
    assert math.isnan(timing.host_us)


def test_a_blocker_that_ended_too_early_is_made_longer(device):
    blocker = StreamBlocker()
    start = device.host
    assert blocker.sample(launches(device, 100), milliseconds=0.1).device_us == pytest.approx(150)
    assert device.host - start > 500, "0.1 ms is less than queueing takes, so there were more tries"


def test_a_full_queue_gives_no_time(device):
    device.depth = 64
    assert math.isnan(StreamBlocker().sample(launches(device, 100), milliseconds=2).device_us)
    device.depth = 128
    assert StreamBlocker().sample(launches(device, 100), milliseconds=2).device_us == pytest.approx(150)


OPTIONS = CalibrationOptions(elements=(1, 1024, 2**20), widths=(1, 64, 512), counts=(1, 50, 100), rounds=5)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def content():
    collecting = []
    content = calibrate(CPU, OPTIONS, on_progress=lambda line: collecting.append(gc.isenabled()))
    assert not any(collecting)
    assert gc.isenabled()
    return content


def test_both_chains_have_dispatch_costs_and_none_of_a_gpu(content):
    fields = encode_sections(launches=content)["launches"]["launch_calibration"]
    calibration = content.launch_calibration
    for costs, names in ((calibration, fields), (calibration.linear, fields["linear"])):
        assert costs.dispatch_us_per_operator.p50 > 0
        assert costs.dispatch_us_per_operator.n == 5
        assert not [name for name in names if name.startswith(("host", "gpu", "graph", "starvation"))]
    # An operator on a million elements takes longer than its dispatch, on any machine.
    elements = calibration.dispatch_bound_elements.p50
    assert 1 < elements < 2**20


def test_the_operators_compute_what_their_names_say():
    elementwise, linear = make_chains(CPU, CalibrationOptions(rows=3), torch.float32, 5)
    operator = elementwise.operator(4)
    assert operator().tolist() == [-1.0] * 4
    assert operator().tolist() == [1.0] * 4, "in place"
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(3, 8, generator=generator), torch.randn(8, 8, generator=generator)
    operator = linear.operator(8)
    torch.testing.assert_close(operator(), torch.nn.functional.linear(x, weight))
    assert operator().data_ptr() == operator().data_ptr(), "into the same buffer"


def test_lists_become_tuples_and_defaults_hold():
    options = CalibrationOptions(elements=[1, 10], widths=[1, 2], counts=[1, 2, 3])
    assert (options.elements, options.widths, options.counts) == ((1, 10), (1, 2), (1, 2, 3))
    assert CalibrationOptions().elements is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"elements": [1]},
        {"elements": [4, 2]},
        {"elements": [0, 2]},
        {"elements": "12"},
        {"elements": [1, 2**40]},
        {"widths": [2, 2]},
        {"widths": [1.5, 3]},
        {"widths": [True, 3]},
        {"widths": 64},
        {"counts": [1, 2]},
        {"counts": [1, 2, 5000]},
        {"counts": None},
        {"rows": 0},
        {"rounds": 2},
        {"rounds": "many"},
    ],
)
def test_nonsense_is_refused_on_one_line_that_names_it(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))) as caught:
        CalibrationOptions(**wrong)
    assert "\n" not in str(caught.value)
