"""The files of a sweep: plan and jobs are merged, also while it runs and after its processes were killed."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from profiling.errors import InputError
from profiling.results import sweep as sweeps
from profiling.results.run_folder import JOB_FILE
from profiling.results.sweep import Sweep, SweepJob, is_sweep, keep_alive, read_sweep, write_job, write_sweep

JOB = SweepJob(number=0, folder="0", overrides=("seed=1",))
HERE = {"host": socket.gethostname(), "pid": os.getpid()}


@pytest.fixture
def folder(tmp_path):
    jobs = tuple(replace(JOB, number=number, folder=str(number)) for number in range(2))
    write_sweep(
        tmp_path,
        Sweep(target="generic_forward", launcher="local", began="2026-01-01T00:00:00+00:00", argv=("a=1",), jobs=jobs),
    )
    for job in jobs:
        (tmp_path / job.folder).mkdir()
    return tmp_path


def test_a_sweep_that_has_not_begun_and_a_job_that_says_what_became_of_it(folder):
    sweep = read_sweep(folder)
    assert is_sweep(folder)
    assert (sweep.target, sweep.launcher, sweep.argv) == ("generic_forward", "local", ("a=1",))
    assert sweep.jobs == (JOB, replace(JOB, number=1, folder="1"))
    write_job(folder, done := replace(JOB, state="done", exit_code=0, tries=1, device="cuda:0 NVIDIA H200"))
    assert read_sweep(folder).jobs[0] == done


def test_a_running_job_is_alive_while_its_process_lives(folder):
    write_job(folder, running := replace(JOB, state="running", tries=1, **HERE))
    assert read_sweep(folder).jobs[0] == running
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write_job(folder, replace(running, pid=process.pid))
    job = read_sweep(folder).jobs[0]
    assert (job.state, job.tries) == ("died", 1)
    assert "ended without a word" in job.reason


def test_a_job_of_another_host_is_alive_while_it_beats(folder, monkeypatch):
    monkeypatch.setattr(sweeps, "BEAT_SECONDS", 0.01)
    write_job(folder, running := replace(JOB, state="running", host="elsewhere", pid=1))
    assert read_sweep(folder).jobs[0] == running
    silent = time.time() - 2 * sweeps.SILENT_SECONDS
    os.utime(folder / "0" / JOB_FILE, (silent, silent))
    sweep = read_sweep(folder)
    assert sweep.jobs[0].state == "died"
    write_sweep(folder, replace(sweep, jobs=(replace(JOB, state="done", exit_code=0), sweep.jobs[1])))
    assert read_sweep(folder).jobs[0].state == "died", "what a job wrote counts, and not the plan"
    with keep_alive(folder, running):
        time.sleep(0.1)
    assert read_sweep(folder).jobs[0] == running


@pytest.mark.parametrize("content", ["", "{", "[]", '{"number": 7, "folder": "0", "overrides": []}', "[" * 100_000])
def test_a_job_whose_file_is_damaged_waits_to_be_resumed(folder, content):
    (folder / "0" / JOB_FILE).write_text(content)
    assert read_sweep(folder).jobs[0] == replace(JOB, reason="its job.json is damaged: resume= runs what it lacks")


def test_no_sweep(tmp_path, folder):
    with pytest.raises(InputError, match=r"no sweep: it has no sweep\.json"):
        read_sweep(folder / "0")
    for content in ("{", json.dumps({"schema": 1})):
        (folder / "sweep.json").write_text(content)
        with pytest.raises(InputError, match="damaged"):
            read_sweep(folder)
