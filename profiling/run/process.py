"""Performs tasks (probe the device, run a cell), each in a process of its own or in this one, and relays their events.

`Isolated` starts a process for each task, fresh or forked from one that has imported torch, so that a crash or a
hang costs one cell. Processes that outlive their task, or this process, are killed or named. `InProcess` is for
debuggers.

A cell that is timed in turns has a `Session`, a generator that yields whenever the cell waits for its turn. Several
cells can so be alive while one is active.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, Protocol

from profiling.metrics.sampling import Ready, StoppedBy, TakeTurns, Turn, WindowSamples
from profiling.results.record import encode_sections
from profiling.run.checkouts import Checkout
from profiling.run.compile_caches import CompileCaches, Lease, lease
from profiling.run.events import Emit, Event, EventReader, Phase, Sections, Waiting, write_turn
from profiling.run.fork_server import ForkedProcess, ForkServer
from profiling.run.hardware_counters import CounterPass, NoCountersError
from profiling.run.process_groups import AnyProcess, Orphans, guarded_group, kill_group, run_guarded
from profiling.run.starts import NoStartError, StartPass

#: The variable that makes torch write its compile log into a folder.
TORCH_TRACE = "TORCH_TRACE"
#: The phase of a cell to which `prepare_timeout` applies.
PREPARE = "prepare"
#: Timeout in seconds for probing the device, which takes a few: a driver that hangs must not hang the run.
PROBE_SECONDS = 300.0
#: Seconds that a process may take to exit after it has sent its result (CUDA teardown, worker pools).
EXIT_SECONDS = 30.0
#: Longest wait of a selector, whose API takes no more than some weeks, in seconds.
LONGEST_WAIT = 3600.0
#: Most bytes that are read once the process has ended: the largest capacity of a pipe.
LAST_BYTES = 2**20
LAST_LINES = 3


@dataclass(frozen=True)
class Performed:
    """How the process of a task ended.

    `death` says in words how it died; None: it ended normally, after its result. `notes` are remarks for the record.
    """

    death: str | None = None
    lost_events: int = 0
    notes: tuple[str, ...] = ()
    killed: bool = False  # by SIGKILL from outside, as the kernel does where the host runs out of memory


#: A task in progress: it yields when it waits for its turn, is sent that turn, and returns how its process ended.
#: Closing it kills the process.
Session = Generator[Waiting, Turn, Performed]


class Executor(Protocol):
    """Performs the tasks that `profiling.run.worker.perform` lists."""

    def perform(self, task: Mapping[str, Any], name: str, on_event: Emit) -> Performed:
        """Perform `task` and pass its events to `on_event`; return how its process ended."""
        ...


class InProcess:
    """Performs tasks in this process: a crash ends the whole run, and a debugger can follow each task."""

    def __init__(self, run: Path, *, trace: bool, caches: CompileCaches | None = None) -> None:
        self._caches = caches
        if trace:  # torch reads it when it is imported
            os.environ.setdefault(TORCH_TRACE, str(run / "torch_trace"))

    def perform(
        self, task: Mapping[str, Any], name: str, on_event: Emit, take_turns: TakeTurns | None = None
    ) -> Performed:
        """Perform the task in this process; with `take_turns` that is called in the middle of the timing."""
        from profiling.run.worker import perform  # imports torch, which the other executor does not need

        with lease(self._caches, task) as cache, restored_process() as state:
            os.environ.update(cache.variables)
            turns = None if take_turns is None else _handed_over(take_turns, state)
            perform(task, lambda event: on_event(cache.describe(event)), turns)
        return Performed()


class Isolated:
    """Performs each task in a fresh process, with its output in `cells/<name>.log`.

    With `starts`, process starts are measured before the cell. With `counters`, ncu measures the kernels of each
    cell in one more process, from the same compile cache. Without `caches`, inductor's default cache is used. With
    `checkout`, the user's code is imported from there. `orphans` is shared by executors that run at the same time.
    With `server`, the process is its fork, unless the cell writes a compile log, whose folder torch reads when it is
    imported.
    """

    def __init__(
        self,
        run: Path,
        *,
        trace: bool,
        timeout: float,
        caches: CompileCaches | None = None,
        starts: bool = False,
        prepare_timeout: float | None = None,
        counters: bool = False,
        orphans: Orphans | None = None,
        checkout: Checkout | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self._server, self._starts = server, starts
        self._run, self._trace, self._caches = run, trace, caches
        self.timeout = timeout  # seconds for which a cell may be active; of cells that begin later, if it is changed
        self._prepare_timeout = prepare_timeout
        self._counters = CounterPass(run) if counters else None
        self._orphans, self._checkout = orphans or Orphans(), checkout

    def perform(self, task: Mapping[str, Any], name: str, on_event: Emit) -> Performed:
        """Perform the task in a fresh process; it takes no turns."""
        with closing(self.session(task, name, on_event, turns=False)) as session:
            try:
                next(session)
            except StopIteration as end:
                return end.value
        return Performed("asked for a turn, although it takes none")

    def session(self, task: Mapping[str, Any], name: str, on_event: Emit, *, turns: bool = True) -> Session:
        """Perform the task in a fresh process, with a separate compile log if the run is traced.

        The timeout of a cell counts the seconds in which it is active, and not those in which it waits for its turn.
        """
        timeout = self.timeout if "cell" in task else PROBE_SECONDS
        if self._checkout is not None:
            task = {**task, "checkout": asdict(self._checkout)}
        users_folder, cells_folder = os.environ.get(TORCH_TRACE), self._run / "torch_trace" / name
        trace = {TORCH_TRACE: str(cells_folder)} if self._trace and users_folder is None else {}
        logs: set[Path] = set()
        sections: dict[str, Any] = {}

        try:
            files = self._run / "cells" / name
            files.parent.mkdir(exist_ok=True)
            with lease(self._caches, task) as cache, self._orphans.adopted():
                before_cell = self._measure_starts(task, cache, on_event)

                def relay(event: Event) -> None:
                    event = cache.describe(event)
                    if isinstance(event, Sections):
                        sections.update(event.sections)
                    on_event(event)

                environment = {**os.environ, **trace, **cache.variables}
                worker = run_isolated(
                    task,
                    files,
                    timeout,
                    relay,
                    environment,
                    self._orphans.own,
                    turns=turns,
                    server=None if trace else self._server,
                    prepare_timeout=self._prepare_timeout,
                )
                with closing(worker):
                    turn: Turn | None = None
                    while True:
                        before = _compile_logs(users_folder)
                        try:
                            state = next(worker) if turn is None else worker.send(turn)
                        except StopIteration as end:
                            performed = end.value
                            break
                        finally:  # other cells write their logs while this one waits
                            logs |= _compile_logs(users_folder) - before
                        turn = yield state
                notes = (*before_cell, *self._orphans.notes())
                if self._counters is not None and "cell" in task and performed.death is None:
                    notes += self._counted(self._counters, task["cell"], sections, environment, relay)
            if self._trace and users_folder is not None:  # torch wrote there; the run gets a copy
                cells_folder.mkdir(parents=True, exist_ok=True)
                for log in logs:
                    shutil.copy(log, cells_folder)
        except OSError as error:  # a name that is too long for a file, for example
            return Performed(f"could not be run: {error.strerror or error}")
        return replace(performed, notes=(*performed.notes, *notes))

    def _measure_starts(self, task: Mapping[str, Any], cache: Lease, on_event: Emit) -> tuple[str, ...]:
        """Measure the starts of the cell in fresh processes and send them; return a note where a start failed."""
        if not self._starts or "cell" not in task:
            return ()
        on_event(Phase("starts"))

        def execute(command: Sequence[str], log: Path, timeout: float, variables: Mapping[str, str]) -> int | None:
            return run_guarded(command, log, timeout, variables, self._orphans.own)

        try:
            section, notes = StartPass(self._run, self.timeout, execute).measure(task, cache)
        except NoStartError as error:
            return (f"no starts: {error}",)
        on_event(Sections(encode_sections(starts=section)))
        return notes

    def _counted(
        self, counters: CounterPass, job: str, sections: Mapping[str, Any], variables: dict[str, str], on_event: Emit
    ) -> tuple[str, ...]:
        """Measure hardware counters of a cell that has ended, and send them; return a note where there are none."""
        on_event(Phase("counters"))
        variables.pop(TORCH_TRACE, None)  # a second compile log would be read as that of the cell

        def execute(command: Sequence[str], log: Path, timeout: float) -> int | None:
            return run_guarded(command, log, timeout, variables, self._orphans.own)

        try:
            section = counters.measure(job, sections, variables, execute)
        except NoCountersError as error:
            return (f"no hardware counters: {error}",)
        on_event(Sections(encode_sections(hardware_counters=section)))
        return ()


class ProcessState:
    """What a cell may change for the whole process and what the next cell or this run needs, as it is now.

    That is the working directory, environment variables, standard streams, signal handlers, and the timer of SIGALRM.
    """

    def __init__(self) -> None:
        self._folder, self._variables = Path.cwd(), dict(os.environ)
        self._streams = [(name, getattr(sys, name)) for name in ("stdin", "stdout", "stderr")]
        self._descriptors = [_duplicate(number) for number in range(len(self._streams))]
        self._timer = signal.getitimer(signal.ITIMER_REAL)
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore(self) -> None:
        """Make it so again."""
        signal.setitimer(signal.ITIMER_REAL, *self._timer)
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

    def close(self) -> None:
        """Close the copies of the standard streams."""
        for descriptor in self._descriptors:
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def restored_process() -> Iterator[ProcessState]:
    """Restore on exit the state of the process that it has now, and yield it."""
    state = ProcessState()
    try:
        yield state
    finally:
        state.restore()
        state.close()


def _handed_over(take_turns: TakeTurns, state: ProcessState) -> TakeTurns:
    """Return `take_turns`, called with the process in `state` instead of that of the cell in whose middle it is."""

    def take(ready: Ready, window: Callable[[Turn], WindowSamples]) -> StoppedBy | None:
        with restored_process():
            state.restore()
            return take_turns(ready, window)

    return take


def _duplicate(descriptor: int) -> int | None:
    with contextlib.suppress(OSError):  # it is closed
        return os.dup(descriptor)
    return None


def _compile_logs(folder: str | None) -> set[Path]:
    return set() if folder is None else set(Path(folder).glob("*.log"))


@dataclass(frozen=True)
class Ending:
    """How a process ended: `exit_code` is negative for a signal, as in `subprocess`.

    It was killed at the `timeout` or the `prepare_timeout`, or because it `lingered` after its result, or `exited`
    by itself.
    """

    kind: Literal["exited", "timeout", "prepare_timeout", "lingered"]
    exit_code: int

    def describe(self, log: Path) -> str:
        """Return one line with the timeout, exit code or signal, and the last lines of the log."""
        if self.kind == "timeout":
            ending = "hung: killed at the cell_timeout"
        elif self.kind == "prepare_timeout":
            ending = "preparing the variant took longer than the prepare_timeout: killed"
        elif self.kind == "lingered":
            ending = f"did not exit within {EXIT_SECONDS:g} s and was killed"
        elif self.exit_code < 0:
            ending = f"killed by {_signal_name(-self.exit_code)}"
        elif self.exit_code == 0:
            ending = "exited with code 0 before its result arrived"
        else:
            ending = f"exited with code {self.exit_code}"
        lines = last_lines(log)
        return f"{ending}; last lines of {log.parent.name}/{log.name}: {' | '.join(lines)}" if lines else ending


def run_isolated(
    task: Mapping[str, Any],
    files: Path,
    timeout: float,
    on_event: Emit,
    environment: Mapping[str, str],
    own: set[int],
    *,
    turns: bool,
    server: ForkServer | None = None,
    prepare_timeout: float | None = None,
) -> Session:
    """Run `task` in a process with the environment `environment`, with its output in `<files>.log`.

    Without a `server` that forks it, the process is fresh. `timeout` and `prepare_timeout` (for the phase in which the
    variant is prepared) are in seconds. The process leads a process group, which is killed as a whole when the process
    has ended, at a timeout, when the session is closed, and when this process is interrupted or dies, whatever kills
    it. While it lives, `own` holds the ids of the processes that were started here.

    Raises:
        OSError: a file of the cell, or the process, cannot be made.

    """
    task_file = files.with_name(f"{files.name}.json")
    reader = EventReader()
    try:
        task_file.write_text(json.dumps(task))
        with log_of(files).open("wb") as output:
            ending = yield from _run_worker(
                task_file, output, (timeout, prepare_timeout), reader, on_event, environment, own, turns, server
            )
    finally:
        task_file.unlink(missing_ok=True)
    done = ending == Ending("exited", 0) and reader.has_result
    killed = ending == Ending("exited", -signal.SIGKILL)
    return Performed(None if done else ending.describe(log_of(files)), reader.lost, reader.notes, killed)


def _run_worker(
    task_file: Path,
    output: Any,
    timeouts: tuple[float, float | None],
    reader: EventReader,
    on_event: Emit,
    environment: Mapping[str, str],
    own: set[int],
    turns: bool,
    server: ForkServer | None,
) -> Generator[Waiting, Turn, Ending]:
    (read_end, write_end), (turn_read, turn_write) = os.pipe(), os.pipe()
    with os.fdopen(read_end, "rb") as pipe, os.fdopen(turn_write, "wb"):
        descriptors = (write_end, turn_read) if turns else (write_end,)
        try:
            process = None
            if server is not None:
                process = server.start(task_file, output.fileno(), descriptors, environment)
            if process is None:
                process = _started(task_file, output, descriptors, environment)
        finally:
            os.close(write_end)
            os.close(turn_read)
        with guarded_group(process.pid, own):
            try:
                for event in _events(pipe, process, timeouts, reader):
                    if isinstance(event, Waiting):
                        turn = yield event
                        with contextlib.suppress(OSError):  # it has died while it waited, which the next event tells
                            write_turn(turn_write, turn)
                    else:
                        on_event(event)
                return Ending("exited", process.wait())
            except subprocess.TimeoutExpired as error:
                kind = "prepare_timeout" if error.cmd == PREPARE else "timeout"
                return Ending("lingered" if reader.has_result else kind, kill_group(process))
            finally:
                kill_group(process)


def _started(
    task_file: Path, output: Any, descriptors: Sequence[int], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a fresh process for the task."""
    events, *turns = map(str, descriptors)
    return subprocess.Popen(
        [sys.executable, "-m", "profiling.run.worker", str(task_file), events, str(os.getpid()), *turns],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        start_new_session=True,
        env=environment,
    )


def log_of(files: Path) -> Path:
    """Return the file with the output of the process."""
    return files.with_name(f"{files.name}.log")


def last_lines(log: Path) -> list[str]:
    """Return the last three lines of `log` that are not blank, at most 200 characters each; none if unreadable."""
    with contextlib.suppress(OSError):
        text = log.read_bytes()[-8192:].decode(errors="replace")
        return [" ".join(line.split())[:200] for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return []


def _events(
    pipe: Any, process: AnyProcess, timeouts: tuple[float, float | None], reader: EventReader
) -> Iterator[Event]:
    """Yield events until the process has ended, whoever else holds the pipe open.

    After its result a process has `EXIT_SECONDS` to exit.

    Raises:
        subprocess.TimeoutExpired: the process has not ended after the first of `timeouts` in seconds, not counting
            waits for its turn; or its phase `PREPARE` has not ended after the second.

    """
    os.set_blocking(pipe.fileno(), False)
    timeout, prepare_timeout = timeouts
    deadline, has_result = time.monotonic() + timeout, False
    prepared_by = inf  # the end of the time for the phase that is under way

    def yielded(chunk: bytes) -> Iterator[Event]:
        nonlocal deadline, prepared_by
        for event in reader.feed(chunk):
            since = time.monotonic()
            if isinstance(event, Phase):
                prepared_by = inf if prepare_timeout is None or event.phase != PREPARE else since + prepare_timeout
            yield event
            if isinstance(event, Waiting):
                deadline += time.monotonic() - since

    process_descriptor = os.dup(process.fileno()) if isinstance(process, ForkedProcess) else os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(process_descriptor, selectors.EVENT_READ)
            while True:
                left = min(deadline, prepared_by) - time.monotonic()
                if left <= 0:
                    late = PREPARE if prepared_by < deadline else "cell"
                    raise subprocess.TimeoutExpired(late, timeout)
                ready = [key.fileobj for key, _ in selector.select(min(left, LONGEST_WAIT))]
                if process_descriptor in ready:
                    break
                if ready:
                    chunk = _read(pipe.fileno())
                    yield from yielded(chunk or b"")
                    if chunk == b"":  # the cell's code has closed its end
                        selector.unregister(pipe)
                if reader.has_result and not has_result:
                    has_result, deadline = True, min(deadline, time.monotonic() + EXIT_SECONDS)
        rest = LAST_BYTES
        while rest > 0 and (chunk := _read(pipe.fileno())):
            yield from reader.feed(chunk)
            rest -= len(chunk)
        reader.close()
    finally:
        os.close(process_descriptor)


def _read(descriptor: int) -> bytes | None:
    """Return the bytes that wait in the pipe, b"" if it is closed, None if there are none at the moment."""
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return None


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
