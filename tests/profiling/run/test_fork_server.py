"""Processes that the fork server starts: their output, variables, folder and end, and what happens when it dies."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from make_job import make_job

from profiling.run.cell import Cell
from profiling.run.child import kill
from profiling.run.fork_server import ForkServer, server_for_run

#: A module in place of the worker, whose tasks are lines of Python; forks fail while there is a file `full` beside it.
#: Its torch knows whether CUDA was initialised, which counting the GPUs does.
WORKER = """
import errno, os, pathlib, sys, types
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.initialised = False
gpus, server = 2, os.getpid()
def count_gpus():
    torch.initialised = True
    return 2 if os.getpid() == server else gpus
def use_driver():
    global gpus
    gpus = 0  # what a fork of a process that has initialised the driver finds
torch._C = types.SimpleNamespace(_cuda_getDeviceCount=count_gpus)
torch.cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: torch.initialised)
def work_and_exit(task, events, turns):
    exec(open(task).read(), dict(events=events, turns=turns))
def fork(fork=os.fork):
    if pathlib.Path(__file__).with_name("full").exists():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = fork
"""

SLEEP = "import time; time.sleep(60)"
#: Modules that a cell may want beside those of every cell.
MODULES = {
    "planted_compiler": "import os, torch; IMPORTED_BY = os.getpid(); GPUS = torch._C._cuda_getDeviceCount()",
    "planted_finder": "import os; FOUND_BY = []\ndef find(): FOUND_BY.append(os.getpid())",
    "planted_cuda": "import torch; torch.initialised = True",
    "planted_driver": "import planted_worker; planted_worker.use_driver()",
    "planted_error": "1 / 0",
    "planted_slow": "import os; IMPORTED_BY = os.getpid(); open(__file__ + '.by', 'w').write(str(IMPORTED_BY))",
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that imports `planted_worker` instead of torch, and the processes that it counts as its own."""
    package = tmp_path / "modules" / "planted_worker.py"
    package.parent.mkdir()
    package.write_text(WORKER)
    for name, text in MODULES.items():
        package.with_name(f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr("profiling.run.fork_server.WORKER", "planted_worker")
    server = ForkServer(())
    yield server
    server.close()


@pytest.fixture
def start(server, tmp_path):
    """Return a function that starts a task; its output is in the file `log`."""

    def run(script, environment=None, modules=(), ahead=()):
        task = Path(tempfile.mkdtemp(dir=tmp_path)) / "task.py"
        task.write_text(script)
        with (tmp_path / "log").open("wb") as log:
            read_end, write_end = os.pipe()
            try:
                return server.start(task, log.fileno(), (write_end,), environment or dict(os.environ), modules, ahead)
            finally:
                os.close(read_end)
                os.close(write_end)

    return run


def ended(process):
    return process.wait(20.0)


def test_the_exit_code_is_that_of_a_fresh_process(start):
    scripts = {
        "pass": 0,
        "raise SystemExit(7)": 7,
        "import os; os._exit(9)": 9,
        "1 / 0": 1,
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": -signal.SIGSEGV,
    }
    assert {script: ended(start(script)) for script in scripts} == scripts


FACTS = """
import json, os, sys, threading
import atexit
facts = dict(
    cwd=os.getcwd(), new=os.environ.get("NEW"), gone=os.environ.get("GONE"), group=os.getpgid(0), session=os.getsid(0),
    pid=os.getpid(), stdin=sys.stdin.read(), threads=threading.active_count(), open=sorted(os.listdir("/proc/self/fd")),
)
print(json.dumps(facts))
atexit.register(print, "the end", file=sys.stderr)
"""


def test_a_process_has_its_own_folder_variables_output_and_session(start, tmp_path, monkeypatch):
    monkeypatch.setenv("GONE", "1")
    ended(start("pass"))  # the server has begun with this environment
    monkeypatch.chdir(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "GONE"} | {"NEW": "2"}
    process = start(FACTS, environment)
    assert ended(process) == 0
    first, last = (tmp_path / "log").read_text().splitlines()
    facts = json.loads(first)
    assert (facts["cwd"], facts["new"], facts["gone"], facts["stdin"]) == (str(tmp_path), "2", None, "")
    assert facts["group"] == facts["session"] == facts["pid"] == process.pid
    assert facts["threads"] == 1
    assert len(facts["open"]) == 5, "standard streams, the channel, and the folder that is listed"
    assert last == "the end"


def test_processes_run_beside_each_other_and_where_none_can_be_forked_a_fresh_one_is_asked_for(start, tmp_path):
    slow, full = start(SLEEP), tmp_path / "modules" / "full"
    full.touch()
    assert start("pass") is None
    full.unlink()
    assert ended(start("pass")) == 0
    with pytest.raises(subprocess.TimeoutExpired):
        slow.wait(0.1)
    assert kill(slow) == -signal.SIGKILL, "it was not lost with the server"


def test_where_the_server_was_killed_its_processes_go_on_and_a_fresh_one_is_asked_for(server, start):
    process = start(SLEEP)
    (pid,) = _servers()
    os.kill(pid, signal.SIGKILL)
    assert start("pass") is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    assert kill(process) == -signal.SIGKILL


def test_modules_of_all_processes_but_the_first_are_imported_once_beside_that(server, start, tmp_path):
    server.later = ("planted_compiler",)
    script = "import os, psutil, sys; module = sys.modules.get('planted_compiler')\n"
    script += "print(module and module.IMPORTED_BY == psutil.Process(os.getppid()).ppid(), module and module.GPUS)"
    outputs = []
    for _ in range(3):
        assert ended(start(script)) == 0
        outputs.append((tmp_path / "log").read_text().split())
    assert outputs == [["None", "None"], ["True", "2"], ["True", "2"]]
    for _ in range(2):
        assert (
            ended(start("import sys; print('planted_compiler' in sys.modules)", modules=("planted_finder:find",))) == 0
        )
        assert (tmp_path / "log").read_text() == "True\n"


def test_modules_of_all_processes_are_also_those_of_cells_that_want_more(server, start, tmp_path):
    server.later = ("planted_compiler",)
    for is_there in (False, True):
        script = "import sys; print('planted_compiler' in sys.modules)"
        assert ended(start(script, modules=("planted_finder:find",))) == 0
        assert (tmp_path / "log").read_text() == f"{is_there}\n", "the first process, the probe, needs them not"


def test_modules_ahead_are_imported_while_the_first_process_runs_without_them(start, tmp_path):
    """The probe starts before the compiler is imported; a cell that starts later has it."""
    probe = start(
        "import sys, time; print('planted_slow' in sys.modules, flush=True); time.sleep(5)", ahead=("planted_slow",)
    )
    deadline, imported, log = time.monotonic() + 4.0, tmp_path / "modules" / "planted_slow.py.by", tmp_path / "log"
    while not (imported.exists() and log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert imported.exists(), "before anything else is asked for"
    assert log.read_text() == "False\n"
    cell = start("import sys; print(sys.modules['planted_slow'].IMPORTED_BY)", modules=("planted_slow",))
    assert ended(cell) == 0
    assert (tmp_path / "log").read_text().strip() == imported.read_text(), "once"
    probe.wait(20.0)


def test_checking_the_options_of_a_compiler_does_not_import_it():
    check = "import sys; from profiling.variants.inductor import Inductor; Inductor(mode='default', regional=True)\n"
    check += "assert not {'torch._dynamo', 'torch._inductor'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)


def test_a_compiler_is_imported_before_a_cell_prepares_also_one_of_the_users_own(monkeypatch):
    start = (
        "import sys, torch; from profiling.variants.inductor import Inductor; from profiling.variants.recipe import "
    )
    start += "Recipe\nclass Mine(Inductor): pass\nRecipe(compiler=Mine()).start_workers(torch.device('cpu'))\n"
    start += "assert 'torch._inductor.compile_fx' in sys.modules"
    subprocess.run([sys.executable, "-c", start], check=True, timeout=120)

    imported = []
    monkeypatch.setattr("profiling.run.cell.import_module", imported.append)
    stage = make_job("compile", compiler={"_target_": "profiling.variants.inductor.Inductor"})
    loop = replace(make_job("mixed"), parts=(stage,))
    Cell.variant(cast(Cell, SimpleNamespace(job=loop)))
    assert "torch._inductor.compile_fx" in imported, "that of a stage"


def test_collections_of_a_process_skip_what_was_imported_but_not_those_of_a_loop(start, tmp_path):
    script = "import gc; from profiling.machine.gc_policy import gc_policy\nprint(gc.get_freeze_count() > 0)\n"
    script += "with gc_policy('off'): print(gc.get_freeze_count() > 0)\n"
    script += "with gc_policy('on'): print(gc.get_freeze_count() > 0)"
    for modules in ((), ("planted_compiler",)):
        assert ended(start(script, modules=modules)) == 0
        assert (tmp_path / "log").read_text().split() == ["True", "True", "False"]


def test_a_server_that_cannot_import_starts_nothing_after_the_first_process(server, start):
    server.later = ("no.such.module",)
    assert ended(start("pass")) == 0
    assert start("pass") is None


def test_the_end_of_the_server_ends_its_processes(server, start):
    processes = [start(SLEEP, modules=modules) for modules in ((), ("planted_compiler",))]
    server.close()
    assert [ended(each) for each in processes] == [-signal.SIGKILL] * 2


def test_only_processes_that_want_modules_have_them(start, tmp_path):
    """They are imported once, and counting the GPUs during that initialises CUDA neither there nor in the process."""
    script = (
        "import os, psutil, sys, threading, torch\n"
        "module = sys.modules.get('planted_compiler')\n"
        "print(psutil.Process(os.getppid()).ppid(), module and module.GPUS)\n"
        "print(torch.initialised, torch._C._cuda_getDeviceCount.__name__)\n"
        "print(len(os.listdir('/proc/self/fd')))\n"
    )
    outputs = []
    for modules in ((), ("planted_compiler",), (), ("planted_compiler",)):
        assert ended(start(script, modules=modules)) == 0
        outputs.append((tmp_path / "log").read_text().split())
    without, with_modules = outputs[0], outputs[1]
    assert without[1:] == ["None", "False", "count_gpus", "5"]
    assert with_modules[1:] == ["2", "False", "count_gpus", "5"]
    assert without[0] != with_modules[0]
    assert outputs[2:] == outputs[:2], "from the same two servers"


def test_a_module_is_imported_once_and_finds_out_once_for_all_processes_whatever_else_is_wanted(start, tmp_path):
    script = "import os, psutil, sys\n"
    script += "print(sys.modules['planted_compiler'].IMPORTED_BY, psutil.Process(os.getppid()).ppid())\n"
    script += "finder = sys.modules.get('planted_finder')\nprint(*(finder.FOUND_BY if finder else ()))"
    outputs = []
    for more in ((), ("planted_finder:find",), ("planted_finder:find",)):
        assert ended(start(script, modules=("planted_compiler", *more))) == 0
        outputs.append([line.split() for line in (tmp_path / "log").read_text().splitlines()])
    ((imported_by, _), _), ((again_by, server), found_by), again = outputs
    assert imported_by == again_by
    assert found_by == [server], "before the fork"
    assert again == outputs[1]


def test_where_modules_cannot_be_imported_or_initialise_cuda_a_fresh_process_is_asked_for(start):
    for module in ("planted_cuda", "planted_driver", "planted_error", "no_such_module"):
        assert [start("pass", modules=[module]) for _ in range(2)] == [None, None], module
        assert ended(start("pass", modules=["planted_compiler"])) == 0, module
    assert ended(start("pass")) == 0


#: Imports the compiler as the server does, and forks a process that may use CUDA and threads.
IMPORTS = """
import os, sys
import profiling.run.worker, profiling.run.forward, profiling.realtime.cell, torch
from profiling.run import fork_server
assert not torch.cuda.is_initialized()
assert not {"torch._dynamo", "torch._inductor"} & set(sys.modules)
tasks = len(os.listdir("/proc/self/task"))
fork_server._import(["torch._inductor.compile_fx", "profiling.variants.inductor"])
assert "torch._inductor.compile_fx" in sys.modules
assert not torch.cuda.is_initialized()
assert len(os.listdir("/proc/self/task")) <= tasks, "more threads"  # a fork ends those of OpenBLAS
assert not open(f"/proc/self/task/{os.getpid()}/children").read().split(), "a pool of workers"
assert not list(os.scandir(os.environ["TORCHINDUCTOR_CACHE_DIR"])), "something is read from or kept in a cache"
pid = os.fork()
if pid == 0:
    bad = torch.cuda._is_in_bad_fork()
    if torch.cuda.is_available():
        torch.ones(1, device="cuda").add_(1).item()
    os._exit(bad)
assert os.waitpid(pid, 0)[1] == 0
def opened():  # a compiled step that is never closed, which must not end the program with a traceback
    with sys.modules["profiling.variants.inductor"].COMPILED_STEPS:
        yield
step = opened()
next(step)
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_importing_the_compiler_starts_no_threads_processes_or_cuda(tmp_path, device):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCH_WARM_POOL": "1"}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run([sys.executable, "-c", IMPORTS], timeout=120, env=environment, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_a_server_that_was_started_early_is_that_of_the_next_run(server, start):
    """It imports what that run wants later, and ends with the block; a run after it has a server of its own."""
    with server.started_early():
        assert server_for_run(["planted_finder"]) is server
        assert ended(start("pass")) == 0
        found = start('import os, sys; sys.modules["planted_finder"].FOUND_BY; print(os.getppid())', modules=())
        assert ended(found) == 0, "the module was imported after the first process"
        (pid,) = _servers()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    with ForkServer().started_early():
        pass
    assert server_for_run([]) is not server


def _servers():
    alive = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)  # of other tests
    return [child.pid for child in alive if "fork_server" in " ".join(child.cmdline())]
