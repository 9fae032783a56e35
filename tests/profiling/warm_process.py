"""Runs a command in a process forked from one that has imported torch and Hydra, which saves seconds a run.

Like a process from scratch it has its own arguments, folder, environment, output and exit code. It cannot test what
depends on imports: their order, and variables that torch reads when it is imported (TORCH_TRACE for example).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

_CONTEXT = multiprocessing.get_context("forkserver")
#: Imported before the fork; packages that are not installed are ignored.
_PRELOADED = (
    *("profiling.cli.app", "profiling.run.worker", "profiling.run.forward", "profiling.realtime.cell"),
    *("profiling.report.render", "jinja2"),
)
_CONTEXT.set_forkserver_preload(list(_PRELOADED))


def run_warm(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> CompletedProcess[str]:
    """Run `command`, which is [python, "-m", module, *arguments], and return what `subprocess.run` would."""
    with TemporaryDirectory(prefix="warm-") as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = _CONTEXT.Process(target=_become, args=(list(command[2:]), cwd, dict(env), out, err))
        process.start()
        try:
            process.join()
        finally:
            process.kill()  # if the test timed out
        assert process.exitcode is not None
        return CompletedProcess(list(command), process.exitcode, out.read_text(), err.read_text())


def _become(arguments: list[str], cwd: Path, env: dict[str, str], out: Path, err: Path) -> None:
    """Run `python -m MODULE …` in the forked process."""
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    multiprocessing.set_start_method(None, force=True)  # as in a process from scratch
    gc.freeze()  # the garbage collector ignores what was imported before the fork
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [str(cwd), *(place for place in env["PYTHONPATH"].split(os.pathsep) if place)]
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
