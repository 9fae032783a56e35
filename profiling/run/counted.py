"""The process whose kernels ncu measures: python -m profiling.run.counted JOB_FILE.

It builds and prepares the job's cell, and calls each step once inside a range of the CUDA profiler. It sends nothing:
the counters are in ncu's own output.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from profiling.components.build import set_process_state
from profiling.components.instantiate import partial_of
from profiling.run.job import Job


def main() -> None:
    """Call the steps of the job of the command line."""
    job = Job.from_json(Path(sys.argv[1]).read_text())
    set_process_state(job.settings)
    cell = partial_of(job.procedure, job.target)(job=job, emit=lambda event: None)
    with torch.inference_mode(False), torch.enable_grad():
        cell.call_for_counters()


if __name__ == "__main__":
    main()
