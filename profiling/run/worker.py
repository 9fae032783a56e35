"""The process that performs one task: it reads the task from a file and sends events to its parent.

python -m profiling.run.worker TASK_FILE EVENT_DESCRIPTOR PARENT [TURN_DESCRIPTOR]
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from profiling.run.process_groups import end_with

if __name__ == "__main__":
    end_with(int(sys.argv[3]))  # before the imports, which take seconds

import msgspec
import torch

from profiling.components.build import set_process_state, use_deterministic_algorithms
from profiling.components.instantiate import is_out_of_memory, partial_of
from profiling.errors import InputError, MissingExtraError, SkippedError, reason_of
from profiling.machine.memory import held_before
from profiling.metrics.sampling import Ready, StoppedBy, TakeTurns, Turn, WindowSamples
from profiling.run.cell import print_traceback
from profiling.run.checkouts import Checkout
from profiling.run.events import BadInput, Emit, End, sender, turns_from
from profiling.run.job import Job
from profiling.run.probe import check_modules, probe


def work(task_file: str, events: int, turns: int | None) -> None:
    """Perform the task in a file; `events` and `turns` are the descriptors of its events and of its turns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (events, turns):
        if each is not None:
            os.set_inheritable(each, False)  # a compile worker that outlives this process must not keep it open
    task, emit = json.loads(Path(task_file).read_text()), sender(events)
    try:
        perform(task, emit, None if turns is None else turns_from(turns, emit))
    except KeyboardInterrupt as error:  # from the cell's own code: Ctrl-C in a terminal reaches only the parent
        _fail(task, error, emit)


def perform(task: Mapping[str, Any], emit: Emit, take_turns: TakeTurns | None = None) -> None:
    """Perform `task`: {"probe": [job, …], "refusable": [variant, …]} or {"cell": job}, where a job is its JSON text.

    With a "checkout" the user's code is imported from there.

    With `take_turns` the cell is timed in turns with others, if its procedure allows that. In one process it may
    begin inside another cell, and must not be built under that cell's inference mode.

    Whatever the code of a cell raises is the task's result, with a traceback on standard error.

    Raises:
        KeyboardInterrupt: the user stopped the run; there is no result.

    """
    try:
        checkout = Checkout(**task["checkout"]) if "checkout" in task else None
        if checkout is not None:
            checkout.enter()
        if "probe" in task:
            jobs = tuple(Job.from_json(text) for text in task["probe"])
            if checkout is not None:
                check_modules(jobs, checkout)
            emit(probe(jobs, emit, task.get("refusable", ())))
        else:
            job = Job.from_json(task["cell"])
            set_process_state(job.settings)
            use_deterministic_algorithms(False)  # an earlier cell of this process may have asked for them
            turns = None if take_turns is None else _with_own_memory(take_turns, torch.device(job.settings.device))
            cell = partial_of(job.procedure, job.target)(job=job, emit=emit, take_turns=turns)
            with torch.inference_mode(False), torch.enable_grad():
                end = cell.run()
            if checkout is not None:
                checkout.check_imports()
            emit(end)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        _fail(task, error, emit)


def _with_own_memory(take_turns: TakeTurns, device: torch.device) -> TakeTurns:
    """Return `take_turns`, told the memory that the cell uses beside what its process holds now."""
    before = held_before(device)

    def take(ready: Ready, window: Callable[[Turn], WindowSamples]) -> StoppedBy | None:
        used = {kind: max(0, peak - before.get(kind, 0)) for kind, peak in ready.used.items()}
        return take_turns(msgspec.structs.replace(ready, used=used), window)

    return take


def _fail(task: Mapping[str, Any], error: BaseException, emit: Emit) -> None:
    """Send the result of a task that raised `error`."""
    if "cell" in task and isinstance(error, SkippedError):
        emit(End("skipped", str(error)))
        return
    if "probe" in task and isinstance(error, InputError | MissingExtraError):
        emit(BadInput(str(error)))
        return
    print_traceback(error)
    reason = reason_of(error)
    if "probe" in task:
        emit(BadInput(f"probing the device failed: {reason}. The traceback is in cells/probe.log of the run."))
    else:
        bad_input, out_of_memory = isinstance(error, InputError), is_out_of_memory(error)
        emit(End("failed", reason, bad_input=bad_input, out_of_memory=out_of_memory))


if __name__ == "__main__":
    _task_file, _events, _, *_turns = sys.argv[1:]
    work(_task_file, int(_events), int(_turns[0]) if _turns else None)
