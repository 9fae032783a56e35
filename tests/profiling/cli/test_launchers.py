"""Sweeps by each launcher: every job runs once, alone on its device; what dies costs one job and can be resumed."""

import importlib.util
import itertools
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import slurm_standin

from profiling.cli import launchers, sweep
from profiling.machine import places
from profiling.results.sweep import read_sweep


def needs(package):
    installed = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not installed, reason=f"{package} is not installed")


PARALLEL = [
    pytest.param(("launcher=local", "devices=2"), id="joblib", marks=needs("joblib")),
    pytest.param(
        ("launcher=slurm", "hydra/launcher=submitit_local", "devices=2"),
        id="submitit",
        marks=[needs("submitit"), pytest.mark.slow],
    ),
    pytest.param(("launcher=ray", "devices=2"), id="ray", marks=[needs("ray"), pytest.mark.ray]),
]
TWO_CORES = pytest.mark.skipif(len(places.physical_cores()) < 2, reason="needs two cores")


def share_nothing(swept, key):
    """Check that no two tries that held one of the same `key` overlap in time; return how many pairs overlap at all."""
    tries = [each for job in swept.sweep.jobs for each in swept.tries(job.number)]
    overlapping = 0
    for one, other in itertools.combinations(tries, 2):
        if one["began"] < other["ended"] and other["began"] < one["ended"]:
            overlapping += 1
            assert not set(one[key]) & set(other[key])
    return overlapping


@TWO_CORES
@pytest.mark.parametrize("words", PARALLEL)
def test_jobs_end_well_and_badly(start_sweep, words):
    plan = {0: "meet 4", 1: "raise", 2: "die", 3: "exit 2"}
    swept = start_sweep(*words, "seed=0,1,2,3,4", plan=plan)
    assert swept.states == ["done", "failed", "died", "failed", "done"], swept.err
    assert swept.code == 2
    jobs = swept.sweep.jobs
    assert [job.exit_code for job in jobs] == [0, 1, -9, 2, 0]
    assert [job.tries for job in jobs] == [1] * 5
    killed = "its process was killed by signal 9 (SIGKILL)"
    assert [job.reason for job in jobs[1:4]] == ["RuntimeError: planted", killed, "planted"]
    assert swept.sweep.launcher == words[0].partition("=")[2]
    assert "5/5" in swept.err
    assert share_nothing(swept, "cpus") > 0, "two ran at the same time"
    assert {job.device for job in jobs} <= {f"CPU cores {cpu}" for cpu in os.sched_getaffinity(0)}
    again = start_sweep(*words, "seed=0,1,2,3,4", f"resume={swept.folder}")
    assert again.code == 0, again.err
    assert again.states == ["done"] * 5
    assert [len(again.tries(number)) for number in range(5)] == [1, 2, 2, 2, 1]
    assert again.tries(2)[1]["resumed"]


@TWO_CORES
@pytest.mark.parametrize("words", PARALLEL)
def test_a_killed_worker_costs_its_own_job(start_sweep, words, monkeypatch):
    if "submitit_local" in " ".join(words):  # it waits 15 s for the file of a worker that has ended without one
        monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)
    plan = {1: "kill the worker then end", 2: "kill the worker"}
    swept = start_sweep(*words, "retries=1", "seed=0,1,2", plan=plan)
    assert swept.states == ["done", "done", "died"], swept.err
    assert swept.code == 1
    assert "without a word" in swept.sweep.jobs[2].reason
    assert swept.sweep.jobs[2].tries == 2
    assert swept.sweep.jobs[1].tries <= 2, "a try that ended with the worker of another job is not counted"
    assert len(swept.tries(1)) >= 2


JOBLIB = ("launcher=local", "devices=2")
RAY = [needs("ray"), TWO_CORES, pytest.mark.ray]


@pytest.mark.parametrize(
    ("words", "number"),
    [
        pytest.param(("launcher=basic",), signal.SIGINT, id="basic-ctrl-c"),
        pytest.param(JOBLIB, signal.SIGINT, id="joblib-ctrl-c", marks=[needs("joblib"), TWO_CORES]),
        pytest.param(JOBLIB, signal.SIGTERM, id="joblib", marks=[needs("joblib"), TWO_CORES]),
        pytest.param(("launcher=ray", "devices=2"), signal.SIGTERM, id="ray", marks=RAY),
        pytest.param(("launcher=ray", "devices=2"), signal.SIGINT, id="ray-ctrl-c", marks=RAY),
    ],
)
def test_an_interrupted_sweep_goes_on(start_sweep, begin_sweep, words, number):
    process, folder = begin_sweep(*words, "seed=0,1,2", plan={1: "hang"})
    while read_sweep(folder).jobs[0].state != "done" or not (folder / "1/config.yaml").exists():
        assert process.poll() is None
        time.sleep(0.1)
    if number == signal.SIGINT:  # Ctrl-C reaches all processes of the terminal
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert [job.state for job in read_sweep(folder).jobs[:2]] == ["done", "waiting"]
    assert "resume=" in err
    assert "Traceback" not in err
    again = start_sweep(*words, "seed=0,1,2", f"resume={folder}")
    assert again.code == 0, again.err
    assert again.states == ["done"] * 3
    assert len(again.tries(0)) == 1
    assert again.tries(1)[-1]["resumed"]
    assert again.sweep.jobs[1].tries == 1


def test_a_failed_job_says_which_cell_failed_and_is_resumed_with_other_code(start_sweep, tmp_path):
    """Hydra's parser also accepts `--multi`; a job with it would start itself again and again."""
    words = ("--multi", f"--config-dir={tmp_path}", "retries=1", "seed=0,1,2")
    swept = start_sweep(*words, plan={1: "fail", 2: "exit 1 then fail"})
    assert swept.states == ["done", "failed", "failed"], swept.err
    assert [job.reason for job in swept.sweep.jobs[1:]] == ["net.baseline failed: out of memory (and 1 more)"] * 2
    assert swept.tries(0)[0]["flags"] == [f"--config-dir={tmp_path}"], "a job is no sweep itself"
    again = start_sweep(*words, "resume=sweep", "resume_changed=true")
    assert again.states == ["done"] * 3, again.err
    assert again.tries(1)[-1]["resume_changed"] == "true"
    assert len(again.tries(0)) == 1


def test_time_limit_and_retries(start_sweep):
    plan = {0: "hang then end", 1: "die then raise then end", 2: "exit 2"}
    swept = start_sweep("retries=2", "job_timeout=3", "seed=0,1,2", plan=plan)
    assert swept.states == ["done", "done", "failed"], swept.err
    assert [job.tries for job in swept.sweep.jobs] == [2, 3, 1]


@needs("submitit")
def test_slurm_hands_out_the_gpus(start_sweep, tmp_path, monkeypatch):
    slurm_standin.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    words = ("device=auto", "launcher=slurm", "devices=2", "hydra.launcher.partition=gpus", "job_timeout=540")
    swept = start_sweep(*words, "seed=0,1", plan={1: "die"})
    assert swept.states == ["done", "died"], swept.err
    assert [swept.tries(number)[0]["gpus"] for number in (0, 1)] == [["0"], ["1"]]
    script, *_ = (swept.folder / "launcher" / ".submitit").rglob("*submission*.sh")
    asked = re.findall("#SBATCH --(array|cpus-per-task|gpus-per-node|partition|time)=(.*)", script.read_text())
    of_a_job = {"cpus-per-task": "8", "gpus-per-node": "1", "partition": "gpus", "time": "10"}
    assert dict(asked) == {"array": "0-1%2", **of_a_job}


@needs("submitit")
@pytest.mark.parametrize("words", [(), ("hydra/launcher=submitit_local",)])
def test_an_interrupt_says_what_ends_the_jobs_that_go_on(start_sweep, tmp_path, monkeypatch, words):
    def interrupted(*_):
        raise KeyboardInterrupt

    slurm_standin.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(sweep, "launch", interrupted)
    swept = start_sweep("launcher=slurm", *words, "seed=0,1")
    assert swept.code == 130
    assert ("scancel" in swept.err) is (not words)


_CLUSTER = """
import ray, sys
ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@TWO_CORES
@needs("ray")
@pytest.mark.ray
def test_a_running_ray_cluster(start_sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # the token lies in a home folder
    monkeypatch.setattr(launchers, "ANSWER_SECONDS", 120.0)
    words = [sys.executable, "-c", _CLUSTER]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True, cwd=tmp_path) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        words = ("launcher=ray", f"hydra.launcher.ray.init.address={address}", "devices=2")
        swept = start_sweep(*words, "seed=0,1", plan={0: "meet 1", 1: "meet 0"})
        assert swept.states == ["done", "done"], swept.err
        assert swept.code == 0
        assert share_nothing(swept, "cpus") > 0, "two ran at the same time"
        assert cluster.poll() is None, "it goes on"
        cluster.communicate()


@needs("joblib")
@pytest.mark.gpu
def test_the_gpus_of_this_machine(start_sweep):
    several = len(places.visible_gpus()) > 1
    plan = {0: "meet 1", 1: "meet 0"} if several else None
    swept = start_sweep("device=auto", "launcher=local", "seed=0,1,2", plan=plan)
    assert swept.states == ["done"] * 3, swept.err
    assert all(swept.tries(number)[0]["gpus"][0].startswith("GPU-") for number in range(3))
    assert all(job.device.startswith("cuda:") for job in swept.sweep.jobs)
    assert (share_nothing(swept, "gpus") > 0) is several


@needs("joblib")
@TWO_CORES
def test_each_job_gets_a_gpu_and_cores_of_its_own(start_sweep, monkeypatch):
    monkeypatch.setattr(launchers, "visible_gpus", lambda: ["GPU-a", "GPU-b"])
    swept = start_sweep("device=auto", "launcher=local", "seed=0,1,2,3", plan={0: "meet 1"})
    assert swept.states == ["done"] * 4, swept.err
    gpus = [swept.tries(number)[0]["gpus"][0] for number in range(4)]
    assert set(gpus) == {"GPU-a", "GPU-b"}
    assert [job.device for job in swept.sweep.jobs] == gpus
    for key in ("gpus", "cpus"):
        assert share_nothing(swept, key) >= 1
    one = start_sweep("device=auto", "launcher=local", "devices=1", "seed=0,1", folder="one")
    assert [one.tries(number)[0]["gpus"] for number in range(2)] == [["GPU-a"]] * 2
    assert share_nothing(one, "gpus") == 0
