"""Runs a command in a process forked from one that has imported torch and the compiler, which saves seconds a run.

Like a process from scratch it has its own arguments, folder, environment, output and exit code. Its cells are forks of
a second warm process, which stands in for the fork server that a run starts. It cannot test what depends on imports:
their order, and variables that torch reads when it is imported (TORCH_TRACE for example).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory

import parsed_once

from profiling.run import child, fork_server
from profiling.run.fork_server import ForkServer

#: Importing the compiler counts the GPUs, after which no fork could use them.
HAS_GPU = Path("/dev/nvidiactl").exists()
_CONTEXT = multiprocessing.get_context("forkserver")
#: Imported before the fork; packages that are not installed are ignored.
_PRELOADED = (
    *("profiling.cli.app", "profiling.run.worker", "profiling.run.forward", "profiling.realtime.cell"),
    *("profiling.report.render", "jinja2", "torch._inductor.config", "profiling.run.probe"),
    *("profiling.run.runner", "profiling.metrics.latency", "profiling.metrics.memory", "profiling.realtime.recovery"),
    *("profiling.realtime.summary", "scipy.optimize", "rich.progress"),
    *(() if HAS_GPU else ("profiling.variants.inductor", "warmed_up")),
)
_CONTEXT.set_forkserver_preload(list(_PRELOADED))


class WarmRun:
    """A command that runs, with the methods of `subprocess.Popen` that tests need; its output is read at its end."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self._command, self._folder = list(command), TemporaryDirectory(prefix="warm-")
        self._files = [Path(self._folder.name) / name for name in ("out", "err")]
        self._process = _CONTEXT.Process(
            target=_become, args=(self._command[2:], cwd, dict(env), *self._files, parsed_once.parsed_here())
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process of the command alone."""
        os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end, kill it at the timeout, and return what it wrote to standard output and error."""
        try:
            self._process.join(timeout)
            if self._process.exitcode is None:
                raise TimeoutExpired(self._command, timeout or 0.0)
        finally:
            self._process.kill()
        with self._folder:
            out, err = (file.read_text() for file in self._files)
        return out, err


def run_warm(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> CompletedProcess[str]:
    """Run `command`, which is [python, "-m", module, *arguments], and return what `subprocess.run` would."""
    run = WarmRun(command, cwd=cwd, env=env)
    out, err = run.communicate()
    assert run.returncode is not None
    return CompletedProcess(list(command), run.returncode, out, err)


def _become(
    arguments: list[str], cwd: Path, env: dict[str, str], out: Path, err: Path, parsed: parsed_once.Parsed
) -> None:
    """Run `python -m MODULE …` in the forked process."""
    parsed_once.begin_with(parsed)
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    multiprocessing.set_start_method(None, force=True)  # as in a process from scratch
    gc.freeze()  # the garbage collector ignores what was imported before the fork
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [str(cwd), *(place for place in env["PYTHONPATH"].split(os.pathsep) if place)]
    if "isolation=none" not in arguments:
        _offer_a_server()
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _offer_a_server() -> None:
    """Fork a process now, before the run has changed anything in this one, and let its first fork server be that."""
    begin_fresh = ForkServer._launch
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _serve_once(theirs)
    theirs.close()
    # The warm process that becomes the fork server of a run.
    reap = lambda: (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), None)  # noqa: E731
    servers = [child.Child(pid, os.pidfd_open(pid), reap)]

    def launch(self: ForkServer) -> socket.socket:
        if not servers:
            return begin_fresh(self)
        server = servers.pop()
        channel, channel_of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.callback(channel.close)
        with channel_of_server, ours:
            socket.send_fds(ours, [b"begin"], [channel_of_server.fileno()])
        self._stack.enter_context(child.guarded(server))
        return channel

    ForkServer._launch = launch  # pyright: ignore[reportAttributeAccessIssue] - of this process only


def _serve_once(control: socket.socket) -> None:
    """Wait for the channel of a fork server, and be it; it does not return."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    request, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
    control.close()
    if not request:
        os._exit(0)
    from profiling.run.worker import work_and_exit

    work_and_exit(*fork_server._serve(socket.socket(fileno=descriptors[0])))
