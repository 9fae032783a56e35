"""Periods and leaks: what is one, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from profiling.realtime.slow_frames import find_period
from profiling.realtime.summary import memory_section
from profiling.realtime.trend import Steady, find_steady, fit_slope, slope_section

MIB = 2**20
FRAMES = 600
STEADY = Steady(0, True)


@pytest.mark.parametrize(
    ("slow", "found"),
    [
        ([49, 99, 149], {"period": 50, "count": 3, "first": 49}),
        ([49, 100, 149, 200, 249], {"period": 50, "count": 5, "first": 49}),  # within a frame
        ([49, 99, 199, 249, 299, 449], {"period": 50, "count": 6, "first": 49}),  # some did not come
        ([7, 49, 99, 130, 149, 199, 249, 299, 301], {"period": 50, "count": 6, "first": 49}),  # others came too
        ([49, 99], None),
        ([10, 14, 18], None),  # any three frames as near as this fit some period
        (list(range(60)), None),  # a burst has no period
        ([], None),
    ],
)
def test_periods(slow, found):
    assert find_period(slow) == found


def test_a_period_may_drift_from_whole_frames():
    assert find_period([round(16.6 * i) for i in range(1, 30)]) == {"period": 17, "count": 29, "first": 17}


@pytest.mark.parametrize("slow", [3, 5, 8, 20, 60])
def test_scattered_frames_have_no_period(slow):
    rng = np.random.default_rng(slow)
    found = [find_period(sorted(rng.choice(FRAMES, slow, replace=False).tolist())) for _ in range(200)]
    assert sum(period is not None for period in found) <= 10, "at most 5% by chance"


def leaks(fake_loop, fake_noise, steady=STEADY, **memory):
    section = memory_section(fake_loop(fake_noise(FRAMES), **memory), steady)
    return [kind for kind, facts in section.items() if facts["leak"]]


GROWTH = np.arange(FRAMES, dtype=np.float64)


@pytest.mark.parametrize(
    ("kind", "growth", "leak"),
    [
        ("allocated", 512 * GROWTH, True),
        ("allocated", 512 * (GROWTH // 100), False),  # 3 KiB over the run
        ("allocated", MIB * (GROWTH >= 300), False),  # one step up
        ("allocated", MIB * ((GROWTH >= 200) + 1.0 * (GROWTH >= 400)), False),  # and a second one
        ("allocated", MIB * (GROWTH % 100), False),  # collected now and then
        ("allocated", -512 * GROWTH, False),
        ("reserved", 2 * MIB * (GROWTH // 60), True),  # a segment now and then
        ("device_used", 2 * MIB * (GROWTH // 60), True),
        ("device_used", 0.01 * MIB * GROWTH, False),  # 6 MiB over the run
        ("host_rss", 0.02 * MIB * GROWTH, True),
    ],
)
def test_leaks(fake_loop, fake_noise, kind, growth, leak):
    assert leaks(fake_loop, fake_noise, **{kind: 2.0**30 + growth}) == ([kind] if leak else [])


def test_a_resident_set_that_only_breathes_is_no_leak(fake_loop, fake_noise):
    for seed in range(100):
        breath = np.random.default_rng(seed).normal(0, 64 * MIB, FRAMES)
        assert leaks(fake_loop, fake_noise, host_rss=2.0**33 + breath) == []


def test_memory_that_is_sampled_now_and_then(fake_loop, fake_noise):
    sampled = np.where(GROWTH % 20 == 0, 2.0**30 + 0.1 * MIB * GROWTH, np.nan)
    section = memory_section(fake_loop(fake_noise(FRAMES), device_used=sampled), STEADY)["device_used"]
    assert section["leak"]
    assert section["bytes_per_frame"] == pytest.approx(0.1 * MIB)
    assert (section["first"], section["last"]) == (2**30, int(2**30 + 58 * MIB))


def test_what_grows_in_the_ramp_is_no_leak(fake_loop, fake_noise):
    memory = 2.0**30 + MIB * np.minimum(GROWTH, 450)
    assert leaks(fake_loop, fake_noise, Steady(450, True), allocated=memory) == []
    assert leaks(fake_loop, fake_noise, Steady(0, True), allocated=memory) == ["allocated"]


def test_too_few_samples_make_no_claim(fake_loop, fake_noise):
    series = fake_loop(fake_noise(5), allocated=2.0**30 + MIB * np.arange(5.0))
    section = memory_section(series, STEADY)["allocated"]
    assert section == {"first": 2**30, "last": 2**30 + 4 * MIB, "min": 2**30, "max": 2**30 + 4 * MIB}


def test_a_slope_against_its_known_value():
    frames = np.arange(500, dtype=np.float64)
    inside = []
    for seed in range(100):
        values = 5 + 0.001 * frames + np.random.default_rng(seed).normal(0, 0.05, 500)
        values[::50] += 40
        slope = fit_slope(frames, values)
        inside.append(slope.ci95[0] <= 0.001 <= slope.ci95[1])
        assert slope.ci999[0] < slope.ci95[0] < slope.per_frame < slope.ci95[1] < slope.ci999[1]
    assert 88 <= sum(inside) <= 100


def test_a_machine_that_is_slower_for_a_while_is_no_slope():
    """Noise that keeps 0.95 of itself from frame to frame: blocks of 10 neighbours keep 0.6."""
    frames, around, strictly = np.arange(640, dtype=np.float64), 0, 0
    for seed in range(200):
        noise = lfilter([1.0], [1.0, -0.95], np.random.default_rng(seed).normal(0, 0.01, 840))[200:]
        slope = fit_slope(frames, 5 + noise)
        around += slope.ci95[0] <= 0 <= slope.ci95[1]
        strictly += slope.rises
    assert around >= 170, "of 200; blocks taken for strangers make it 130"
    assert strictly <= 3


@pytest.mark.parametrize("frames", [600, 10_000])
@pytest.mark.parametrize("growth", [lambda t: t**3, lambda t: t**0.5, lambda t: np.clip(t - 0.5, 0, None)])
def test_growth_of_any_shape_is_growth(growth, frames):
    time = np.arange(frames) / frames
    frame_ms = 10 + 10 * growth(time) + np.random.default_rng(0).normal(0, 0.05, frames)
    section = slope_section({"frame_ms": frame_ms}, find_steady(frame_ms))
    assert section["growing"]
    assert section["stages"] == {}, "none was measured"
    assert section["ci95"][0] > 0


@pytest.mark.parametrize(
    ("grown", "stages"),
    [
        (("host_world_ms",), {"world": ("host",)}),
        (("device_sound_ms",), {"sound": ("device",)}),
        (("host_sound_ms", "device_sound_ms"), {"sound": ("host", "device")}),
        (("rest_ms",), {"rest": ("host",)}),
        (("gap_ms",), {}),
    ],
)
def test_the_stages_that_grow_along(fake_loop, fake_noise, grown, stages):
    """0.5 µs a frame in the frames and in the planted stages; the others stand still.

    The device waits for the world stage to be launched: its events hold 0.6 of what the host takes for it.
    """
    frame_ms, growth = fake_noise(FRAMES), 5e-4 * np.arange(FRAMES)
    series = fake_loop(frame_ms)
    series |= {f"host_{stage}_ms": fake_noise(FRAMES, base_ms=0.3, share=0.1, seed=7) for stage in ("world", "sound")}
    series["device_picture_ms"][::7] = np.nan  # not measured in each frame
    for name in ("frame_ms", *grown):
        series[name] = series[name] + growth
    series["device_world_ms"] = 3.0 + 0.6 * series["host_world_ms"]
    section = slope_section(series, STEADY)
    assert {stage: tuple(sides) for stage, sides in section["stages"].items()} == stages
    for sides in section["stages"].values():
        assert list(sides.values()) == pytest.approx([0.5] * len(sides), rel=0.2)
    assert "stages" not in slope_section(fake_loop(frame_ms), STEADY), "nothing grows"


@pytest.mark.parametrize("frame", [0, 300, 599])
def test_stalls_do_not_move_the_steady_part(fake_noise, frame):
    frame_ms = fake_noise(FRAMES)
    frame_ms[max(0, frame - 2) : frame + 3] += 40
    assert find_steady(frame_ms) == Steady(0, True)


@pytest.mark.parametrize("shape", [np.linspace(1, 2, 600), np.where(np.arange(600) < 450, 1.0, 1.5)])
def test_what_never_settles(fake_noise, shape):
    assert find_steady(fake_noise(FRAMES) * shape) == Steady(0, False)
