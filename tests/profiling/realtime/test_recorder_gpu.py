"""Frames on a CUDA device: device times without a synchronisation, on several streams, beside a capture."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from profiling import FrameRecorder
from profiling.results.frames import read_series

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
SHORT, LONG = 2_000_000, 20_000_000  # cycles of the device's clock: about 1 and 10 ms


@pytest.fixture
def slept_ms():
    """Return the ms that the device sleeps for LONG cycles, by an independent pair of events."""
    busy_until = time.perf_counter() + 0.5
    while time.perf_counter() < busy_until:  # an idle device raises its clock first, and cycles get shorter
        torch.cuda._sleep(LONG)
        torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda._sleep(LONG)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def saved(frames, folder):
    (record,) = frames.save(folder).records
    return record, read_series(folder / "cells" / "loop.recorded.frames.npz")


def test_device_times_are_those_of_events_and_nothing_waits(tmp_path, slept_ms):
    host_ms = []
    with FrameRecorder(fps=60, folder=tmp_path / "journal") as frames:
        torch.cuda.set_sync_debug_mode("error")  # torch raises where a call waits for the device
        try:
            for _ in range(30):
                started = time.perf_counter()
                with frames.frame():
                    with frames.stage("world"):
                        torch.cuda._sleep(LONG)
                    with frames.stage("decode"):
                        torch.cuda._sleep(SHORT)
                host_ms.append(1e3 * (time.perf_counter() - started))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert np.median(host_ms) < slept_ms / 4
        record, series = saved(frames, tmp_path / "run")
    np.testing.assert_allclose(series["device_world_ms"], slept_ms, rtol=0.05)
    np.testing.assert_allclose(np.median(series["device_decode_ms"]), slept_ms * SHORT / LONG, rtol=0.1)
    np.testing.assert_allclose(np.median(series["frame_ms"]), slept_ms * (1 + SHORT / LONG), rtol=0.05)
    assert (np.diff(series["latency_ms"])[1:] > 0).all(), "the queue grows once the first frame has made its events"
    assert record.device == "cuda:0"
    assert record.realtime.memory["allocated"].first >= 0
    assert record.notes == () or "the application delivers" in record.notes[0]


def test_a_loop_that_waits_has_the_frame_times_of_the_host(tmp_path, slept_ms):
    host_ms = []
    with FrameRecorder(fps=60, folder=tmp_path / "journal") as frames:
        for _ in range(50):
            with frames.frame():
                started = time.perf_counter()
                with frames.stage("world"):
                    torch.cuda._sleep(LONG)
                torch.cuda.synchronize()
                host_ms.append(1e3 * (time.perf_counter() - started))
            time.sleep(0.001)
        _, series = saved(frames, tmp_path / "run")
    apart = np.abs(np.divide(series["frame_ms"], host_ms) - 1)
    assert np.quantile(apart, 0.8) < 0.03, "the host may be interrupted between the two clocks in a frame"


def test_stages_on_streams_of_worker_threads(tmp_path, slept_ms):
    stream = torch.cuda.Stream()
    with ThreadPoolExecutor(1) as pool, FrameRecorder(fps=60, folder=tmp_path / "journal") as frames:

        def decode(frame):
            with torch.cuda.stream(stream), frame.stage("decode"):
                torch.cuda._sleep(LONG)

        for _ in range(10):
            with frames.frame() as frame, frames.stage("world"):
                torch.cuda._sleep(SHORT)
                pool.submit(decode, frame).result()
        record, series = saved(frames, tmp_path / "run")
    assert np.median(series["device_decode_ms"]) == pytest.approx(slept_ms, rel=0.05)
    assert (series["frame_ms"][1:] > 0.9 * slept_ms).all(), "a frame is delivered when the other stream has finished"
    assert record.realtime.schedule == "overlap"


def test_a_capture_inside_a_stage_is_left_alone(tmp_path):
    x = torch.ones(1024, device="cuda")
    y = x * 2
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with FrameRecorder(fps=60, folder=tmp_path / "journal") as frames:
        with frames.frame(), frames.stage("capture"), torch.cuda.graph(graph), frames.stage("inside"):
            y = x * 2
        for _ in range(5):
            with frames.frame(), frames.stage("replay"):
                graph.replay()
        torch.cuda.synchronize()
        record, series = saved(frames, tmp_path / "run")
    assert record.realtime.frames == 6
    assert np.isfinite(series["device_replay_ms"][1:]).all()
    assert np.isnan(series["device_capture/inside_ms"]).all()
    assert torch.equal(y, x * 2)
