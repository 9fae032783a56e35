"""The process of a cell: its channel, its turns, its death, its children. Mostly a short script takes its place."""

import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from as_user import ROOT, begun, command, environment, finished
from fake_cells import watched
from make_job import make_job
from table import promise, rows

from profiling.metrics.sampling import Turn
from profiling.results.jsonl import read_records
from profiling.run import child, events
from profiling.run.child import Orphans
from profiling.run.events import EventReader, Phase, Sections
from profiling.run.process import Isolated
from profiling.run.session import Limits, Pending, ProcessEnd, to_its_end, wait
from profiling.run.task import Cell

NET = make_job()

SCRIPT = """
import json, os, subprocess, sys, time
FD, TURNS, N = int(sys.argv[4]), int((sys.argv + [0])[5]), iter(range(10**9))

def send(**event):
    os.write(FD, (json.dumps([next(N), event]) + "\\n").encode())

def turn():
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(TURNS, 1)
    return json.loads(line)

def start(*command, **options):
    print(subprocess.Popen(command, **options).pid, file=open(os.environ["PID"], "w"))

def some():
    send(event="sections", sections={"parameters": 7})

def end():
    send(event="end", status="ok")

READY = dict(min_iterations=1, max_iterations=9, max_seconds=9.0, used={}, free={})
"""


@pytest.fixture
def executor(monkeypatch, tmp_path):
    """Return a function that makes an executor whose process is a Python script."""
    monkeypatch.setenv("PID", str(tmp_path / "pid"))
    orphans = Orphans()

    def make(script, timeout=60.0, prepare_timeout=None, **options):
        program = tmp_path / f"program{len(list(tmp_path.iterdir()))}"
        program.write_text(f"#!{sys._base_executable} -IS\n{SCRIPT}{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr("profiling.run.session.sys", SimpleNamespace(executable=str(program)))
        return Isolated(tmp_path, Limits(timeout, prepare_timeout), orphans=orphans, **options)

    with orphans.adopted():
        yield make


@pytest.fixture
def isolated(executor):
    """Perform a cell whose process is a script, to its end; return its record."""

    def run(script, **options):
        seen = watched()
        task = executor(script, **options).session(Cell(job=NET), "net.tried", seen.receive, turns=False)
        seen.process_end = to_its_end(task)
        return seen.record()

    return run


@promise("channel")
@pytest.mark.parametrize(
    "written",
    rows(
        ('b"hello\\n"', "a library writes text to the channel"),
        ('b"[]\\nnull\\n7\\n"', "other JSON arrives on the channel"),
        ('b"\\xff\\xfe\\x00\\n"', "bytes that are no Unicode arrive on the channel"),
        ('b"[" * 100_000 + b"\\n"', "deeply nested JSON arrives on the channel"),
        ('b\'[0, {"event": "end", "status": "failed"}]\\n\'', "an event without its reason arrives"),
        ('b"x" * 100_000_000 + b"\\n"', "100 MB without a newline arrive on the channel"),
    ),
)
def test_what_is_no_event(monkeypatch, isolated, written):
    monkeypatch.setattr(events, "LONGEST", 10_000_000)
    record = isolated(f"some()\nleft = memoryview({written})\nwhile left: left = left[os.write(FD, left):]\nend()")
    assert (record.status, record.parameters) == ("ok", 7), record.reason
    assert "wrote to the channel" in record.notes[0]
    assert len(record.notes[0]) < 300


@promise("channel")
@pytest.mark.parametrize(
    ("script", "text"),
    rows(
        ("next(N)", "1 events of its process were lost", "an event is lost on the channel"),
        ('send(event="sections", sections={"speedup": 1})', "speedup", "a section has another shape"),
        ('send(event="sections", sections={"status": "ok"})', "status", "a cell sends its own status"),
        ('send(event="end", status="fine")', "lost", "a cell sends an unknown status"),
    ),
)
def test_what_damages_a_record(isolated, script, text):
    record = isolated(f"some()\n{script}\nend()")
    assert (record.status, record.parameters) == ("failed", 7)
    assert "incomplete" in record.reason
    assert text in record.reason


@promise("channel")
def test_an_event_that_is_too_long(monkeypatch):
    monkeypatch.setattr(events, "LONGEST", 1000)
    with pytest.raises(ValueError, match="can be sent"):
        events.sender(1)(Sections({"weights": "x" * 2000}))


@promise("names")
def test_a_long_name(executor):
    session = executor("").session(Cell(job=NET), f"{'x' * 249}.baseline", print, turns=False)
    process_end = to_its_end(session)
    assert process_end.death == "could not be run: File name too long"


@promise("dies")
@pytest.mark.parametrize(
    ("script", "text"),
    rows(
        ("os._exit(0)", "exited with code 0 before its result", "a cell's code exits with code 0"),
        ("os._exit(7)", "exited with code 7", "the code of a cell exits with code 7"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV", "the code of a cell crashes"),
        ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL); its memory peaked at ", "the system kills it"),
        ("os.close(FD)", "before its result", "the code of a cell closes the channel"),
    ),
)
def test_how_a_process_ends(isolated, script, text):
    record = isolated(f"some()\n{script}")
    assert (record.status, record.parameters) == ("failed", 7)
    assert text in record.reason


@promise("dies")
@pytest.mark.parametrize(("gigabytes", "is_likely"), [(6, True), (4, False)])
def test_what_a_process_held_that_the_system_killed(monkeypatch, isolated, gigabytes, is_likely):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=10 * 10**9))
    peak = property(lambda _: gigabytes * 10**9, lambda *_: None)
    monkeypatch.setattr(child.Child, "peak_bytes", peak, raising=False)
    reason = isolated("some()\nos.kill(os.getpid(), 9)").reason
    why = ", as the kernel does where memory runs out: " if is_likely else "; "
    assert f"(SIGKILL){why}its memory peaked at {gigabytes}.0 GB, on a machine of 10.0 GB" in reason


@promise("hangs")
def test_a_process_that_lingers(monkeypatch, isolated):
    monkeypatch.setattr("profiling.run.session.EXIT_SECONDS", 0.2)
    record = isolated("some()\nend()\ntime.sleep(60)", timeout=1e9)
    assert record.status == "ok"
    assert "did not exit within" in record.notes[0]


@promise("hangs")
def test_a_preparation_without_end(isolated):
    record = isolated('send(event="phase", phase="prepare")\nsome()\ntime.sleep(600)', prepare_timeout=1.0)
    assert (record.status, record.parameters) == ("failed", 7)
    assert "preparing the variant took longer than prepare_timeout=1 s: killed" in record.reason
    phases = 'send(event="phase", phase="prepare")\nsend(event="phase", phase="parity")\n'
    assert isolated(f"{phases}time.sleep(1)\nend()", prepare_timeout=0.5).status == "ok", "it has ended in time"


@promise("hangs")
def test_a_process_that_writes_without_end(isolated):
    record = isolated("some()\nwhile True: os.write(FD, b'x\\n' * 10_000)", timeout=1.0)
    assert (record.status, record.parameters) == ("failed", 7)
    assert "cell_timeout" in record.reason


@promise("hangs")
def test_where_a_process_was_when_its_time_was_over(isolated):
    stacks = "import faulthandler, signal\nfaulthandler.register(signal.SIGUSR1)\nprint('a line', flush=True)\n"
    record = isolated(f'{stacks}send(event="phase", phase="timing")\ndef waits(): time.sleep(60)\nwaits()', timeout=1.0)
    limit, place = "took longer than cell_timeout=1 s and was killed, in the phase timing at File ", "in waits"
    assert record.reason.startswith(f"the process {limit}")
    assert f"{place}; last lines of cells/net.tried.log: a line" in record.reason


@pytest.fixture
def session(executor):
    """Return a function that opens a session whose process is a script."""
    opened = []

    def start(script, **options):
        opened.append(executor(script, **options).session(Cell(job=NET), f"net.v{len(opened)}", lambda event: None))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def advance(session, turn=None):
    """Resume a session, with a turn if it waits for one, until it waits for the next."""
    state = next(session) if turn is None else session.send(turn)
    while isinstance(state, Pending):
        wait([state])
        state = next(session)
    return state


def ended(session, turn=None):
    with pytest.raises(StopIteration) as end:
        advance(session, turn)
    return end.value.value


TURN = Turn(seconds=0.1, calls=5)
TAKES_TURNS = """
send(event="waiting", ready=READY)
while turn().get("seconds"):
    send(event="waiting", window=dict(start_s=time.perf_counter(), wall_ms=[1.0, 2.0]))
end()
"""


@promise("hangs")
def test_waiting_is_not_hanging(session):
    waiting = session(TAKES_TURNS, timeout=2.0)
    assert advance(waiting).ready.max_iterations == 9
    time.sleep(2.2)
    assert advance(waiting, TURN).window.wall_ms == (1.0, 2.0)
    assert ended(waiting, Turn()) == ProcessEnd()


@pytest.mark.parametrize(
    ("happens", "death"),
    [
        pytest.param("turn()\ntime.sleep(60)", "cell_timeout", marks=promise("hangs")),
        pytest.param("os._exit(7)", "exited with code 7", marks=promise("dies")),
    ],
)
def test_a_process_that_hangs_in_its_turn_or_dies_before_it(session, happens, death):
    each = session(f'send(event="waiting", ready=READY)\n{happens}', timeout=1.0)
    advance(each)
    time.sleep(0.5)
    assert death in ended(each, TURN).death


@promise("children")
def test_processes_that_a_cell_leaves(monkeypatch, isolated, tmp_path):
    monkeypatch.setattr(child, "ORPHAN_SECONDS", 0.3)
    record = isolated("start('sleep', '60')\nsome()\nend()")
    assert record.notes == ()
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text())), "killed with its group"
    record = isolated("start('sleep', '60', start_new_session=True)\nsome()\nend()")
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    assert record.status == "ok"
    assert f"sleep (process {pid})" in record.notes[0]


@promise("children")
def test_processes_of_another_cell_that_is_alive_are_none_that_a_cell_leaves(monkeypatch, session, isolated, tmp_path):
    """Their parent has ended, as that of the compiler's workers does, so that the runner has adopted them."""
    monkeypatch.setattr(child, "ORPHAN_SECONDS", 0.3)
    other = session("start('sh', '-c', 'sleep 60 & echo $! > $PID.sleep')\nsend(event='waiting', ready=READY)\nturn()")
    advance(other)
    assert isolated("some()\nend()").notes == ()
    assert psutil.pid_exists(pid := int((tmp_path / "pid.sleep").read_text()))
    other.close()
    assert psutil.Process(pid).wait(5.0) == -signal.SIGKILL, "with its group"


@promise("children")
def test_a_fork_that_returns():
    read_end, write_end = os.pipe()
    emit = events.sender(write_end)
    child = os.fork()
    if child == 0:
        try:
            emit(Phase("twice"))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    emit(Phase("once"))
    assert os.waitstatus_to_exitcode(status) == 1
    assert list(EventReader().feed(os.read(read_end, 1000))) == [Phase("once")]
    for end in (read_end, write_end):
        os.close(end)


@promise("children")
def test_the_worker_ends_with_its_parent(tmp_path):
    folder = tmp_path / "run"
    run = begun(command(folder, "component=[net]", "variant=[holds_the_lock]"), tmp_path)
    pids = folder / "cells" / "pids"
    deadline = time.monotonic() + 120
    while not pids.exists() and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.1)
    processes = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    run.send_signal(signal.SIGKILL)
    run.communicate()
    _, running = psutil.wait_procs(processes, timeout=20)
    assert [each for each in running if each.status() != psutil.STATUS_ZOMBIE] == []


LEAVES = """
import os, time
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        if os.fork() == 0:
            os.setsid()  # not of the group that is killed with its cell
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
"""

#: The main job, which waits less long for processes that cells leave.
IMPATIENT = """
import runpy
from profiling.run import child
child.ORPHAN_SECONDS = 0.3
runpy.run_module("profiling.generic_forward", run_name="__main__", alter_sys=True)
"""


@promise("children")
def test_processes_that_outlive_the_run_are_named(tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVES)
    (tmp_path / "component").mkdir()
    yaml = "mine:\n  module: {_target_: leaving.Net}\n  inputs: {input: {shape: [2, 4]}}\n"
    (tmp_path / "component" / "mine.yaml").write_text(yaml)
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    words = ("component=[mine]", "variant=[baseline]", "metric=[latency]", f"--config-dir={tmp_path}")
    start = [sys.executable, "-m", "impatient", *command(tmp_path / "run", *words)[4:]]
    done = finished(start, tmp_path)
    assert done.returncode == 0, done.stderr
    said = re.search(r"note: cells left processes behind, which still run: python\S* \(process (\d+)\)", done.stderr)
    assert said is not None, done.stderr
    os.kill(int(said[1]), signal.SIGKILL)
    (record,) = read_records(tmp_path / "run").records
    assert any(f"(process {said[1]})" in note for note in record.notes)


@promise("interrupt")
@pytest.mark.parametrize("imported", ["profiling", "hydra.core"])
def test_an_early_interrupt(imported):
    """Ctrl-C while a command imports; `-X importtime` prints a line as soon as a module has been imported."""
    start = [sys.executable, "-X", "importtime", "-m", "profiling.generic_forward", "component=[net]"]
    with subprocess.Popen(start, env=environment(), stderr=subprocess.PIPE, text=True, cwd=ROOT) as run:
        for line in run.stderr:
            if line.rpartition("|")[2].strip() == imported:
                run.send_signal(signal.SIGINT)
                break
        rest = [line for line in run.stderr if not line.startswith("import time:")]
    assert run.returncode == 130
    assert rest == ["interrupted\n"]
