"""The calibration on a device with planted costs and on this CPU; lines, intervals and crossings of known values."""

import gc
import math
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from profiling.launch_overhead import sampling
from profiling.launch_overhead.cell import ChainSamples, at_size, calibrate, crossing, estimate, fit_lines
from profiling.launch_overhead.sampling import (
    COUNTS,
    DEVICE,
    HOST,
    Chain,
    Series,
    call_repeatedly,
    make_chains,
    queued_sample,
    sample_rounds,
    samplers_of,
)
from profiling.metrics import clocks
from profiling.results.explanations import Estimate, LaunchCosts
from profiling.results.record import encode_sections

HOST_US, GPU_US = 4.0, 1.5
SIZES = tuple(4**power for power in range(9))
CPU = torch.device("cpu")


class FakeDevice:
    """Host and device timelines in microseconds; `depth` launches fit into the queue before the host waits.

    The replay of a graph of n nodes takes the host 8 + 0.01 n and the device 5 + 1.2 n.
    """

    def __init__(self, monkeypatch, depth=1024, interrupt_share=0.0):
        self.depth, self.interrupt_share, self.rng = depth, interrupt_share, random.Random(0)
        self.host = self.free_at = 0.0
        self.pending = []
        device = self

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing

            def record(self):
                self.at = max(device.free_at, device.host)

            def query(self):
                return device.host >= self.at

            def elapsed_time(self, end):
                return (end.at - self.at) / 1e3

        def graph(_operator, nodes):
            return SimpleNamespace(replay=lambda: self.launch(8 + 0.01 * nodes, 5 + 1.2 * nodes))

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(clocks, "perf_counter_ns", lambda: self.host * 1e3)
        monkeypatch.setattr(sampling, "captured", graph)

    def launch(self, host_us, gpu_us):
        self.host += host_us + 300.0 * (self.rng.random() < self.interrupt_share)
        self.pending = [end for end in self.pending if end > self.host]
        if len(self.pending) >= self.depth:
            self.host = self.pending[-self.depth]
        self.free_at = max(self.free_at, self.host) + gpu_us
        self.pending.append(self.free_at)

    def sleep(self, cycles):
        self.free_at = max(self.free_at, self.host) + cycles / 2000  # 2 GHz

    def synchronize(self):
        self.host = max(self.host, self.free_at)


def gpu_us(size):
    """Grow so that the device needs the host's 4 µs at 10 000 elements."""
    return GPU_US + 2.5 * size / 10_000


def planted(monkeypatch, sizes=SIZES, **device):
    fake = FakeDevice(monkeypatch, **device)
    chain = Chain("elementwise", "elements", sizes, lambda size: partial(fake.launch, HOST_US, gpu_us(size)))
    times = sample_rounds(samplers_of((chain,), torch.device("cuda")), 9, 0, lambda line: None)
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
    operators = samples.operators()
    assert [operator.elements for operator in operators] == list(SIZES)
    for operator in operators:
        slower = max(HOST_US, gpu_us(operator.elements))
        assert operator.pace_us.p50 == pytest.approx(slower, rel=0.02), "the slower of host and device sets the pace"


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
    queued = [times[DEVICE] for series, times in samples.times.items() if series.queued and not series.captured]
    assert all(np.isfinite(device[:, 0]).all() and np.isnan(device[:, 1:]).all() for device in queued)


def test_a_blocker_that_ended_too_early_is_made_longer(monkeypatch):
    device = FakeDevice(monkeypatch)
    launches = partial(call_repeatedly, partial(device.launch, 4.0, 1.5), 100)
    assert queued_sample(launches, milliseconds=0.1)[DEVICE] == pytest.approx(150)
    assert device.host > 500, "0.1 ms is less than queueing takes, so there were more tries"


def test_rounds_shuffle_the_counts_and_the_warm_up_is_dropped():
    seen, lines = [], []

    def sample(count):
        seen.append(count)
        return 1000.0 if len(seen) <= 6 else 3.0 + 2 * count, math.nan

    key = Series("elementwise", 1)
    times = sample_rounds({key: sample}, 4, 0, lines.append)
    assert lines == ["warm-up", "round 1 of 4", "round 2 of 4", "round 3 of 4", "round 4 of 4"]
    rounds = [seen[start + 1 : start + 6] for start in range(0, len(seen), 6)]
    assert all(sorted(counts) == list(COUNTS) for counts in rounds)
    assert len({tuple(counts) for counts in rounds}) > 1, "in another order each round"
    slope, intercept = fit_lines(times[key][HOST])
    assert slope == pytest.approx([2] * 4)
    assert intercept == pytest.approx([3] * 4)


def test_both_chains_have_dispatch_costs_on_a_cpu_and_none_of_a_gpu(monkeypatch):
    monkeypatch.setitem(sampling.ELEMENTS, "cpu", (1, 1024, 2**18))
    collecting = []
    content = calibrate(CPU, on_progress=lambda line: collecting.append(gc.isenabled()))
    assert not any(collecting)
    assert gc.isenabled()
    fields = encode_sections(launches=content)["launches"]["launch_calibration"]
    calibration = content.launch_calibration
    for costs, names in ((calibration, fields), (calibration.linear, fields["linear"])):
        assert costs.dispatch_us_per_operator.p50 > 0
        assert costs.dispatch_us_per_operator.n == 15
        assert not [name for name in names if name.startswith(("host", "gpu", "graph", "starvation"))]
    # An operator on so many elements takes longer than its dispatch, on any machine.
    assert 1 < calibration.dispatch_bound_elements.p50 < 2**18


def test_the_operators_compute_what_their_names_say():
    elementwise, linear = make_chains(CPU, torch.float32, 5)
    operator = elementwise.operator(4)
    assert operator().tolist() == [-1.0] * 4
    assert operator().tolist() == [1.0] * 4, "in place"
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(1, 8, generator=generator), torch.randn(8, 8, generator=generator)
    operator = linear.operator(8)
    torch.testing.assert_close(operator(), torch.nn.functional.linear(x, weight))
    assert operator().data_ptr() == operator().data_ptr(), "into the same buffer"


def test_neither_one_wrong_point_of_five_nor_a_drift_between_rounds_moves_a_line():
    """Six rounds, each 100 later than the one before; in all but the first another point is far off."""
    times = 7 + 3.5 * np.array(COUNTS, dtype=float) + 100 * np.arange(6.0)[:, None]
    for wrong in range(5):
        times[wrong + 1, wrong] += 5000
    slope, intercept = fit_lines(times)
    assert slope == pytest.approx([3.5] * 6)
    assert intercept == pytest.approx(7 + 100 * np.arange(6))


def test_unmeasured_points_are_left_out_and_two_make_no_line():
    times = np.tile(7 + 3.5 * np.array(COUNTS, dtype=float), (2, 1))
    times[:, [0, 3]] = math.nan
    times[1, 4] = math.nan
    slope, intercept = fit_lines(times)
    assert slope == pytest.approx([3.5, math.nan], nan_ok=True)
    assert intercept == pytest.approx([7, math.nan], nan_ok=True)


def test_unmeasured_rounds_have_no_estimate_and_few_rounds_no_interval():
    assert estimate(np.array([math.nan, math.nan])) is None
    assert estimate(np.array([math.inf, math.inf, 3.0])) is None
    assert estimate(np.array([2.0, math.nan, 4.0])) == Estimate(p50=3.0, n=2)
    assert estimate(np.array([2.0, 3.0, 4.0, math.inf, 3.0])) == Estimate(p50=3.0, n=5)
    assert estimate(np.array([2.0, 1.0, 3.0, 4.0, 6.0, 5.0])).ci95 == (1.0, 6.0)


def test_a_power_law_is_interpolated_without_error():
    sizes = (10, 1000, 100_000)
    assert crossing(sizes, [(size / 700) ** 0.5 for size in sizes]) == pytest.approx(700)
    roots = [size**0.5 for size in sizes]
    assert at_size(700, sizes, roots) == pytest.approx(700**0.5)
    assert math.isnan(at_size(math.nan, sizes, roots)), "nothing is known outside of the sizes"
    assert math.isnan(at_size(math.inf, sizes, roots))


@pytest.mark.parametrize(
    ("ratios", "size"),
    [
        ((0.1, 2, 3), 10 ** (1 / (1 + math.log10(2)))),
        ((0.5, 2, 0.5, 2), 1000 * 10**0.5),  # the last of two
        ((0.1, 0.2, 0.9), math.inf),
        ((1.1, 2, 3), -math.inf),
        *(((0.1, wrong, 3), math.nan) for wrong in (math.nan, 0.0, -0.2)),  # not measured
    ],
)
def test_where_ratios_rise_through_1(ratios, size):
    assert crossing((1, 10, 100) if len(ratios) == 3 else (10, 100, 1000, 10_000), ratios) == pytest.approx(
        size, nan_ok=True
    )
