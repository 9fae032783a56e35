"""The process that performs one task: it reads the task from a file and sends events to its parent.

python -m profiling.run.worker TASK_FILE [EVENT_DESCRIPTOR [TURN_DESCRIPTOR]]

Without descriptors it sends no events, or takes no turns.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from profiling.components.build import set_process_state, use_deterministic_algorithms
from profiling.components.instantiate import is_out_of_memory, partial_of
from profiling.errors import InputError, MissingExtraError, SkippedError, print_traceback, reason_of
from profiling.machine.memory import held_before
from profiling.metrics.sampling import Ready, StoppedBy, TakeTurns, Turn, WindowSamples
from profiling.results import measured
from profiling.run.events import Emit, End, Started, sender, turns_from
from profiling.run.session import STACKS
from profiling.run.task import Cell, Counters, Probe, Start, Task, read_task


def work_and_exit(task_file: str, events: int, turns: int | None = None) -> None:
    """Perform the task in a file, and end this process; `events` and `turns` are the descriptors of its channels."""
    work(task_file, events, turns)
    _exit()


def work(task_file: str, events: int, turns: int | None = None) -> None:
    """Perform the task in a file; an interrupt is its result, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(STACKS)
    for each in (events, turns):
        if each is not None:
            os.set_inheritable(each, False)  # a compile worker that outlives this process must not keep it open
    task, emit = read_task(Path(task_file)), sender(events)
    try:
        perform(task, emit, None if turns is None else turns_from(turns, emit))
    except KeyboardInterrupt as error:  # from the cell's own code: Ctrl-C in a terminal reaches only the parent
        _fail(task, error, emit)


def _exit() -> None:
    """End this process when its threads have ended and what modules registered has run, and tear nothing else down.

    An eager process that used an H100 ends in 0.15 s then, not in 1.2 s. The compiler's workers are killed first: what
    inductor registers waited 5.8 s for them.
    """
    compiler: Any = sys.modules.get("torch._inductor.async_compile")
    with contextlib.suppress(Exception):  # inductor's own business: it then waits for them
        for pool in compiler._pool_set if compiler is not None else ():
            pool.process.kill()
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - as the interpreter does
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # the cell's code has closed them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def perform(task: Task, emit: Emit, take_turns: TakeTurns | None = None) -> None:
    """Perform a task, whose result is an event. Whatever the code of a cell raises is its result, too.

    With `take_turns` the cell is timed in turns with others, if its procedure allows that. In one process it may
    begin inside another cell, and must not be built under that cell's inference mode.

    Raises:
        KeyboardInterrupt: the user stopped the run; there is no result.

    """
    try:
        if task.checkout is not None:
            task.checkout.enter()
        if isinstance(task, Probe):
            from profiling.run.probe import probe  # other tasks do without its imports

            emit(probe(task.jobs, emit, task.checkout))
            return
        set_process_state(task.job.settings)
        with torch.inference_mode(False), torch.enable_grad():
            cell: Any = partial_of(task.job.procedure, task.job.target)(job=task.job, emit=emit)
            if isinstance(task, Start):
                emit(Started(_start(task, cell)))
            elif isinstance(task, Counters):
                cell.call_for_counters()
            else:
                use_deterministic_algorithms(False)  # an earlier cell of this process may have asked for them
                if take_turns is not None:
                    cell.take_turns = _with_own_memory(take_turns, torch.device(task.job.settings.device))
                end = cell.run()
                if task.checkout is not None:
                    task.checkout.check_imports()
                emit(end)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        _fail(task, error, emit)


def _start(task: Start, cell: Any) -> measured.Start:
    """Start as an application does; return the seconds of each phase."""
    start = cell.start(task.began, None if task.load is None else Path(task.load).read_bytes())
    # A package compiled ahead of time is itself the file that an application takes along.
    if task.save is not None and start.graphs and "load package" not in start.phases:
        saved = torch.compiler.save_cache_artifacts()
        if saved is not None:
            Path(task.save).write_bytes(saved[0])
    return start


def _with_own_memory(take_turns: TakeTurns, device: torch.device) -> TakeTurns:
    """Return `take_turns`, told the memory that the cell uses beside what its process holds now."""
    before = held_before(device)

    def take(ready: Ready, window: Callable[[Turn], WindowSamples]) -> StoppedBy | None:
        used = {kind: max(0, peak - before.get(kind, 0)) for kind, peak in ready.used.items()}
        return take_turns(msgspec.structs.replace(ready, used=used), window)

    return take


def _fail(task: Task, error: BaseException, emit: Emit) -> None:
    if isinstance(task, Cell) and isinstance(error, SkippedError):
        emit(End("skipped", str(error)))
        return
    if isinstance(task, Probe) and isinstance(error, InputError | MissingExtraError):
        emit(End("failed", str(error), bad_input=True))
        return
    raised = error.__cause__ if isinstance(error, InputError) else error  # an InputError's message says what it adds
    if raised is not None:
        print_traceback(raised)
    reason = reason_of(error)
    if isinstance(task, Probe):
        reason = f"probing the device failed: {reason}. The traceback is in cells/probe.log of the run."
    emit(End("failed", reason, bad_input=isinstance(error, InputError), out_of_memory=is_out_of_memory(error)))


if __name__ == "__main__":
    _task_file, *_descriptors = sys.argv[1:]
    if _descriptors:
        work_and_exit(_task_file, *map(int, _descriptors))
    else:
        perform(read_task(Path(_task_file)), lambda event: None)
