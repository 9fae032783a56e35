"""A machine that other programs use too."""

import os
import subprocess
import sys

import pytest
import torch
from table import promise

import profiling
from profiling.machine.run_queue import RunQueueMonitor
from profiling.metrics.latency import Latency
from profiling.metrics.parity import Parity
from profiling.results.verdicts import answer_on, taken
from profiling.variants.recipe import Recipe

#: Computes all the time, on the core of the process that started it, and ends with that process.
RIVAL = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


@pytest.fixture
def rival():
    """Another process that wants the core on which this thread runs."""
    if RunQueueMonitor().lost_share() is None:
        pytest.skip("this system does not count waits")
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})
    process = subprocess.Popen([sys.executable, "-c", RIVAL])
    yield process
    process.kill()
    process.wait()
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


@promise("busy")
def test_a_rival_on_the_same_core_is_measured_and_nothing_is_claimed(rival):
    limits = Latency(min_iterations=10, max_seconds=0.8, warmup_max_seconds=0.5)
    metrics = {"parity": Parity(), "latency": limits}
    variants = {"baseline": Recipe(), "again": Recipe()}
    module, inputs = torch.nn.Linear(1024, 1024), {"input": torch.randn(128, 1024)}  # longer than a time slice
    result = profiling.profile(module, inputs, variants, metrics=metrics, ceilings="off", quiet=True)
    base, again = result.records
    others = taken(base)
    assert others is not None
    assert others.share > 0.2, "a fair scheduler gives each a half, and less where tests run beside"
    assert answer_on(again, (base, again)) == "undecided"
    assert {window.cpu_lost_share is not None for window in base.turns.windows} == {True}
    assert "% of the CPU went to other processes" in str(result)
