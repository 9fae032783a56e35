"""A process that dies in the middle of a frame leaves all those before it."""

import subprocess
import sys

import numpy as np
import pytest
from as_user import ROOT, environment
from planted_loop import CELL, FakeClock, FakeLoop, played

from profiling.components.spec import ComponentSpec, Settings
from profiling.realtime.recovery import recover_frames
from profiling.results.frames import read_series, recover_series, series_file
from profiling.run.job import Job

DIES = """
import os, signal, sys
from pathlib import Path
from planted_loop import FakeClock, FakeLoop, played

class Dying(FakeLoop):
    def begin(self, frame):
        if frame == 100:
            {how}
        return super().begin(frame)

clock = FakeClock()
played(Path(sys.argv[1]), Dying(clock, lambda frame: 5.0 + 0.01 * frame, 1.0), clock, 600)
"""


@pytest.mark.parametrize(("how", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)])
def test_frames_of_a_dead_process(tmp_path, how, code):
    here = str(ROOT / "tests" / "profiling" / "realtime")
    start = [sys.executable, "-c", DIES.format(how=how), str(tmp_path)]
    done = subprocess.run(start, env=environment(PYTHONPATH=f"{ROOT}:{here}"), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert not (tmp_path / series_file(CELL)).exists()
    series = recover_series(tmp_path, CELL)
    assert series is not None
    np.testing.assert_allclose(series["frame_ms"], 6.0 + 0.01 * np.arange(100), atol=1e-6)
    for name, values in read_series(tmp_path / series_file(CELL)).items():
        np.testing.assert_array_equal(values, series[name])
    assert recover_series(tmp_path, CELL) is None, "nothing is left to be rescued twice"


def job(folder):
    options = {
        "_target_": "profiling.realtime.options.LoopOptions",
        "fps": 50,
        "warmup_frames": 7,
        "schedule": "overlap",
    }
    return Job(
        target="realtime",
        component=ComponentSpec("realtime", {"_target_": "x"}, {"_target_": "x"}),
        variant=CELL.removeprefix("realtime."),
        variant_options={},
        metrics={},
        settings=Settings(device="cpu"),
        run=str(folder),
        procedure={"options": options, "stages": '{"world": {"module": {"steps": 2, "guidance": null}}}'},
    )


def test_what_its_record_says(tmp_path):
    assert recover_frames(tmp_path, job(tmp_path)) == {}, "it never began"
    clock = FakeClock()
    with pytest.raises(IndexError):
        played(tmp_path, FakeLoop(clock, ([5.0] * 99).__getitem__), clock, 600)
    section = recover_frames(tmp_path, job(tmp_path))["realtime"]
    assert (section["frames"], section["target_fps"], section["warmup_frames"]) == (99, 50.0, 7)
    assert (section["schedule"], section["deliver"], section["steps"]) == ("overlap", "host", 2)
    assert "guidance" not in section
    assert section["frame_ms"]["max"] == pytest.approx(5.0)
