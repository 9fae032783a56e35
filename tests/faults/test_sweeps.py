"""Sweeps, run and read."""

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from make_record import record
from swept import CELLS
from table import promise

import profiling.compare.__main__ as compare
import profiling.report.__main__ as report
from profiling.cli import launchers
from profiling.cli import sweep as cli
from profiling.errors import install_hint
from profiling.report import render
from profiling.results.jsonl import append_record
from profiling.results.sweep import SWEEP_FILE, Sweep, SweepJob, read_sweep, write_job, write_sweep


@pytest.fixture(autouse=True)
def _launchers_are_installed(monkeypatch):
    monkeypatch.setattr(launchers, "missing_package", lambda package: None)


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
    ("seed=0 hydra.sweep.dir=/proc/sweep", "/proc/sweep", "hydra.sweep.dir=FOLDER"),
    ("seed=0 launcher=local hydra.launcher.n_jobs=1", "hydra.launcher.n_jobs", "devices=N"),
    ("seed=0 launcher=slurm hydra/launcher=submitit_local hydra.launcher.timeout_mins=1", "submitit", "timeout_mins"),
    ("seed=0 launcher=slurm hydra/launcher=submitit_local hydra.launcher.timeout_min=many", "timeout_min", "int"),
    ("seed=0 launcher=ray hydra.launcher.n=1", "hydra.launcher.n", "hydra.launcher.ray.init."),
)


@promise("sweep option")
@pytest.mark.parametrize("row", WRONG, ids=lambda row: row[0])
def test_wrong_words(start_sweep, tmp_path, row):
    words, *told = row
    if "submitit" in words:
        pytest.importorskip("submitit")
    start_sweep(*words.split()).refused_with(*told)
    assert not (tmp_path / "sweep").exists()


@promise("sweep option")
@pytest.mark.parametrize("words", ["seed=0 resume=sweep", "launcher=local"])
def test_without_multirun(started, words):
    Path("sweep").mkdir()
    (Path("sweep") / "sweep.json").touch()
    code, err = started(words, quick=(*CELLS, "device=cpu"))
    assert code == 2
    assert "Add --multirun" in err


@promise("missing package")
def test_a_launcher_that_is_not_installed(start_sweep, monkeypatch):
    monkeypatch.setattr(launchers, "missing_package", install_hint)
    start_sweep("seed=0,1", "launcher=slurm").refused_with("-m pip install submitit")


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
def test_what_a_cluster_lacks(start_sweep, monkeypatch, launcher, device, answer, told):
    monkeypatch.setattr(launchers, "visible_gpus", list)
    monkeypatch.setattr(launchers, "_ASK_RAY", answer)
    monkeypatch.setenv("PATH", "" if launcher == "slurm" else os.environ["PATH"])
    address = ["hydra.launcher.ray.init.address=127.0.0.1:1"] if launcher == "ray" else []
    start_sweep("seed=0,1", f"launcher={launcher}", f"device={device}", *address).refused_with(*told)


@promise("cluster")
@pytest.mark.parametrize("listens", [False, True])
def test_a_ray_cluster_that_does_not_answer(start_sweep, monkeypatch, listens):
    monkeypatch.setattr(launchers, "ANSWER_SECONDS", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as server:  # connections are made, and nobody reads from them
        port = server.getsockname()[1]
        if not listens:
            server.close()
        swept = start_sweep("seed=0,1", "launcher=ray", f"hydra.launcher.ray.init.address=127.0.0.1:{port}")
        swept.refused_with(f"no Ray cluster answers at 127.0.0.1:{port} within 5 s")


@promise("job")
def test_jobs_that_fail_die_or_do_not_end(start_sweep):
    swept = start_sweep("seed=0,1,2,3", "job_timeout=2", plan={0: "raise", 1: "die", 2: "hang"})
    assert swept.code == 1
    assert all(words in swept.err for words in ("1 failed", "1 died", "1 timed out", "1 done"))
    assert "resume=" in swept.err.splitlines()[-1]
    assert swept.states == ["failed", "died", "timed out", "done"]
    first, second, third, last = (job.reason for job in swept.sweep.jobs)
    assert (first, last) == ("RuntimeError: planted", None)
    assert second == "its process was killed by signal 9 (SIGKILL)"
    assert "job_timeout=2 s" in third
    assert "Traceback" in (swept.folder / "0" / "job.log").read_text()
    written = json.loads((swept.folder / "sweep.json").read_text())["jobs"]
    assert [job["state"] for job in written] == swept.states, "sweep.json says what became of each"


@promise("interrupt")
def test_a_sweep_that_is_interrupted_while_its_report_is_made(start_sweep, monkeypatch):
    def interrupts(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(render, "write_text", interrupts)
    swept = start_sweep("seed=0", plan={0: "fail"})
    assert swept.code == 130
    assert "interrupted while writing the report; all records are saved" in swept.err
    assert f"-m profiling.report {swept.folder}\n" in swept.err


@promise("full disk")
def test_a_disk_that_is_full_after_a_job_of_a_sweep(start_sweep, monkeypatch):
    def fills(folder, state):
        if (folder / "0" / "results.jsonl").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write_sweep(folder, state)

    monkeypatch.setattr(cli, "write_sweep", fills)
    swept = start_sweep("seed=0", plan={0: "fail"})
    assert swept.code == 2
    assert f"finished cells in {swept.folder} are complete" in swept.err.splitlines()[-1]


@promise("killed run")
def test_a_killed_sweep(start_sweep):
    folder = start_sweep("seed=0,1,2").folder
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    killed = json.loads((folder / "1" / "job.json").read_text()) | {"state": "running", "pid": process.pid}
    (folder / "1" / "job.json").write_text(json.dumps(killed))
    for name in ("job.json", "job.log", "times.jsonl"):
        (folder / "2" / name).unlink()
    assert [job.state for job in read_sweep(folder).jobs] == ["done", "died", "waiting"]
    again = start_sweep("seed=0,1,2", "resume=sweep")
    assert again.code == 0, again.err
    assert again.states == ["done"] * 3
    assert [len(again.tries(number)) for number in range(3)] == [1, 2, 1]


@promise("sweep option")
def test_another_sweep(start_sweep):
    plan = start_sweep("seed=0,1").folder / "sweep.json"
    before = plan.read_bytes()
    start_sweep("seed=0,2", "resume=sweep").refused_with("seed=0,1 resume=sweep")
    assert plan.read_bytes() == before


@promise("shared folder")
def test_a_running_sweep(start_sweep, tmp_path):
    job = SweepJob(number=0, folder="0", overrides=(*CELLS, "device=cpu", "seed=0"))
    (tmp_path / "sweep" / "0").mkdir(parents=True)
    write_sweep(tmp_path / "sweep", Sweep(target="generic_forward", launcher="basic", began="", argv=(), jobs=(job,)))
    write_job(tmp_path / "sweep", job)
    holder = "from profiling.results.run_folder import claimed; from pathlib import Path; import sys\n"
    holder += "with claimed(Path('sweep'), 'sweep', print): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=-1, stdout=-1, cwd=tmp_path, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        start_sweep("seed=0", "resume=sweep").refused_with(f"in use by process {process.pid}")
        start_sweep("seed=0").refused_with("or choose another hydra.sweep.dir.")
        process.kill()


# Their reports.


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three jobs; the second took 4 ms a call."""
    folder = tmp_path / "sweep"
    for number in range(3):
        (folder / str(number)).mkdir(parents=True)
        append_record(folder / str(number), record(p50=3.0 + number))
        (folder / str(number) / "environment.json").write_text('{"device": {"type": "cuda", "name": "GPU"}}')
    jobs = tuple(SweepJob(number=n, folder=str(n), overrides=(f"seed={n}",)) for n in range(3))
    plan = Sweep(target="generic_forward", launcher="local", began="2026-01-02T03:04:05+00:00", argv=(), jobs=jobs)
    write_sweep(folder, plan)
    return folder


@promise("damaged sweep")
@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("0/results.jsonl", '{"schema": 99}\n', "cannot be read"),
        ("0/results.jsonl", "no record\n", "results.jsonl: 1 damaged or cut-off line skipped"),
        ("0/environment.json", "[", "environment.json is damaged"),
    ],
)
def test_damage_in_one_run_costs_that_run(sweep, file, text, words, capsys):
    (sweep / file).write_text(text)
    assert report.main([str(sweep)]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("job 0 (seed=0)"))
    assert words in line
    assert "4.000" in out
    assert (sweep / "report.html").stat().st_size


@promise("damaged sweep")
def test_a_cut_off_plan(sweep, capsys):
    (sweep / SWEEP_FILE).write_text('{"schema": 1, "jobs"')
    assert report.main([str(sweep)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert report.main([str(sweep / "1")]) == 0


@promise("damaged sweep")
def test_a_folder_outside(sweep, capsys):
    plan = json.loads((sweep / SWEEP_FILE).read_text())
    plan["jobs"][0]["folder"] = "../elsewhere"
    (sweep / SWEEP_FILE).write_text(json.dumps(plan))
    assert report.main([str(sweep)]) == 0
    assert "../elsewhere lies outside of the sweep" in capsys.readouterr().out


@promise("sweep option")
def test_what_only_runs_have(sweep, capsys):
    assert report.main([str(sweep), "--format", "junit"]) == 2
    assert "--format junit is of a run" in capsys.readouterr().err
    assert not (sweep / "report.md").exists()
    assert compare.main([str(sweep / "0"), str(sweep)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "-m profiling.history" in line
