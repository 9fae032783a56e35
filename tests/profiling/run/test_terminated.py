"""A run that is terminated (SIGTERM by a scheduler or `timeout`) keeps its frames and names the resume command."""

import signal
import subprocess
import time

from as_user import command, environment

from profiling.results.frames import read_series


def test_frames_of_a_terminated_loop_stay_and_resume_is_named(tmp_path):
    folder = tmp_path / "run"
    overrides = ("variant=[baseline]", "metric=[]", "ceilings=off", "loop.frames=100000", "loop.warmup_frames=1")
    started = command(folder, *overrides, target="realtime", quick=("device=cpu", "scale=tiny", "threads=1"))
    process = subprocess.Popen(
        started, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    journal = folder / "cells" / "realtime.baseline.frames.part"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > 20_000):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"resume={folder}" in err
    assert not journal.exists()
    assert len(read_series(folder / "cells" / "realtime.baseline.frames.npz")["frame_ms"]) > 10
