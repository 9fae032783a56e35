"""Sweeps."""

import json
import os
import socket
import subprocess
import sys

import pytest
from table import promise

from profiling import generic_forward
from profiling.cli import app, launchers, sweep
from profiling.results.sweep import Sweep, SweepJob, read_sweep, write_job, write_sweep

JOB = "import os, signal, sys; from pathlib import Path\n"
RUNS = ("component=[image_decoder]", "variant=[baseline]", "device=cpu")
#: Words that say where a sweep lies.
WHERE = ("resume=", "hydra.sweep.dir=")


@pytest.fixture
def start(tmp_path, monkeypatch, capfd):
    """Start a sweep in this process, whose jobs run `code` instead of the profiler; return (exit code, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(app.signal, "signal", lambda *_: None)
    monkeypatch.setattr(launchers, "find_spec", lambda package: True)

    def run(*words: str, code: str = "", device: str = "cpu") -> tuple[int, str]:
        monkeypatch.setattr(sweep, "run_command", lambda target: (sys.executable, "-c", JOB + code))
        flags = [] if "--multirun" not in words else ["--multirun"]
        folder = [] if any(word.startswith(WHERE) for word in words) or not flags else ["hydra.sweep.dir=sweep"]
        keys = [word for word in words if word != "--multirun"]
        monkeypatch.setattr(sys, "argv", ["profiling", *flags, *folder, *RUNS[:2], f"device={device}", *keys])
        return app.launch("generic_forward", generic_forward.run), capfd.readouterr().err

    return run


def is_refused(outcome: tuple[int, str], *told: str) -> None:
    """Check that a command ended with one line that says all of `told`, before the first job."""
    code, err = outcome
    (line,) = err.splitlines()
    assert code == 2
    assert all(word in line for word in told), line


#: Words of the command line of a sweep, and words of the error.
WRONG = (
    ("seedd=0,1", "no key 'seedd'", "'seed'"),
    ("metric=[latency],[latenci]", "no metric 'latenci'", "latency"),
    ("seed=0,1 threads=1,x", "threads", "x"),
    ("seed=0 launcher=local devices=0", "devices=0"),
    ("seed=0 launcher=local devices=1000", "devices=1000", "physical CPU cores"),
    ("seed=0,1 devices=2", "launcher=local"),
    ("seed=0 launcher=laptop", "launcher=laptop", "local"),
    ("seed=0 retries=-1", "retries=-1"),
    ("seed=0 job_timeout=0", "job_timeout=0"),
    ("seed=0 retries=0,1", "whole sweep"),
    ("seed=range(0,100000)", "100,000 jobs"),
    ("seed=0 hydra.sweep.subdir=a", "hydra.sweep.subdir"),
    ("seed=interval(0,2)", "seed=interval(0,2)", "range(1,5)"),
    ("seed=glob(*)", "seed=glob(*)", "range(1,5)"),
    ("seed=0 hydra.sweep.dir=/proc/sweep", "cannot make /proc/sweep", "hydra.sweep.dir=FOLDER"),
    ("seed=0 launcher=local hydra.launcher.n_jobs=1", "hydra.launcher.n_jobs", "devices=N"),
    ("seed=0 launcher=slurm hydra/launcher=submitit_local hydra.launcher.timeout_mins=1", "submitit", "timeout_mins"),
    ("seed=0 launcher=slurm hydra/launcher=submitit_local hydra.launcher.timeout_min=many", "timeout_min", "int"),
    ("seed=0 launcher=ray hydra.launcher.n=1", "hydra.launcher.n", "hydra.launcher.ray.init."),
)


@promise("sweep option")
@pytest.mark.parametrize("row", WRONG, ids=lambda row: row[0])
def test_wrong_words(start, tmp_path, row):
    words, *told = row
    if "submitit" in words:
        pytest.importorskip("submitit")
    is_refused(start("--multirun", *words.split()), *told)
    assert not (tmp_path / "sweep").exists()


@promise("sweep option")
def test_without_multirun(start):
    start("--multirun", "seed=0")
    is_refused(start("seed=0", "resume=sweep"), "Add --multirun")
    is_refused(start("launcher=local"), "Add --multirun")


@promise("missing package")
def test_a_launcher_that_is_not_installed(start, monkeypatch):
    monkeypatch.setattr(launchers, "find_spec", lambda name: None)
    is_refused(start("--multirun", "seed=0,1", "launcher=slurm"), "-m pip install submitit")


TOKEN = "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing"
NODES, REFUSAL = "print('[{\"CPU\": 8.0}]')", f"raise SystemExit({TOKEN!r})"
#: Launcher, device, what a cluster says when it is asked, and words of the error.
CLUSTERS = {
    "no GPU": ("local", "cuda", "", ("names no GPU",)),
    "no Slurm": ("slurm", "cpu", "", ("sbatch",)),
    "no GPU in the cluster": ("ray", "cuda", NODES, ("no node of the Ray cluster at 127.0.0.1:1 has a GPU",)),
    "no token": ("ray", "cpu", REFUSAL, ("the Ray cluster at 127.0.0.1:1 refuses this process", "RAY_AUTH_MODE=token")),
}


@promise("cluster")
@pytest.mark.parametrize(("launcher", "device", "answer", "told"), CLUSTERS.values(), ids=CLUSTERS)
def test_what_a_cluster_lacks(start, monkeypatch, launcher, device, answer, told):
    monkeypatch.setattr(launchers, "visible_gpus", list)
    monkeypatch.setattr(launchers, "_ASK_RAY", answer)
    monkeypatch.setenv("PATH", "" if launcher == "slurm" else os.environ["PATH"])
    address = ["hydra.launcher.ray.init.address=127.0.0.1:1"] if launcher == "ray" else []
    is_refused(start("--multirun", "seed=0,1", f"launcher={launcher}", *address, device=device), *told)


@promise("cluster")
@pytest.mark.parametrize("listens", [False, True])
def test_a_ray_cluster_that_does_not_answer(start, monkeypatch, listens):
    monkeypatch.setattr(launchers, "ANSWER_SECONDS", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as server:  # connections are made, and nobody reads from them
        port = server.getsockname()[1]
        if not listens:
            server.close()
        is_refused(
            start("--multirun", "seed=0,1", "launcher=ray", f"hydra.launcher.ray.init.address=127.0.0.1:{port}"),
            f"no Ray cluster answers at 127.0.0.1:{port} within 5 s",
        )


@promise("job")
def test_jobs_that_fail_die_or_do_not_end(start, tmp_path):
    code = "seed = next(each for each in sys.argv if each.startswith('seed='))\n"
    code += "{'seed=0': lambda: 1 / 0, 'seed=1': lambda: os.kill(os.getpid(), 9),\n"
    code += " 'seed=2': lambda: __import__('time').sleep(60), 'seed=3': int}[seed]()"
    ended, err = start("--multirun", "seed=0,1,2,3", "job_timeout=2", code=code)
    assert ended == 1
    assert all(words in err for words in ("1 failed", "1 died", "1 timed out", "1 done"))
    assert "resume=" in err.splitlines()[-1]
    jobs = read_sweep(tmp_path / "sweep").jobs
    assert [job.state for job in jobs] == ["failed", "died", "timed out", "done"]
    first, second, third, last = (job.reason for job in jobs)
    assert (first, last) == ("ZeroDivisionError: division by zero", None)
    assert second == "its process was killed by signal 9 (SIGKILL)"
    assert "job_timeout=2 s" in third
    assert "Traceback" in (tmp_path / "sweep" / "0" / "job.log").read_text()
    written = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["jobs"]
    assert [job["state"] for job in written] == [job.state for job in jobs], "sweep.json says what became of each"


@promise("killed run")
def test_a_killed_sweep(start, tmp_path):
    start("--multirun", "seed=0,1,2", code="Path(sys.argv[-1].partition('=')[2], 'ran').touch()")
    folder = tmp_path / "sweep"
    jobs = read_sweep(folder).jobs
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    killed = json.loads((folder / "1" / "job.json").read_text()) | {"state": "running", "pid": process.pid}
    (folder / "1" / "job.json").write_text(json.dumps(killed))
    for name in ("job.json", "job.log", "ran"):
        (folder / "2" / name).unlink()
    (folder / "0" / "ran").unlink()
    assert [job.state for job in read_sweep(folder).jobs] == ["done", "died", "waiting"]
    code, err = start(
        "--multirun", "seed=0,1,2", "resume=sweep", code="Path(sys.argv[-1].partition('=')[2], 'ran').touch()"
    )
    assert code == 0, err
    assert [job.state for job in read_sweep(folder).jobs] == ["done"] * 3
    assert [(folder / job.folder / "ran").exists() for job in jobs] == [False, True, True]


@promise("sweep option")
def test_another_sweep(start, tmp_path):
    start("--multirun", "seed=0,1")
    before = (tmp_path / "sweep" / "sweep.json").read_bytes()
    is_refused(start("--multirun", "seed=0,2", "resume=sweep"), "seed=0,1 resume=sweep")
    assert (tmp_path / "sweep" / "sweep.json").read_bytes() == before


@promise("shared folder")
def test_a_running_sweep(start, tmp_path):
    job = SweepJob(number=0, folder="0", overrides=(*RUNS, "seed=0"))
    (tmp_path / "sweep" / "0").mkdir(parents=True)
    write_sweep(tmp_path / "sweep", Sweep(target="generic_forward", launcher="basic", began="", argv=(), jobs=(job,)))
    write_job(tmp_path / "sweep", job)
    holder = "from profiling.results.run_folder import claimed; from pathlib import Path; import sys\n"
    holder += "with claimed(Path('sweep'), 'sweep', print): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=-1, stdout=-1, cwd=tmp_path, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        is_refused(start("--multirun", "seed=0", "resume=sweep"), f"in use by process {process.pid}")
        code, err = start("--multirun", "seed=0", "hydra.sweep.dir=sweep")
        process.kill()
    assert (code, len(err.splitlines())) == (2, 1)
    assert "or choose another hydra.sweep.dir." in err
