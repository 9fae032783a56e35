"""A planted clock and device for a FrameRecorder, and scripts that record frames, for the tests of both folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profiling import FrameRecorder
from profiling.realtime import recorder as recorder_module
from profiling.realtime.cuda_timer import CudaTimer
from profiling.results.frames import read_series

ROOT = Path(__file__).resolve().parents[2]


class World(CudaTimer):
    """A host clock and a device with one queue of work, both in ms; the device's clock runs at its own speed."""

    def __init__(self, speed: float = 1.0) -> None:
        self.now, self.free, self.speed = 0.0, 0.0, speed
        self.device = torch.device("cpu")
        self.fails, self.failure = False, None
        self.marks = self.events = 0
        # What a CudaTimer calls. An event is a list with the moment at which the device passes it.
        self._index, self._idle, self._streams = 0, [], {}
        self._raw_stream, self._is_capturing, self._current_stream = int, bool, str
        self._record = self._record_event
        self._query = lambda event: event[0] <= self.now
        self.elapsed = lambda start, end: (end[0] - start[0]) * self.speed

    def _new_event(self):
        self.events += 1
        return []

    def _record_event(self, event, stream):
        if self.fails:
            raise RuntimeError("an illegal memory access was encountered")
        self.marks += 1
        event[:] = [max(self.free, self.now)]

    @property
    def in_use(self):
        return self.events - len(self._idle)

    def wait(self, mark):
        self.now = max(self.now, mark.event[0])

    def work(self, ms: float) -> None:
        self.now += ms

    def launch(self, ms: float) -> None:
        self.free = max(self.free, self.now) + ms

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)


@pytest.fixture
def planted(monkeypatch):
    def world(*, device=True, speed=1.0):
        world = World(speed)
        monkeypatch.setattr(recorder_module, "now_ns", lambda: round(world.now * 1e6))
        monkeypatch.setattr(recorder_module, "timer_of", lambda name: world if device else None)
        return world

    return world


@pytest.fixture
def make_recorder(tmp_path):
    recorders = []

    def recorder(**options):
        options = {"fps": 60, "device": "planted", "folder": tmp_path / f"journal{len(recorders)}"} | options
        recorders.append(FrameRecorder(**options))
        return recorders[-1]

    yield recorder
    for each in recorders:
        each.close()


def saved(recorder, folder):
    (record,) = recorder.save(folder).records
    return record.realtime, read_series(folder / "cells" / "loop.recorded.frames.npz")


def script(code, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment)
