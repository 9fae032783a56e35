"""A planted clock and device for a FrameRecorder, and scripts that record frames, for the tests of both folders."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profiling import FrameRecorder
from profiling.realtime import recorder as recorder_module
from profiling.realtime.cuda_timer import Mark
from profiling.results.frames import read_series

ROOT = Path(__file__).resolve().parents[2]


class World:
    """A host clock and a device with one queue of work, both in ms; the device's clock runs at its own speed."""

    def __init__(self, speed: float = 1.0) -> None:
        self.now, self.free, self.speed = 0.0, 0.0, speed
        self.device = torch.device("cpu")
        self.fails = False
        self.idle = self.marks = 0

    def work(self, ms: float) -> None:
        self.now += ms

    def launch(self, ms: float) -> None:
        self.free = max(self.free, self.now) + ms

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    # As a CudaTimer: the event of a mark is when the device passes it.

    def mark(self):
        if self.fails:
            raise RuntimeError("an illegal memory access was encountered")
        self.idle -= 1
        self.marks += 1
        mark = Mark(max(self.free, self.now))
        mark.stream = 0
        return mark

    def is_current(self, mark):
        return True

    def is_done(self, mark):
        return mark.event <= self.now

    def wait(self, mark):
        self.now = max(self.now, mark.event)

    def ms(self, start, end):
        return (end.event - start.event) * self.speed

    def release(self, marks):
        self.idle += len(marks)


@pytest.fixture
def planted(monkeypatch):
    def world(*, device=True, speed=1.0):
        world = World(speed)
        monkeypatch.setattr(recorder_module, "_now", lambda: round(world.now * 1e6))
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
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=None)
