"""The whole CUDA sweep on a device with planted costs: the headline numbers are the planted ones."""

import json
from functools import partial

import pytest
from fake_device import FakeDevice, plant_graphs

from profiling.launch_overhead.cell import Readings
from profiling.launch_overhead.chains import Chain
from profiling.launch_overhead.sampling import Series, Timing, cuda_takers, points, take_rounds

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
    chain = Chain(
        "elementwise",
        "elements",
        sizes,
        lambda size: partial(fake.launch, HOST_US, gpu_us(size)),
        lambda size: {"bytes": 8 * size},
    )
    return Readings(chain, take_rounds(cuda_takers((chain,), COUNTS, None), COUNTS, 9, 0, lambda line: None))


@pytest.mark.parametrize("interrupts", [0.0, 0.0005])
def test_each_cost_is_found(monkeypatch, interrupts):
    readings = planted(monkeypatch, interrupt_share=interrupts)
    found = readings.launch() | readings.graph()
    for key, value in {
        "host_us_per_launch": HOST_US,
        "gpu_us_per_launch": gpu_us(1),
        "graph_us_per_node": 1.2,
        "graph_launch_host_us": 8,
        "graph_host_us_per_node": 0.01,
        "graph_launch_device_us": 5,
        "starvation_elements": 10_000,
        "starvation_us": 4,
        "starvation_bytes": 80_000,
    }.items():
        # Between two sizes the crossing is interpolated, and the planted durations are no straight line in logarithms.
        tolerance = 0.1 if key in ("starvation_elements", "starvation_bytes") else 0.02
        assert found[key]["p50"] == pytest.approx(value, rel=tolerance), key
        assert found[key]["n"] == 9
        assert found[key]["ci95"][0] <= found[key]["p50"] <= found[key]["ci95"][1]
    assert json.loads(json.dumps(found)) == found


def test_the_operators_show_where_the_device_waits(monkeypatch):
    rows = planted(monkeypatch).operators()
    assert [row["elements"] for row in rows] == list(SIZES)
    for row in rows:
        assert row["pace_us"]["p50"] == pytest.approx(max(row["host_us"]["p50"], row["gpu_us"]["p50"]), rel=0.02)


def test_every_point_is_kept_for_who_wants_to_fit_it_again(monkeypatch):
    kept = points(planted(monkeypatch).times)
    assert len(kept) == len(COUNTS) * (2 * len(SIZES) + 2)
    last = {"chain": "elementwise", "elements": 1, "count": 400, "n": 9}
    assert last | {"mode": "eager_queued", "device_us": pytest.approx(400 * gpu_us(1))} in kept
    assert last | {"mode": "graph_queued", "device_us": pytest.approx(5 + 1.2 * 400)} in kept


@pytest.mark.parametrize(("sizes", "where"), [((1, 10, 100), "up to elements 100"), ((2**16, 2**18), "from elements")])
def test_a_sweep_without_a_crossing_has_a_note_in_its_place(monkeypatch, sizes, where):
    found = planted(monkeypatch, sizes=sizes).launch()
    assert where in found["starvation_note"]
    assert not {key for key in found if key.startswith("starvation")} - {"starvation_note"}


def test_what_the_queue_did_not_hold_is_absent(monkeypatch):
    found = planted(monkeypatch, depth=30)
    assert "gpu_us_per_launch" not in found.launch()
    assert not {key for key in found.launch() if key.startswith("starvation")}
    assert "host_us_per_launch" in found.launch()
    assert {point["count"] for point in points(found.times) if point["mode"] == "eager_queued"} == {1}


def test_rounds_shuffle_the_counts_and_throw_the_first_away():
    seen = []

    def take(count):
        seen.append(count)
        return Timing(host_us=1000.0 if len(seen) <= 6 else 3.0 + 2 * count)

    said = []
    key = Series("elementwise", "elements", 1, "eager")
    times = take_rounds({key: take}, COUNTS, 4, 0, said.append)
    assert said == ["warm-up", "round 1 of 4", "round 2 of 4", "round 3 of 4", "round 4 of 4"]
    rounds = [seen[start + 1 : start + 6] for start in range(0, len(seen), 6)]
    assert all(sorted(counts) == list(COUNTS) for counts in rounds)
    assert len({tuple(counts) for counts in rounds}) > 1, "in another order each round"
    assert times[key].host_lines().slope == pytest.approx([2] * 4)
    assert times[key].host_lines().intercept == pytest.approx([3] * 4)
