import gc
import json

import numpy as np
import pytest
import torch

from profiling.errors import InputError
from profiling.launch_overhead.cell import calibrate
from profiling.launch_overhead.chains import chains
from profiling.launch_overhead.options import CalibrationOptions

OPTIONS = CalibrationOptions(elements=(1, 1024, 2**20), widths=(1, 64, 512), counts=(1, 50, 100), rounds=5)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def content():
    return calibrate(CPU, OPTIONS, lambda line: None)


def test_dispatch_is_measured_for_both_chains_and_nothing_of_a_gpu(content):
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    calibration = content["launch_calibration"]
    for chain in (calibration, calibration["linear"]):
        assert chain["dispatch_us_per_operator"]["p50"] > 0
        assert chain["dispatch_us_per_operator"]["n"] == 5
        assert not [key for key in chain if key.startswith(("host", "gpu", "graph", "starvation"))]
    # An operator on a million elements works longer than it is dispatched, on any machine.
    elements = calibration["dispatch_bound_elements"]["p50"]
    assert 1 < elements < 2**20
    assert calibration["dispatch_bound_bytes"]["p50"] == pytest.approx(8 * elements)


def test_the_points_give_the_same_slope_to_another_fit(content):
    points = [point for point in content["points"] if point.get("elements") == 2**20]
    slope = np.polyfit([point["count"] for point in points], [point["host_us"] for point in points], 1)[0]
    (row,) = [row for row in content["operators"] if row.get("elements") == 2**20]
    assert row["host_us"]["p50"] == pytest.approx(slope, rel=0.5)
    assert len(content["points"]) == 2 * 3 * 3


def test_the_operators_are_what_their_names_say():
    elementwise, linear = chains(CPU, CalibrationOptions(rows=3, seed=5))
    operator = elementwise.operator(4)
    assert operator().tolist() == [-1.0] * 4
    assert operator().tolist() == [1.0] * 4, "in place"
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(3, 8, generator=generator), torch.randn(8, 8, generator=generator)
    operator = linear.operator(8)
    torch.testing.assert_close(operator(), torch.nn.functional.linear(x, weight))
    assert operator().data_ptr() == operator().data_ptr(), "into the same buffer"
    assert linear.work(8) == {"bytes": 4 * (8 * 8 + 2 * 3 * 8), "flops": 2 * 3 * 8 * 8}


def test_the_garbage_collector_is_off_in_the_samples_and_on_again_after():
    seen = []
    calibrate(CPU, OPTIONS, lambda line: seen.append(gc.isenabled()))
    assert not any(seen)
    assert gc.isenabled()


def test_another_device_is_refused():
    with pytest.raises(InputError, match="device=meta"):
        calibrate(torch.device("meta"), OPTIONS, lambda line: None)
