"""The process that performs one task: it reads the task from a file and sends events through a pipe, as JSON lines.

    python -m profiling.run.worker TASK_FILE EVENT_FD

Its standard input is a pipe that the parent holds open. When the parent dies, even by SIGKILL, the pipe closes and this
process exits at once, which frees its GPU memory.
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


def main() -> None:
    """Perform the task of the command line."""
    task_file, descriptor = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)  # a compile worker that outlives this process must not keep it open
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with os.fdopen(int(descriptor), "w", buffering=1) as pipe:

        def emit(event: Mapping[str, Any]) -> None:
            pipe.write(json.dumps(event) + "\n")

        perform(json.loads(Path(task_file).read_text()), emit)


def perform(task: Mapping[str, Any], emit: Emit) -> None:
    """Perform `task`: {"probe": [job, …]} or {"cell": job}, where a job is its JSON text."""
    if "probe" in task:
        jobs = tuple(Job.from_json(text) for text in task["probe"])
        try:
            emit({"event": "probe", **probe(jobs, lambda phase: emit({"event": "phase", "phase": phase}))})
        except InputError as error:
            emit({"event": "bad_input", "message": str(error)})
        return
    job = Job.from_json(task["cell"])
    set_globals(job)
    partial_of(job.procedure, job.target)(job=job, emit=emit).run()


def set_globals(job: Job) -> None:
    """Set threads, TF32 and the current device, which hold for the whole process."""
    settings = job.settings
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.tf32
    device = torch.device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _exit_with_parent() -> None:
    os.read(0, 1)  # blocks until the parent's end closes; a buffered read would hold a lock that the exit needs
    os._exit(1)


if __name__ == "__main__":
    main()
