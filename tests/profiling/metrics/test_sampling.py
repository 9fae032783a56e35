"""The loop's rules on a fake clock: no device, no waiting."""

import itertools
import random

import numpy as np
import pytest

from profiling.errors import InputError
from profiling.metrics.sampling import (
    REWARM,
    Sample,
    SamplingLimits,
    Turn,
    WindowSamples,
    by_call_ms,
    collect,
    collect_window,
    summaries,
    warm_up,
)


class FakeClock:
    """Each sample takes as long as it says, on a clock that only samples move."""

    def __init__(self, times_ms):
        self.times, self.seconds = iter(times_ms), 0.0

    def take(self):
        wall = next(self.times)
        self.seconds += wall / 1e3
        return Sample(wall=wall)

    def now(self):
        return self.seconds


def run(times, limits):
    clock, windows = FakeClock(times), []

    def window():
        windows.append(tuple(each.wall for each in collect_window(clock.take, Turn(seconds=0.5, calls=100), clock.now)))
        return WindowSamples(start_s=0.0, wall_ms=windows[-1])

    stopped_by = collect(window, limits, clock.now)
    return [ms for each in windows for ms in each], stopped_by


def test_a_steady_step_stops_at_the_minimum_a_noisy_one_at_the_most_iterations_and_a_slow_one_at_its_time():
    """Up to a window later: windows are whole."""
    samples, stopped_by = run(itertools.repeat(10.0), SamplingLimits(min_iterations=30))
    assert stopped_by == "interval"
    assert 30 <= len(samples) < 40
    rng = random.Random(0)
    noisy = (rng.lognormvariate(0, 1) for _ in itertools.count())
    samples, stopped_by = run(noisy, SamplingLimits(min_iterations=10, max_iterations=200, max_seconds=1e6))
    assert stopped_by == "iterations"
    assert 200 <= len(samples) <= 300
    samples, stopped_by = run(itertools.cycle([900.0, 2000.0]), SamplingLimits(max_seconds=10.0))
    assert stopped_by == "time"
    assert 5 <= len(samples) <= 10


def test_a_wider_interval_is_enough_sooner():
    times = [10 + 0.5 * ((i * 7919) % 13) for i in range(5000)]
    tight, loose = (run(times, SamplingLimits(interval=share, max_seconds=1e6))[0] for share in (0.005, 0.05))
    assert len(loose) < len(tight)


RAMP = [100.0 * 0.8**i + 10 for i in range(30)]
GROWING = [1.2**i for i in range(50)]


@pytest.mark.parametrize(
    ("times", "compiles", "settled", "iterations"),
    [
        (RAMP, 0, True, range(11, 99)),
        ([], 0, True, [10]),  # two windows of five
        ([], 40, True, range(51, 999)),  # it goes on while something compiles
        (GROWING, 0, False, [40]),  # the most
    ],
    ids=["ramp", "steady", "compiles", "never"],
)
def test_the_warm_up_ends_when_times_have_settled_and_nothing_compiles(times, compiles, settled, iterations):
    clock, looks = FakeClock(itertools.chain(times, itertools.repeat(50.0 if not times else 10.0))), itertools.count()
    limits = {"warmup_min_iterations": 10, "warmup_max_iterations": 40 if times is GROWING else 10**6}
    limits = SamplingLimits(**limits, warmup_max_seconds=1e9)
    warmup = warm_up(clock.take, lambda: min(next(looks), compiles), limits, clock.now)
    assert warmup.settled is settled
    assert warmup.iterations in iterations


def test_no_loop_can_have_more_iterations_than_its_most():
    with pytest.raises(InputError, match="min_iterations"):
        SamplingLimits(min_iterations=50, max_iterations=10)


@pytest.mark.parametrize(
    ("turn", "count"),
    [
        (Turn(seconds=0.5, calls=50), 10),
        (Turn(seconds=0.5, calls=4), 4),
        (Turn(seconds=1e-3, calls=9), 1),
    ],
)
def test_a_window_ends_with_its_time_or_its_calls_and_has_at_least_one(turn, count):
    clock = FakeClock(itertools.repeat(10.0))
    clock.seconds = 5.0
    assert len(collect_window(clock.take, turn, clock.now)) == pytest.approx(count, abs=1)


@pytest.mark.parametrize(("call_ms", "whole", "count"), [(0.1, 1, 1000), (30.0, 1, 8), (30.0, 6, 12), (90.0, 1, 6)])
def test_a_window_lasts_as_long_as_its_least_time_and_calls_and_no_longer_than_its_most(call_ms, whole, count):
    clock = FakeClock(itertools.repeat(call_ms))
    samples = collect_window(clock.take, Turn(seconds=0.5, calls=10**6), clock.now, whole)
    assert len(samples) == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(("call_ms", "calls"), [(1.0, 10), (20.0, 1)])
def test_untimed_calls_are_made_before_a_window(call_ms, calls):
    clock = FakeClock(itertools.repeat(call_ms))
    collect_window(clock.take, REWARM, clock.now)
    assert clock.seconds == pytest.approx(calls * call_ms / 1e3)


def test_the_summary_of_windows_holds_all_samples_and_an_interval_with_their_drift():
    windows = [
        WindowSamples(start_s=0.0, wall_ms=tuple(10.0 + block + i / 100 for i in range(20))) for block in range(8)
    ]
    (summary,) = summaries(windows, "decided").values()
    assert (summary.n, summary.stopped_by) == (160, "decided")
    assert summary.samples[:2] == (10.0, 10.01)
    assert summary.ci95[0] < 13 < 14.5 < summary.ci95[1]


@pytest.mark.parametrize(("first", "names"), [(1.02, set()), (1.2, {"first", "middle", "last"})])
def test_calls_of_a_trajectory_are_told_apart_where_they_differ_by_more_than_5_percent(first, names):
    rng = np.random.default_rng(0)
    times = [first, *[1.0] * 7] * 3 * np.exp(0.002 * rng.standard_normal((12, 24)))
    windows = [WindowSamples(start_s=float(n), wall_ms=tuple(each)) for n, each in enumerate(times)]
    assert by_call_ms(windows, 8).keys() == names
    assert by_call_ms(windows[:3], 8) == {}, "three windows claim nothing"
