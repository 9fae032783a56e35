"""Relations that hold on any CUDA device; no test asserts an absolute time."""

import math
from functools import partial

import pytest
import torch

from profiling.launch_overhead import sampling
from profiling.launch_overhead.cell import calibrate
from profiling.launch_overhead.sampling import DEVICE, call_repeatedly, idle_sample, queued_sample
from profiling.metrics.clocks import CallClock
from profiling.results.record import encode_sections

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(scope="module")
def content():
    return calibrate(torch.device("cuda"), "bfloat16")


def test_a_node_of_a_graph_is_cheaper_than_an_eager_launch(content):
    costs = content.launch_calibration
    encode_sections(launches=content)
    assert 0 < costs.graph_us_per_node.p50 < costs.host_us_per_launch.p50
    assert costs.graph_host_us_per_node.p50 < costs.host_us_per_launch.p50 / 2
    assert costs.graph_launch_host_us.p50 > 0


def test_the_starvation_size_agrees_with_the_operators(content):
    costs = content.launch_calibration
    for chain, size_name, of_chain in (("elementwise", "elements", costs), ("linear", "width", costs.linear)):
        size = getattr(of_chain, f"starvation_{size_name}").p50
        assert of_chain.starvation_us.p50 > 0
        ratios = {
            getattr(operator, size_name): operator.gpu_us.p50 / operator.host_us.p50
            for operator in content.operators
            if operator.chain == chain
        }
        # The crossing is a median of crossings, these are ratios of medians: a tenth of room.
        assert all(ratio > 0.9 for at, ratio in ratios.items() if at > size)
        assert ratios[max(at for at in ratios if at < size)] < 1.1


def test_the_slower_of_host_and_device_sets_the_pace(content):
    for operator in content.operators:
        assert operator.pace_us.p50 == pytest.approx(max(operator.host_us.p50, operator.gpu_us.p50), rel=0.25)


@pytest.fixture
def operator():
    with torch.inference_mode():
        yield torch.ones(16, device="cuda").neg_


def test_queued_launches_take_less_time_than_those_of_a_starved_device(operator):
    enqueue = partial(call_repeatedly, operator, 400)
    queued = [queued_sample(enqueue, 10)[DEVICE] for _ in range(9)]
    idle = [idle_sample(CallClock(torch.device("cuda")), enqueue)[DEVICE] for _ in range(9)]
    assert sorted(queued)[4] < 1.05 * sorted(idle)[4]


def test_more_launches_than_the_queue_holds_give_no_time(operator, monkeypatch):
    monkeypatch.setattr(sampling, "TRIES", 1)
    times = queued_sample(partial(call_repeatedly, operator, 20_000), 500)
    assert math.isnan(times[DEVICE])
