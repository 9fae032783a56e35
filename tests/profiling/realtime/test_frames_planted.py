"""Each planted fault is named, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from profiling.realtime.summary import summarize_frames
from profiling.results.frames import cut

FACTS = {"steps": 1, "commit": "fused", "schedule": "sequential", "deliver": "host", "warmup_frames": 60}
FRAMES = 600


def summary(series, **options):
    return summarize_frames(series, **{"target_fps": 60.0, "pace": "free", "facts": FACTS, **options})


def named(section):
    """Return all that a summary finds fault with."""
    found = {
        "causes": section["slow"]["causes"],
        "spikes": section.get("spikes"),
        "growing": section["slope"]["growing"],
        "leaks": [kind for kind, memory in section["memory"].items() if memory["leak"]],
        "unsettled": not section["steady"]["settled"],
        "ramp": section["steady"]["from_frame"],
        "late": section["late"],
    }
    return {name: value for name, value in found.items() if value}


def at(*frames, value=1.0, total=FRAMES):
    planted = np.zeros(total)
    planted[list(frames)] = value
    return planted


@pytest.mark.parametrize("seed", range(50))
def test_clean_noise_names_nothing(fake_loop, fake_noise, seed):
    section = summary(fake_loop(fake_noise(FRAMES, seed=seed)))
    assert named(section) == {}
    assert section["holds"]
    assert all(deadline["holds"] for deadline in section["deadlines"].values())


def test_heavier_noise_names_nothing_either(fake_loop, fake_noise):
    for seed in range(20):
        assert named(summary(fake_loop(fake_noise(FRAMES, share=0.03, seed=seed)))) == {}


def test_a_stall_every_50_frames(fake_loop, fake_noise):
    section = summary(fake_loop(fake_noise(FRAMES) + at(*range(49, FRAMES, 50), value=40.0)))
    assert named(section) == {
        "causes": {"not attributed": 12},
        "spikes": {"period": 50, "count": 12, "first": 49},
        "late": 12,
    }


def test_a_drift_of_one_percent_a_frame(fake_loop, fake_noise):
    section = summary(fake_loop(fake_noise(200) * (1 + 0.01 * np.arange(200))), target_fps=30.0)
    assert named(section) == {"growing": True, "unsettled": True}
    low, high = section["slope"]["ci95"]
    assert low < 50.0 < high, "1% of 5 ms, in µs a frame"


def test_a_drift_that_compounds_has_no_slow_frames(fake_loop, fake_noise):
    section = summary(fake_loop(fake_noise(FRAMES) * 1.01 ** np.arange(FRAMES)), target_fps=0.1)
    assert named(section) == {"growing": True, "unsettled": True}


def test_a_ramp_is_found_and_left_out_of_the_slope(fake_loop, fake_noise):
    ramp = 1 + 0.15 * np.clip(1 - np.arange(FRAMES) / 80, 0, None)
    found = named(summary(fake_loop(fake_noise(FRAMES) * ramp)))
    assert 60 <= found.pop("ramp") <= 75, "the ramp is within 3% of the level from frame 64 on"
    assert found == {}


def test_a_step_ends_the_ramp_at_its_frame(fake_loop, fake_noise):
    step = np.where(np.arange(FRAMES) < 100, 1.1, 1.0)
    assert named(summary(fake_loop(fake_noise(FRAMES) * step))) == {"ramp": 100}


def test_a_growth_too_small_to_matter(fake_loop, fake_noise):
    section = summary(fake_loop(fake_noise(FRAMES, share=0.0005) * (1 + 0.005 * np.arange(FRAMES) / FRAMES)))
    assert named(section) == {}
    assert section["slope"]["ci95"][0] > 0, "it is there, but half a percent over the run"


def test_stalls_of_the_ramp_make_no_period(fake_loop, fake_noise):
    frame_ms = fake_noise(FRAMES) * np.where(np.arange(FRAMES) < 100, 1.1, 1.0)
    section = summary(fake_loop(frame_ms + at(*range(5, 100, 10), value=40.0)))
    assert named(section) == {"ramp": 100, "causes": {"not attributed": 10}, "late": 10}


def test_a_recompile_by_its_id(fake_loop, fake_noise):
    series = fake_loop(fake_noise(FRAMES) + at(60, value=900.0), compiles=at(60))
    events = [{"frame": 60, "kind": "recompile", "id": "0/1"}, {"frame": 61, "kind": "recompile", "id": "7/7"}]
    section = summary(series, events=events)
    assert named(section) == {"causes": {"recompile 0/1": 1}, "late": 1}
    [frame] = section["slow"]["frames"]
    assert (frame["frame"], frame["causes"]) == (60, ["recompile 0/1"])
    assert frame["ms"] == series["frame_ms"][60]
    assert summary(series)["slow"]["causes"] == {"compile": 1}, "no id is known"


@pytest.mark.parametrize(
    ("planted", "cause"),
    [
        ({"captures": 1}, "CUDA graph captured"),
        ({"graphs_recorded": 1}, "CUDA graph captured"),
        ({"alloc_retries": 1}, "allocator retry"),
        ({"device_allocs": 2}, "cudaMalloc"),
        ({"collections": 1, "collection_ms": 30.0}, "garbage collection"),
        ({"throttled": 1}, "clocks held down"),
        ({"switches": 3}, "host descheduled"),
        ({"steal_ms": 10.0}, "host descheduled"),
        ({"others": 1}, "another process on the GPU"),
        ({"collections": 1, "collection_ms": 2.0}, "not attributed"),  # too short to explain 30 ms
    ],
)
def test_a_cause(fake_loop, fake_noise, planted, cause):
    frame_ms = fake_noise(FRAMES) + at(333, value=30.0)
    series = fake_loop(frame_ms, **{name: at(333, value=value) for name, value in planted.items()})
    assert named(summary(series)) == {"causes": {cause: 1}, "late": 1}


def test_what_happens_in_a_usual_frame_is_no_cause(fake_loop, fake_noise):
    planted = {name: at(200) for name in ("compiles", "switches", "throttled", "device_allocs")}
    assert named(summary(fake_loop(fake_noise(FRAMES), **planted))) == {}


def test_a_frame_may_have_several_causes(fake_loop, fake_noise):
    series = fake_loop(
        fake_noise(FRAMES) + at(100, 340, value=20.0), switches=at(100, 340), collection_ms=at(100, value=9.0)
    )
    section = summary(series)
    assert section["slow"]["causes"] == {"host descheduled": 2, "garbage collection": 1}
    assert section["slow"]["count"] == 2


def test_clocks_held_down_for_a_while_are_no_ramp(fake_loop, fake_noise):
    held = range(400, 430)
    section = summary(fake_loop(fake_noise(FRAMES) + at(*held, value=5.0), throttled=at(*held)))
    assert named(section) == {"causes": {"clocks held down": 30}}


def test_an_allocation_that_grows_each_frame(fake_loop, fake_noise):
    section = summary(fake_loop(fake_noise(FRAMES), allocated=2.0**30 + 512 * np.arange(FRAMES)))
    assert named(section) == {"leaks": ["allocated"]}
    allocated = section["memory"]["allocated"]
    assert allocated["bytes_per_frame"] == pytest.approx(512)
    assert (allocated["first"], allocated["last"]) == (2**30, 2**30 + 512 * 599)


@pytest.mark.parametrize("frames", [0, 1, 2, 7, 10, 29, 30, 100])
def test_a_series_cut_off_by_a_crash(fake_loop, fake_noise, frames):
    section = summary(cut(fake_loop(fake_noise(FRAMES) + at(49, 99, value=40.0)), 0, frames))
    assert section["frames"] == frames
    assert section["commit"] == "fused"
    if frames == 0:
        assert set(section) == {"frames", "target_fps", "pace", *FACTS}
        return
    assert section["late"] == frames // 50
    assert section["slow"]["causes"] == ({"not attributed": 2} if frames == 100 else {})
    assert section["steady"]["settled"] == (frames >= 30), "two windows of frames are needed to say so"
    assert ("slope" in section) == (frames >= 8)
    assert "spikes" not in section
