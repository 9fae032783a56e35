"""The two things a process of a run does: look at the machine (probe), and run a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from profiling.core.config import partial_of
from profiling.core.job import Job
from profiling.core.probe import probe
from profiling.errors import InputError

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
