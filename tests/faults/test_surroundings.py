"""What surrounds a command: files that are no runs, environment variables, streams, signals, other programs."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from as_user import QUICK, ROOT, command, environment
from fixed_component import Net
from make_record import record
from table import promise

import profiling
import profiling.compare.__main__ as compare
import profiling.report.__main__ as report
from profiling import checkpoints, history
from profiling.errors import InputError, shell_words
from profiling.machine import run_queue
from profiling.metrics import memory, monitor
from profiling.metrics.latency import Latency
from profiling.metrics.parity import Parity
from profiling.results.jsonl import append_record, read_records
from profiling.results.verdicts import answer_on, taken
from profiling.variants.recipe import Recipe

NET = ("component=[net]", "variant=[baseline]")
RECORD = record()


def in_a_folder(make):
    """Make what is named as a run's records are, beside a file of another program."""

    def made(path):
        path.mkdir()
        (path / "report.md").write_text("mine")
        make(path / "results.jsonl")

    return made


SPECIAL = {
    "nothing": lambda path: None,
    "an empty folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a FIFO": os.mkfifo,
    "bytes that are no records": lambda path: path.write_bytes(bytes(range(256)) * 10),
    "an empty file": lambda path: path.touch(),
    "a folder in place of the records": in_a_folder(Path.mkdir),
    "an endless device in place of the records": in_a_folder(lambda path: path.symlink_to("/dev/zero")),
    "records of 100 GB": in_a_folder(lambda path: (path.touch(), os.truncate(path, 10**11))),
    "a folder of another program": in_a_folder(lambda path: path.write_text('{"loss": 1}\n')),
}


@promise("damaged run")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [pytest.param(make, id=what) for what, make in SPECIAL.items()])
def test_no_run(make, tmp_path, capsys):
    make(tmp_path / "given")
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    for main in (report.main, compare.main, history.main):
        assert main([str(tmp_path / "given")] * (2 if main is compare.main else 1)) == 2, main
        (line,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("skipped "))
        assert line.startswith("error: ")
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@promise("damaged run")
@pytest.mark.timeout(30)
def test_fifos_inside_a_run(tmp_path, capsys):
    append_record(tmp_path, RECORD)
    os.mkfifo(tmp_path / "environment.json")
    os.mkfifo(tmp_path / "config.yaml")
    assert report.main([str(tmp_path)]) == 0
    compare.main([str(tmp_path)] * 2)
    assert "Traceback" not in capsys.readouterr().err


ENVIRONMENTS = {
    "no HOME, no TMPDIR, no such PYTHONPATH": {
        "HOME": None,
        "TMPDIR": "/nonexistent",
        "PYTHONPATH": f"/nonexistent::{os.fsdecode(bytes([255]))}",
        "COLUMNS": "0",
    },
    "no UTF-8": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "COLUMNS": "-5"},
    "COLUMNS is larger than an integer of C": {"COLUMNS": "9" * 30},
    "COLUMNS is no number": {"COLUMNS": "\u00b2"},
}


@promise("surroundings")
@pytest.mark.parametrize("variables", [pytest.param(variables, id=what) for what, variables in ENVIRONMENTS.items()])
def test_environments(variables, tmp_path):
    """A command as a process, which is cheap for a report: it imports no torch."""
    append_record(tmp_path, RECORD)
    path = f"{ROOT}{os.pathsep}{variables.get('PYTHONPATH', '')}"
    given = {**os.environ, **variables, "PYTHONPATH": path}
    env = {name: value for name, value in given.items() if value is not None}
    done = subprocess.run([sys.executable, "-m", "profiling.report", tmp_path], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"net: no latency was measured." in done.stdout
    assert done.stderr == b""


STREAMS = {
    "standard output is a full disk": (">/dev/full", 2, "cannot be written"),
    "standard output is closed": (">&-", 0, ""),
    "standard error is a full disk": ("2>/dev/full", 0, ""),
    "all three standard streams are closed": ("<&- >&- 2>&-", 0, ""),
    "the reader of standard output is gone": ("| true", 0, ""),
}


@promise("streams")
@pytest.mark.parametrize(("streams", "code", "says"), [pytest.param(*case, id=what) for what, case in STREAMS.items()])
def test_streams(streams, code, says, tmp_path):
    append_record(tmp_path, RECORD)
    line = f"set -o pipefail; {shell_words([sys.executable, '-m', 'profiling.report', tmp_path])} {streams}"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == bool(says)
    assert (tmp_path / "report.html").exists()


@promise("streams")
def test_a_run_without_streams(tmp_path):
    line = f"{shell_words(command(tmp_path / 'run', *NET, 'isolation=none'))} <&- >&- 2>&-"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment())
    assert done.returncode == 0
    assert [row.status for row in read_records(tmp_path / "run").records] == ["ok"]
    assert (tmp_path / "run" / "report.html").exists()


@promise("interrupt")
@pytest.mark.parametrize(
    ("number", "handler", "code"),
    [
        (signal.SIGTERM, signal.SIG_DFL, 130),
        (signal.SIGHUP, signal.SIG_DFL, 130),
        (signal.SIGHUP, signal.SIG_IGN, 0),  # under nohup
    ],
)
def test_signals(started, number, handler, code):
    def run(cfg, folder):
        os.kill(os.getpid(), number)
        time.sleep(0.5)
        return 0

    signal.signal(number, handler)
    assert started(NET, run=run)[0] == code


@pytest.fixture
def leave(tmp_path):
    """Go to a folder that is then deleted, until the test ends."""
    before, gone = Path.cwd(), tmp_path / "gone"

    def leave() -> None:
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()

    yield leave
    os.chdir(before)


def record_a_frame(folder):
    with profiling.FrameRecorder(device="cpu", folder=folder) as frames, frames.frame():
        pass


PLACELESS = {
    "compare": lambda: compare.main(["HEAD~1", "HEAD"]),
    "compare, of what may be runs": lambda: compare.main(["a", "b"]),
    "checkpoints": lambda: checkpoints.main([]),
    "profile": lambda: profiling.profile(
        torch.nn.Linear(4, 4), {"input": torch.zeros(2, 4)}, ["baseline"], ceilings="off", quiet=True
    ),
    "a recorder": lambda: record_a_frame(None),
    "a recorder with a folder": lambda: record_a_frame("x"),
}


@promise("surroundings")
def test_no_working_directory(started, leave):
    leave()
    code, err = started(NET)
    assert code == 2
    assert "the working directory was deleted" in err


@promise("surroundings")
@pytest.mark.parametrize("run", PLACELESS.values(), ids=PLACELESS)
def test_no_working_directory_of_other_commands_and_of_a_script(run, leave, capsys):
    leave()
    try:
        assert run() == 2
        said = capsys.readouterr().err
    except InputError as error:
        said = f"error: {error}\n"
    assert said == "error: the working directory was deleted. Change to another folder.\n"


@promise("surroundings")
def test_a_working_directory_that_is_deleted_before_frames_are_saved(leave, tmp_path):
    with profiling.FrameRecorder(device="cpu", folder=tmp_path / "journal") as frames:
        with frames.frame():
            pass
        leave()
        with pytest.raises(InputError, match="the working directory was deleted"):
            frames.save(tmp_path / "run")
        os.chdir(tmp_path)
        assert frames.save(tmp_path / "run").records[0].realtime.frames == 1


@promise("surroundings")
def test_no_proc(started, tmp_path, monkeypatch):
    nowhere = tmp_path / "proc"
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(nowhere))
    monkeypatch.setattr(run_queue, "THREADS", nowhere / "self" / "task")
    monkeypatch.setattr(memory, "reset_peak_host_rss", lambda: False)
    monkeypatch.setattr(monitor, "PROC", nowhere)
    code, err = started((*QUICK, *NET, "isolation=none", "metric=[latency,memory]", "hydra.run.dir=run"))
    assert code == 0, err
    (row,) = read_records(Path("run")).records
    assert row.wall_p50 is not None
    assert row.memory.peak_host_rss is None
    assert {kinds.host_rss for kinds in row.memory.phases.values()} == {None}
    frames = monitor.FrameMonitor(torch.device("cpu"))
    assert "host_rss" not in frames(0, 1.0)
    frames.close()


#: Computes all the time, on the core of the process that started it, and ends with that process.
RIVAL = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


@pytest.fixture
def rival():
    """Another process that wants the core on which this thread runs."""
    if run_queue.RunQueueMonitor().lost_share() is None:
        pytest.skip("this system does not count waits")
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})
    process = subprocess.Popen([sys.executable, "-c", RIVAL])
    yield process
    process.kill()
    process.wait()
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


def tenfold(self, x):
    """Compute the same ten times: longer than a time slice."""
    return sum(self.layer(x) for _ in range(10)) / 10


def once(module):
    return Net(lambda self, x: self.layer(x), layer=module.layer)


@promise("busy")
def test_beside_a_rival_on_the_same_core_a_tenth_of_the_work_leads_and_nothing_is_claimed_of_equal_code(rival):
    limits = Latency(min_iterations=10, max_seconds=2.0, warmup_max_seconds=0.5)
    metrics = {"parity": Parity(), "latency": limits}
    variants = {"baseline": Recipe(), "again": Recipe(), "once": Recipe(transforms=[once])}
    module, inputs = Net(tenfold, layer=torch.nn.Linear(1024, 1024)), {"x": torch.randn(64, 1024)}
    result = profiling.profile(module, inputs, variants, metrics=metrics, ceilings="off", quiet=True)
    base, again, tenth = result.records
    others = taken(base.conditions)
    assert others is not None
    assert others.share > 0.2, "a fair scheduler gives each a half, and less where tests run beside"
    assert answer_on(again, result.records) == "undecided"
    assert answer_on(tenth, result.records) == "faster"
    assert result.best() is tenth
    assert {window.cpu_lost_share is not None for window in base.turns.windows} == {True}
    assert re.search(r"\n\S+ +once +[\d.]+ \S+ +≥ [\d.]+×", str(result)), "in the answer: what it is at least"
    assert "% of the CPU went to other processes" in str(result)
