"""Relations that hold on any CUDA device; no test asserts an absolute time."""

import json
from functools import partial

import pytest
import torch

from profiling.launch_overhead.cell import calibrate
from profiling.launch_overhead.options import CalibrationOptions
from profiling.launch_overhead.sampling import Gate, call_times, free_sample

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def content():
    return calibrate(torch.device("cuda"), CalibrationOptions(rounds=7, dtype="bfloat16"), lambda line: None)


def middle(numbers, key):
    return numbers[key]["p50"]


def test_a_node_of_a_graph_is_cheaper_than_an_eager_launch(content):
    calibration = content["launch_calibration"]
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert 0 < middle(calibration, "graph_us_per_node") < middle(calibration, "host_us_per_launch")
    assert middle(calibration, "graph_host_us_per_node") < middle(calibration, "host_us_per_launch") / 2
    assert middle(calibration, "graph_launch_host_us") > 0


def test_the_starvation_size_agrees_with_the_operators(content):
    calibration = content["launch_calibration"]
    for chain, size_name, numbers in (
        ("elementwise", "elements", calibration),
        ("linear", "width", calibration["linear"]),
    ):
        size = middle(numbers, f"starvation_{size_name}")
        assert middle(numbers, "starvation_us") > 0
        ratios = {
            row[size_name]: middle(row, "gpu_us") / middle(row, "host_us")
            for row in content["operators"]
            if row["chain"] == chain
        }
        # The crossing is a median of crossings, these are ratios of medians: a tenth of room.
        assert all(ratio > 0.9 for at, ratio in ratios.items() if at > size)
        assert ratios[max(at for at in ratios if at < size)] < 1.1


def test_the_slower_of_host_and_device_sets_the_pace(content):
    for row in content["operators"]:
        slower = max(middle(row, "host_us"), middle(row, "gpu_us"))
        assert middle(row, "pace_us") == pytest.approx(slower, rel=0.25)


def test_all_points_were_measured(content):
    queued = [point for point in content["points"] if point["mode"].endswith("queued")]
    assert queued
    assert all(point["n"] == 7 and point["device_us"] > 0 for point in queued)


@pytest.fixture
def operator():
    with torch.inference_mode():
        return torch.ones(16, device="cuda").neg_


def test_both_gates_give_the_same_time_and_less_than_a_starved_device(operator, monkeypatch):
    enqueue = partial(call_times, operator, 400)
    with torch.inference_mode():
        spinning = Gate(torch.device("cuda"))
        by_spinning = [spinning.sample(enqueue, 10).device_us for _ in range(9)]
        monkeypatch.delattr(torch.cuda, "_sleep")
        multiplying = Gate(torch.device("cuda"))
        by_multiplying = [multiplying.sample(enqueue, 10).device_us for _ in range(9)]
        free = [free_sample(enqueue).device_us for _ in range(9)]
    assert sorted(by_multiplying)[4] == pytest.approx(sorted(by_spinning)[4], rel=0.3)
    assert sorted(by_spinning)[4] < 1.05 * sorted(free)[4]


def test_more_launches_than_the_queue_holds_make_no_number(operator, monkeypatch):
    monkeypatch.setattr(Gate, "TRIES", 1)
    with torch.inference_mode():
        assert Gate(torch.device("cuda")).sample(partial(call_times, operator, 20_000), 500).device_us is None
