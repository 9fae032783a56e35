"""Starts cells as forks of one process that has imported torch, which saves seconds for each.

python -m profiling.run.fork_server CHANNEL WORKER

A fork is like a fresh process after the same imports: no CUDA context, no compiled code, its own session, output,
working folder and environment. A variable that torch reads while it is imported (TORCH_TRACE) needs a fresh process.

A cell that compiles needs more imports, which take seconds, too, and on a CPU the compiler must know its vector
instructions, which takes longer. The first such cell makes the server fork a second server that has them, and so on;
cells that do not compile stay without them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from unittest import mock

from profiling.run.child import Child, started

#: What the server imports: its `work_and_exit` performs the task.
WORKER = "profiling.run.worker"
#: Longest request in bytes: two paths, the environment variables of the process, and names of modules.
_REQUEST_BYTES = 2**17
#: Seconds allowed for importing torch, for slow disks.
_START_SECONDS = 300.0
#: Exit code of a forked process that could not answer; answers are smaller.
_NO_ANSWER = 255


class ForkServer:
    """The server, started by the first request at the latest.

    It imports the worker. After its first fork it imports the modules `later`, too.
    """

    def __init__(self, later: Iterable[str] = ()) -> None:
        self.later = tuple(later)
        self._channel: socket.socket | None = None
        self._stack = contextlib.ExitStack()

    def start(
        self,
        task_file: Path,
        output: int,
        descriptors: Sequence[int],
        environment: Mapping[str, str],
        modules: Sequence[str] = (),
        ahead: Sequence[str] = (),
    ) -> Child | None:
        """Start a process that performs the task; None if the server cannot, and a fresh process is needed.

        `output` is a descriptor for standard output and error; `descriptors` are those of events and turns. `modules`
        are imported before the fork, in this order, beside those that the server has. The server imports those `ahead`
        after the fork, for later processes.
        """
        if self._channel is None:
            self._channel = self._launch()
        places = str(task_file.absolute()), str(Path.cwd())
        request = json.dumps([*places, dict(environment), [*modules], self.later]).encode()
        if len(request) > _REQUEST_BYTES:
            return None
        (status, theirs), pid = os.pipe(), b""
        with contextlib.suppress(OSError):  # it has died
            with os.fdopen(theirs, "wb"):
                socket.send_fds(self._channel, [request], [theirs, output, *descriptors])
            if select.select([status], [], [], _START_SECONDS)[0]:
                with open(status, "rb", buffering=0, closefd=False) as answers:  # the exit code follows the line
                    pid = answers.readline()
        if not pid:
            os.close(status)
            return None
        if ahead:
            with contextlib.suppress(OSError):  # it has died; the task runs without it
                self._channel.send(json.dumps([None, None, {}, [*ahead], self.later]).encode())

        def reap() -> tuple[int, int | None]:
            answer = os.read(status, 100).split() or (-signal.SIGKILL, 0)  # none: what waited for it has died, too
            return int(answer[0]), int(answer[1]) or None

        return Child(int(pid), status, reap)

    @contextlib.contextmanager
    def started_early(self) -> Iterator[Self]:
        """Start the server now, for a run that begins inside the block; it ends with the block."""
        self._channel = self._launch()
        _EARLY.append(self)
        try:
            yield self
        finally:
            _EARLY.clear()
            self.close()

    def _launch(self) -> socket.socket:
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.callback(channel.close)
        command = [sys.executable, "-m", __spec__.name, str(theirs.fileno()), WORKER]
        with theirs:  # a cell whose server cannot start is started afresh, and says why itself
            server = started(command, subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
            self._stack.enter_context(server)
        return channel

    def close(self) -> None:
        """End the server and the processes that it forked."""
        self._stack.close()
        self._channel = None


#: The server that was started early and that no run has taken yet.
_EARLY: list[ForkServer] = []


def server_for_run(later: Iterable[str]) -> ForkServer:
    """Return the server for a run, the one that was started early if there is one; `later` is what it imports later."""
    server = _EARLY.pop() if _EARLY else ForkServer()
    server.later = tuple(later)
    return server


def _serve(channel: socket.socket, imported: tuple[str, ...] = ()) -> tuple[str, int, int | None]:
    """Fork a process for each request; return there what `work_and_exit` of the worker takes. The server never returns.

    A second forked process waits for the first one and reports its end (`_fork_and_wait`). A request for more modules
    than `imported` is passed on to a server that is forked to import the next of them, so that each is imported once,
    whatever else is wanted with it. A request without a task asks for the import alone. What all processes but the
    first, the probe, need (`later`) is imported after the first fork, while the probe runs.
    """
    others: dict[tuple[str, ...], socket.socket] = {}

    def leave() -> None:
        """Close in a forked process what belongs to the server."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (channel, *others.values()):
            each.close()

    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 4)
        if not request:
            raise SystemExit
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what is forked here; `_import` does
        task_file, folder, environment, modules, later = json.loads(request)
        if tuple(modules) != imported:
            wanted = tuple(modules[: len(imported) + 1])
            if wanted not in others:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                pid = _forked()
                if pid == 0:
                    leave()
                    ours.close()
                    _close(*descriptors)
                    _import(wanted[-1:])
                    return _serve(theirs, wanted)
                theirs.close()
                if pid is not None:
                    others[wanted] = ours
            with contextlib.suppress(OSError, KeyError):  # there is none
                socket.send_fds(others[wanted], [request], descriptors)
        elif task_file is not None and _forked() == 0:
            leave()
            status, output, *rest = descriptors
            _fork_and_wait(status, output, *rest)
            os.setsid()
            for number in (1, 2):
                os.dup2(output, number)
            os.close(output)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            os.write(status, f"{os.getpid()}\n".encode())
            os.close(status)
            return task_file, rest[0], rest[1] if len(rest) > 1 else None
        _close(*descriptors)  # without an answer the caller starts a fresh process
        if missing := [each for each in later if each not in sys.modules]:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _import(missing)


def _fork_and_wait(status: int, *others: int) -> None:
    """Fork and return in the child. The parent waits, sends exit code and peak bytes of memory, and exits."""
    if (pid := _forked()) == 0:
        return
    _close(*others)  # which end with the forked process
    if pid is not None:
        _, ended, usage = os.wait4(pid, 0)
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(status, f"{os.waitstatus_to_exitcode(ended)} {1024 * usage.ru_maxrss}".encode())
    os._exit(0)


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)


def _import(modules: Iterable[str]) -> None:
    """Import modules, and call functions (`module:function`), without initialising CUDA: no fork could use it then.

    Importing inductor of torch 2.11 counts the GPUs, which initialises CUDA: a forked process counts them instead.

    Raises:
        SystemExit: a fork could not use CUDA.

    """
    torch: Any = sys.modules["torch"]
    counted = getattr(torch._C, "_cuda_getDeviceCount", None)
    if not (modules := tuple(modules)) or counted is None:  # None: a build without CUDA
        _ready(modules)
        return
    gpus = _answer_of_a_fork(counted)
    with mock.patch.object(torch._C, "_cuda_getDeviceCount", return_value=gpus):
        _ready(modules)
    # A module may have used the driver without torch: forks would find no GPU, or fail.
    if _answer_of_a_fork(lambda: torch.cuda._is_in_bad_fork() or counted() != gpus):
        raise SystemExit(f"CUDA is initialised by importing {', '.join(modules)}")


def _ready(modules: Iterable[str]) -> None:
    """Import modules and call functions, without garbage collection, which would be a seventh of the time."""
    gc.disable()
    for each in modules:
        module, _, function = each.partition(":")
        imported = import_module(module)
        if function:
            getattr(imported, function)()
    gc.collect()
    gc.freeze()  # collections of a cell need not look at what was imported: 0.2 s each, and copies of the memory
    gc.enable()


def _answer_of_a_fork(question: Callable[[], int]) -> int:
    """Return what `question` returns in a forked process.

    Raises:
        SystemExit: that process cannot be forked, or died.

    """
    pid = _forked()
    if pid == 0:
        answer = _NO_ANSWER
        with contextlib.suppress(BaseException):
            answer = int(question())
        os._exit(answer)
    if pid is None or (status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) not in range(_NO_ANSWER):
        raise SystemExit("a forked process did not answer")
    return status


def _forked() -> int | None:
    """Return what `os.fork` does; None where the system has no room for a process."""
    with contextlib.suppress(OSError), warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return os.fork()  # the warning is of threads of BLAS, which allows it
    return None


def main() -> None:
    """Import what cells need, then serve requests."""
    descriptor, worker = sys.argv[1:]
    _ready((worker,))  # it imports torch
    sys.modules[worker].work_and_exit(*_serve(socket.socket(fileno=int(descriptor))))


if __name__ == "__main__":
    main()
