"""The process of a cell: reads its task from a file, tells its events through a pipe.

    python -m profiling.run.worker TASK_FILE EVENT_FD

Its standard input is a pipe that the parent holds open: when the parent dies, however it dies, the pipe closes and this
process ends instead of living on with the device's memory.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from profiling.components.instantiate import partial_of
from profiling.errors import InputError
from profiling.run.job import Job
from profiling.run.probe import probe

Emit = Callable[[Mapping[str, Any]], None]


def perform(task: Mapping[str, Any], emit: Emit) -> None:
    """Perform `task`: {"probe": [job, …]} or {"cell": job}; jobs as their JSON texts."""
    if "probe" in task:
        try:
            emit({"event": "probe", **probe(tuple(Job.from_json(text) for text in task["probe"]))})
        except InputError as error:
            emit({"event": "bad_input", "message": str(error)})
        return
    job = Job.from_json(task["cell"])
    set_globals(job)
    partial_of(job.procedure, job.target)(job=job, emit=emit).run()


def set_globals(job: Job) -> None:
    """Set what holds for the whole process: threads, TF32, the current device."""
    settings = job.settings
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.tf32
    device = torch.device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def main() -> None:
    """Perform the task of the command line."""
    task, descriptor = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)  # a compile worker that outlives us must not hold the pipe open
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with os.fdopen(int(descriptor), "w", buffering=1) as pipe:

        def emit(event: Any) -> None:
            pipe.write(json.dumps(event) + "\n")

        perform(json.loads(Path(task).read_text()), emit)


def _die_with_parent() -> None:
    os.read(0, 1)  # blocks until the other end closes; a buffered read would hold a lock that the exit needs
    os._exit(1)


if __name__ == "__main__":
    main()
