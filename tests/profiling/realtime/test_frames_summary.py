"""The section of a record: percentiles, rates, the budget's parts, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from profiling.realtime.summary import summarize_frames

FACTS = {"schedule": "sequential"}


def summary(series, **options):
    return summarize_frames(series, **{"target_fps": 60.0, "pace": "free", "facts": FACTS, **options})


def test_percentiles_are_numpys(fake_loop, fake_noise):
    frame_ms = fake_noise(333)
    section = summary(fake_loop(frame_ms))
    for name, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert section["frame_ms"][name] == np.percentile(frame_ms, share)
    assert section["frame_ms"]["n"] == 333
    assert "samples" not in section["frame_ms"]
    assert section["steady"]["p99"] == np.percentile(frame_ms, 99), "no ramp"


def test_the_rates(fake_loop):
    section = summary(fake_loop(np.full(101, 9.75)), sound_seconds_per_frame=0.02)
    assert section["wall_fps"] == pytest.approx(100.0), "a delivery each 9.75 ms and a gap of 0.25 ms"
    assert section["audio_rtf"] == pytest.approx(2.0)
    assert "audio_rtf" not in summary(fake_loop(np.full(101, 9.75)))
    assert "wall_fps" not in summary(fake_loop(np.full(1, 9.75))), "one delivery has no rate"


def test_the_budget(fake_loop):
    section = summary(fake_loop(np.full(50, 10.0)), target_fps=50.0)["budget"]
    assert section["target_ms"] == 20.0
    assert section["parts"]["world"] == pytest.approx({"host_ms": 0.1, "device_ms": 6.0, "share": 0.3})
    assert section["parts"]["wait"] == pytest.approx({"host_ms": 9.0}), "its share is that of what it waits for"
    assert section["overhead_ms"] == pytest.approx(0.5), "10 ms less 6, 2, 1 and 0.5 ms"
    assert section["overhead_share"] == pytest.approx(0.05)


def test_overlapping_stages_share_the_interval(fake_loop):
    section = summary(fake_loop(np.full(50, 10.0)), facts={"schedule": "overlap"})
    assert section["budget"]["overhead_ms"] == pytest.approx(3.5), "10 ms less the longest, 6, and the delivery, 0.5"


def test_the_host_stands_in_for_a_device_that_was_not_asked(fake_loop):
    series = fake_loop(np.full(50, 10.0))
    for stage, ms in (("world", 5.0), ("picture", 2.0), ("sound", 1.5), ("deliver", 0.5)):
        series |= {f"device_{stage}_ms": np.full(50, np.nan), f"host_{stage}_ms": np.full(50, ms)}
    section = summary(series, target_fps=50.0)["budget"]
    assert section["parts"]["world"] == pytest.approx({"host_ms": 5.0, "share": 0.25})
    assert section["overhead_ms"] == pytest.approx(1.0)


def test_stages_are_what_the_series_hold(fake_loop):
    series = {name: values for name, values in fake_loop(np.full(50, 10.0)).items() if "picture" not in name}
    series = {name.replace("world", "whole"): values for name, values in series.items() if "sound" not in name}
    section = summary(series, facts={"schedule": "one_graph"})
    assert section["stages"] == ["whole", "deliver"]
    assert section["budget"]["overhead_ms"] == pytest.approx(3.5)


def test_a_paced_loop_is_late_when_its_delivery_is(fake_loop):
    series = fake_loop(np.full(6, 15.0))
    due = 20.0 * np.arange(6)
    series |= {"due_ms": due, "action_ms": due, "delivered_ms": due + np.array([15.0, 19.0, 50.0, 45.0, 20.0, 15.0])}
    section = summary(series, target_fps=50.0, pace="realtime")
    target = section["deadlines"]["50"]
    assert (target["misses"], target["longest_run"], target["holds"]) == (2, 2, False)
    assert target["longest_stall_ms"] == pytest.approx(30.0)
    assert section["late"] == 2
    assert section["deadlines"]["60"]["misses"] == 0, "other rates go by the frame's own time"


def test_what_was_not_sampled_is_absent_and_all_is_json(fake_loop, fake_noise):
    series = fake_loop(fake_noise(40))
    series |= {name: np.full(40, np.nan) for name in ("reserved", "device_used", "wait_ms", "collection_ms", "others")}
    section = summary(series, events=[{"frame": 1, "kind": "recompile", "id": "0/1"}])
    assert set(section["memory"]) == {"allocated", "host_rss"}
    assert section["budget"]["parts"]["wait"] == {}
    assert json.loads(json.dumps(section, allow_nan=False))["frames"] == 40


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"pace": "fast"}, "no pace 'fast'"),
        ({}, {"target_fps": 0.0}, "a target of 0.0"),
        ({}, {"facts": {"schedule": "chaos"}}, "no schedule 'chaos'"),
        ({}, {"pace": "realtime"}, "a frame has no due_ms"),
        ({"latency_ms": np.full(5, np.nan)}, {}, "a frame has no latency_ms"),
        ({"frame_ms": np.array([9.0, 9.0, 9.0, 9.0, -1.0])}, {}, "frame_ms is below 0"),
        ({"frame_ms": np.zeros(5)}, {}, "0 in half of the frames"),
        ({"switches": np.zeros(4)}, {}, "not of 5 frames: switches"),
        ({"host_sund_ms": np.zeros(5)}, {}, "not among the series: device_sund_ms"),
    ],
)
def test_what_is_refused(fake_loop, change, options, message):
    with pytest.raises(ValueError, match=message):
        summary(fake_loop(np.full(5, 10.0)) | change, **options)
