"""Performs tasks (probe the device, run a cell), each in a process of its own or in this one, and relays their events.

`Isolated` starts a process for each task (`session.py`), fresh or forked from one that has imported torch, so
that a crash or a hang costs one cell. Processes that outlive their task, or this process, are killed or named.
`InProcess` is for debuggers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from greenlet import greenlet
from msgspec.structs import replace

from profiling.errors import working_directory
from profiling.machine.run_queue import RUN_PROCESS
from profiling.metrics.sampling import Turn
from profiling.results.record import encode_sections
from profiling.run.checkouts import Checkout
from profiling.run.child import Orphans
from profiling.run.compile_caches import TORCH_TRACE, Cache, CompileCaches, compiled_ahead
from profiling.run.events import Emit, Event, Phase, Sections, Started, Waiting, turns_by
from profiling.run.fork_server import ForkServer
from profiling.run.hardware_counters import measure_counters
from profiling.run.session import (
    PREPARE,
    Limits,
    NotMeasuredError,
    Pending,
    ProcessEnd,
    Session,
    most_processes,
    open_session,
    side_by_side,
)
from profiling.run.starts import measure_starts
from profiling.run.task import Cell, Counters, Probe, Start, Task

#: The variable that makes inductor start no workers before it has kernels to compile.
COMPILE_WORKERS = "TORCH_WARM_POOL"
#: Silences torch's profiler, which prints two lines a session: a variable, and a log level above all others.
_LOGS_LESS = ("KINETO_LOG_LEVEL", "6")
#: Timeout in seconds for probing the device, which takes a few: a driver that hangs must not hang the run.
PROBE_SECONDS = 300.0


class InProcess:
    """Performs tasks in this process: a crash ends the whole run, and a debugger can follow each task.

    A cell runs in a greenlet, which is suspended where the cell waits for its turn.
    """

    def __init__(self, run: Path, *, trace: bool, caches: CompileCaches | None = None) -> None:
        self.caches = caches or CompileCaches("shared")
        if trace:  # torch reads it when it is imported
            os.environ.setdefault(TORCH_TRACE, str(run / "torch_trace"))

    def session(self, task: Task, name: str, on_event: Emit, *, turns: bool = True) -> Session:
        """Perform the task in this process, and pass its events to `on_event`.

        Without `turns` a cell is not asked to wait for any.
        """
        del name  # its output is that of this process
        cell = greenlet(self._perform)
        try:
            state = cell.switch(task, on_event, cell if turns else None)
            while not cell.dead:
                turn = yield state
                state = cell.switch(turn)
        finally:
            if not cell.dead:
                with contextlib.suppress(KeyboardInterrupt):
                    cell.throw(KeyboardInterrupt("its turns have ended"))
        return ProcessEnd()

    def _perform(self, task: Task, on_event: Emit, cell: greenlet | None) -> None:
        from profiling.run.worker import perform  # imports torch, which the other executor does not need

        with self.caches.lease(task) as cache, ProcessState() as state:
            os.environ.update(cache.variables)
            os.environ.setdefault(*_LOGS_LESS)  # the terminal is that of the caller
            turns = None if cell is None else turns_by(partial(_hand_over, cell, state))
            variant = "" if isinstance(task, Probe) else task.job.variant
            perform(task, lambda event: on_event(cache.describe(event, variant)), turns)


def _hand_over(cell: greenlet, state: ProcessState, waiting: Waiting) -> Turn:
    """Suspend a cell of this process, which is meanwhile in `state` instead of that of the cell; return its turn."""
    import torch

    collecting, run = gc.isenabled(), cell.parent
    assert run is not None
    with ProcessState(), torch.inference_mode(False):
        state.restore()
        gc.enable()  # timing disables it
        turn = run.switch(waiting)
    if not collecting:
        gc.disable()
    return turn


class Isolated:
    """Performs each task in a process of its own, with its output in `cells/<name>.log`.

    With starts=true process starts are measured before the cell; with counters=true ncu measures its kernels after it,
    in one more process, from the same compile cache. With `checkout`, the user's code is imported from there.
    `orphans` is shared by executors that run at the same time. With `server`, the process is its fork, unless the cell
    writes a compile log, whose folder torch reads when it is imported.
    """

    def __init__(
        self,
        run: Path,
        limits: Limits,
        caches: CompileCaches | None = None,
        orphans: Orphans | None = None,
        checkout: Checkout | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self.limits = limits  # of a cell; a change applies to cells that start later
        self._run, self.caches = run, caches or CompileCaches("shared")
        self._orphans, self._checkout, self._server = orphans or Orphans(), checkout, server

    def session(self, task: Task, name: str, on_event: Emit, *, turns: bool = True) -> Session:
        """Perform the task in a process of its own, with its own compile log if the run is traced.

        The timeout of a cell counts the seconds in which it is active, and not those in which it waits for its turn.
        """
        task = replace(task, checkout=self._checkout)
        jobs = task.jobs if isinstance(task, Probe) else (task.job,)
        settings, imports = jobs[0].settings, tuple(dict.fromkeys(module for job in jobs for module in job.imports))
        limits = Limits(PROBE_SECONDS) if isinstance(task, Probe) else self.limits
        sections: dict[str, Any] = {}
        phases, log = set[str](), self._run / "torch_trace" / name
        try:
            files = self._run / "cells" / name
            files.parent.mkdir(exist_ok=True)
            server = None if settings.trace else self._server
            with self.caches.lease(task) as cache:
                notes: tuple[str, ...] = ()
                if isinstance(task, Cell) and settings.starts:
                    on_event(Phase("starts"))
                    section, notes = measure_starts(task, cache, self._run, self.limits)
                    if section is not None:
                        on_event(Sections(encode_sections(starts=section)))
                if isinstance(task, Cell) and server is not None:
                    yield from self._compile_parts(task, cache, server)

                def relay(event: Event) -> None:
                    event = cache.describe(event, jobs[0].variant)
                    if isinstance(event, Sections):
                        sections.update(event.sections)
                    elif isinstance(event, Phase):
                        phases.add(event.phase)
                    on_event(event)

                environment = {**os.environ, **cache.variables, RUN_PROCESS: str(os.getpid())}
                if settings.trace:
                    environment[TORCH_TRACE] = str(log)
                if isinstance(task, Cell) and task.loads:
                    environment[COMPILE_WORKERS] = "0"
                try:
                    process_end = yield from open_session(
                        *(task, files, limits, relay, environment),
                        turns=turns,
                        server=server,
                        modules=() if isinstance(task, Probe) else imports,
                        ahead=imports if isinstance(task, Probe) else (),
                    )
                finally:
                    if PREPARE in phases and "prepare" not in sections:
                        cache.empty()  # the next cell of that code must not find half of a compile
                    notes += copied_log(log)
                notes += self._orphans.notes()
                if settings.counters and isinstance(task, Cell) and process_end.death is None:
                    notes += self._counted(task, sections, environment, relay)
        except OSError as error:  # a name that is too long for a file, for example
            return ProcessEnd(f"could not be run: {error.strerror or error}")
        return dataclasses.replace(process_end, notes=(*process_end.notes, *notes))

    def _compile_parts(self, task: Cell, cache: Cache, server: ForkServer) -> Generator[Pending, Any, None]:
        """Compile what the parts of a cell compile, side by side, into the cache from which the cell will load it.

        It costs nothing but time where it fails: the cell then compiles by itself, and its row says what is wrong.
        """
        parts = compiled_ahead(task.job)
        if not parts or self.caches.has_code(task.job):
            return
        variables = {**os.environ, **cache.variables, RUN_PROCESS: str(os.getpid())}
        folder, done = self._run / "cells", list[Started]()
        sessions = [
            open_session(
                *(Start(job=each, checkout=self._checkout, began=time.perf_counter()), folder / f"{each.name}.ahead"),
                *(self.limits, lambda event: done.append(event) if isinstance(event, Started) else None),
                variables,
                server=server,
                modules=each.imports,
            )
            for each in parts
        ]
        try:
            for first in range(0, len(sessions), most_processes()):
                yield from side_by_side(sessions[first : first + most_processes()])
            if len(done) == len(parts):
                self.caches.add_code(task.job)
            if len(done) == len(parts) and cache.is_fillable:
                cache.fill([each.start for each in done], f"the stages of {task.job.variant}, one by one")
        finally:
            for session in sessions:
                session.close()

    def _counted(
        self, cell: Cell, sections: Mapping[str, Any], variables: dict[str, str], on_event: Emit
    ) -> tuple[str, ...]:
        """Measure hardware counters of a cell that has ended, and send them; return a note where there are none."""
        on_event(Phase("counters"))
        variables.pop(TORCH_TRACE, None)  # a second compile log would be read as that of the cell
        try:
            task = Counters(job=cell.job, checkout=cell.checkout)
            section = measure_counters(self._run, task, sections, variables)
        except (NotMeasuredError, OSError, ValueError) as error:
            return (f"no hardware counters: {error}",)
        on_event(Sections(encode_sections(hardware_counters=section)))
        return ()


#: What performs the tasks of a run.
Executor = InProcess | Isolated


def copied_log(folder: Path) -> tuple[str, ...]:
    """Copy the compile log of a cell, if it has one, to the user's TORCH_TRACE; return a note if that fails."""
    users = os.environ.get(TORCH_TRACE)
    if users and folder.is_dir():  # torch creates it when it compiles
        try:
            shutil.copytree(folder, users, dirs_exist_ok=True)
        except OSError as error:  # copytree collects those of its files: [(source, target, reason), …]
            reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
            return (f"the compile log could not be copied to TORCH_TRACE={users} ({reason}). It stays in {folder}.",)
    return ()


class ProcessState:
    """What a cell may change for the whole process and what the next cell or this run needs, as it is now.

    That is the working directory, environment variables, standard streams, signal handlers, and the timer of SIGALRM.
    As a context manager it is restored at the end of the block.
    """

    def __init__(self) -> None:
        self._folder, self._variables = working_directory(), dict(os.environ)
        self._streams = [(name, getattr(sys, name)) for name in ("stdin", "stdout", "stderr")]
        self._descriptors = [_duplicate(number) for number in range(len(self._streams))]
        self._timer, self._began = signal.getitimer(signal.ITIMER_REAL), time.monotonic()
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore(self) -> None:
        """Make it so again."""
        signal.setitimer(signal.ITIMER_REAL, *self._timer_now())
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        for number, ((name, stream), descriptor) in enumerate(zip(self._streams, self._descriptors, strict=True)):
            if descriptor is not None:
                os.dup2(descriptor, number)
            if stream is not None and stream.closed:
                stream = open(number, stream.mode, encoding=stream.encoding, errors=stream.errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        os.chdir(self._folder)
        os.environ.clear()
        os.environ.update(self._variables)

    def _timer_now(self) -> tuple[float, float]:
        """Return (seconds left, interval) as the timer would have them now, had the cell not touched it."""
        left, interval = self._timer
        left -= time.monotonic() - self._began
        if left <= 0:  # it has fired, or was off
            left = interval - (-left) % interval if interval else 0.0
        return left, interval

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        for descriptor in self._descriptors:  # copies of the standard streams
            if descriptor is not None:
                os.close(descriptor)


def _duplicate(descriptor: int) -> int | None:
    with contextlib.suppress(OSError):  # it is closed
        return os.dup(descriptor)
    return None
