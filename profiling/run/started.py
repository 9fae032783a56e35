"""A process that starts as an application does: python -m profiling.run.started ORDER_FILE BEGAN.

It imports, builds, prepares and makes one call, and writes the seconds of each phase into the file named in the order.
BEGAN is the time at which its parent started it, on the clock of time.perf_counter, which all processes share.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from profiling.components.build import set_process_state
from profiling.components.instantiate import partial_of
from profiling.run.checkouts import Checkout
from profiling.run.job import Job
from profiling.run.starts import Order


@contextmanager
def _limited(order: Order) -> Iterator[None]:
    """End the process where the block takes longer than the order allows, with its stacks in the order's file.

    The timer is a thread of C that takes no lock of Python, which a compiler may hold.
    """
    if order.prepare_timeout is None:
        yield
        return
    with Path(order.overdue).open("w") as stacks:
        faulthandler.dump_traceback_later(order.prepare_timeout, exit=True, file=stacks)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Start as the order file on the command line says."""
    order = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order)
    job = Job.from_json(order.job)
    if order.checkout is not None:
        Checkout(**order.checkout).enter()
    set_process_state(job.settings)
    cell = partial_of(job.procedure, job.target)(job=job, emit=lambda event: None)
    began = float(sys.argv[2])
    with torch.inference_mode(False), torch.enable_grad():
        artifacts = None if order.load is None else Path(order.load).read_bytes()
        start = cell.start(began, artifacts, lambda: _limited(order))
    # A package compiled ahead of time is itself the file that an application takes along.
    if order.save is not None and start.graphs and "load package" not in start.phases:
        saved = torch.compiler.save_cache_artifacts()
        if saved is not None:
            Path(order.save).write_bytes(saved[0])
    Path(order.result).write_text(json.dumps(msgspec.to_builtins(start)))


if __name__ == "__main__":
    main()
