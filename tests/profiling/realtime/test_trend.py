"""Where frame times settle, slopes with their intervals, and stages that grow along."""

import numpy as np
import pytest
from planted_series import noise, series_of
from scipy.signal import lfilter

from profiling.realtime.trend import find_steady, line_of, slope_section, unsteady_times

FRAMES = 600


@pytest.mark.parametrize("frame", [0, 300, 599])
def test_stalls_do_not_move_the_steady_part(frame):
    frame_ms = noise(FRAMES)
    frame_ms[max(0, frame - 2) : frame + 3] += 40
    steady = find_steady(frame_ms)
    assert (steady.from_frame, steady.settled) == (0, True)
    steady = find_steady(noise(FRAMES) * np.where(np.arange(FRAMES) < 400, 1.0, 1.5))
    assert (steady.from_frame, steady.settled) == (0, False), "what settles in the second half never does"


def direction(values):
    """Return 1 where values are said to grow, -1 where they are said to fall."""
    line = line_of(values)
    return 0 if not line.is_claimed() else 1 if line.slope > 0 else -1


@pytest.mark.parametrize("growth", [lambda t: t**3, lambda t: t**0.5, lambda t: np.clip(t - 0.5, 0, None)])
def test_growth_of_any_shape_is_growth(growth):
    frame_ms = 10 + 10 * growth(np.arange(FRAMES) / FRAMES) + np.random.default_rng(0).normal(0, 0.05, FRAMES)
    slope = slope_section({"frame_ms": frame_ms}, find_steady(frame_ms).from_frame)
    assert slope.growing
    assert slope.stages == {}, "none was measured"
    assert slope.ci95[0] > 0


@pytest.mark.parametrize(("frames", "memory"), [(FRAMES, 0.0), (FRAMES, 0.95), (60, 0.3), (12, 0.0)])
def test_noise_neither_grows_nor_falls(frames, memory):
    """Noise of 5% that keeps `memory` of itself from frame to frame; each claim is false in at most 1%.

    Memory of 0.95 is that of a machine that is slower for a while: parts of 27 neighbours keep 0.25.
    """
    found = []
    for seed in range(400):
        noise = np.random.default_rng(seed).normal(0, 0.05 * (1 - memory**2) ** 0.5, frames + 200)
        found.append(direction(10 * (1 + lfilter([1.0], [1.0, -memory], noise)[200:])))
    assert max(found.count(1), found.count(-1)) <= 4


def test_noise_that_keeps_some_of_itself_is_no_short_warm_up():
    """Its rolling median begins away from its level in one series of eight, by chance."""
    moved, signs = 0, []
    for seed in range(100):
        noise = np.random.default_rng(seed).normal(0, 0.05 * (1 - 0.5**2) ** 0.5, FRAMES + 200)
        frame_ms = 10 * (1 + lfilter([1.0], [1.0, -0.5], noise)[200:])
        steady = find_steady(frame_ms)
        moved += steady.settled and steady.from_frame > 0
        signs += unsteady_times(frame_ms, steady, 60, "loop.warmup_frames={}")
    assert moved > 5
    assert len(signs) <= 2


@pytest.mark.parametrize("sign", [1, -1])
def test_a_line_far_below_the_noise_of_a_frame_is_found(sign):
    """3% over the frames, whose noise is 2%."""
    line = 1 + sign * np.linspace(0, 0.03, FRAMES)
    found = [direction(noise(FRAMES, share=0.02, seed=seed) * line) for seed in range(50)]
    assert found.count(sign) >= 45


@pytest.mark.parametrize(
    ("grown", "stages"),
    [
        (("host_sound_ms", "device_sound_ms"), {"sound": {"host", "device"}}),
        (("device_world_ms",), {"world": {"device"}}),
        (("rest_ms",), {"rest": {"host"}}),
        (("gap_ms",), {}),
    ],
)
def test_the_stages_that_grow_along(grown, stages):
    """0.5 µs a frame in the frames and in the planted stages; the others stay the same."""
    frame_ms, growth = noise(FRAMES), 5e-4 * np.arange(FRAMES)
    series = series_of(frame_ms)
    assert slope_section(series, 0).stages == {}, "nothing grows"
    series |= {f"host_{stage}_ms": noise(FRAMES, base_ms=0.3, share=0.1, seed=7) for stage in ("world", "sound")}
    series["device_picture_ms"][::7] = np.nan  # not measured in each frame
    for name in ("frame_ms", *grown):
        series[name] = series[name] + growth
    clocks = {
        stage: {clock: us for clock in ("host", "device") if (us := getattr(growth, clock)) is not None}
        for stage, growth in slope_section(series, 0).stages.items()
    }
    assert {stage: set(slopes) for stage, slopes in clocks.items()} == stages
    for slopes in clocks.values():
        assert list(slopes.values()) == pytest.approx([0.5] * len(slopes), rel=0.2)
