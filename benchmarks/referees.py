"""Compare the times of this tool with those of others, for the same callables: python benchmarks/referees.py

On a CPU (one thread): torch.utils.benchmark.Timer and pyperf (extra dev). On a GPU: Timer; Triton's do_bench, which
clears the L2 cache before each call, against our cold samples, and without clearing against our hot ones;
do_bench_cudagraph against a captured call; and the time of kernels in a profiler trace. Expected: each within 2% of
its counterpart.

What differs by design: do_bench keeps a queue in front of the device, and do_bench_cudagraph many calls in one graph.
This tool waits for each call, as a loop does that shows every frame, so its times include the 10 to 20 us that an
idle device needs to start its first kernel; the callables take milliseconds, so that this does not matter. Timer
waits once a block, so it is compared with our back-to-back calls. Each row is measured in turns, theirs and ours; all
turns go to stderr.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch.utils.benchmark import Timer

from profiling.graphs import CudaGraphed
from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.sampling import SamplingLimits, collect
from profiling.results.stats import median_interval
from profiling.trace.device_work import device_work

Call = Callable[[], object]
Measure = Callable[[], float]  # -> ms of a call
#: Many short turns: a shared host can change its speed by half within seconds, and both sides of a turn see the same.
TURNS, TOLERANCE = 31, 0.02
#: Budget of a measurement in ms, equal for both sides: after a longer one, a device at its power limit clocks lower.
WARM_UP_MS, MEASURE_MS = 30, 100


def callables(device: str) -> dict[str, Call]:
    """Return calls bound by arithmetic, by memory and by launches; each writes to memory of its own.

    On a GPU each takes milliseconds, so that the start of an idle device does not matter.
    """
    cuda = device == "cuda"
    rows, side, length, count = (16384, 8192, 2**30, 4000) if cuda else (512, 512, 2**23, 50)
    dtype = torch.bfloat16 if cuda else torch.float32
    left, right = (torch.randn(lines, side, device=device, dtype=dtype) for lines in (rows, side))
    product = torch.empty_like(left)
    source = torch.randn(length, device=device, dtype=torch.float64)
    target = torch.empty_like(source)
    small = torch.randn(16, device=device)

    def chain() -> None:
        for _ in range(count):
            small.neg_()

    return {
        f"product {rows} × {side} × {side}": lambda: torch.mm(left, right, out=product),
        f"copy {source.nbytes // 2**20} MiB": lambda: target.copy_(source),
        f"chain of {count} small operators": chain,
    }


@dataclass(frozen=True)
class Row:
    """Times of a callable in ms, (theirs, ours) for each turn.

    The verdict is about the median ratio of the turns with its 95% interval: both sides of a turn are neighbours in
    time. An interval that crosses the tolerance decides nothing.
    """

    call: str
    referee: str
    turns: tuple[tuple[float, float], ...]

    def cells(self) -> tuple[str, ...]:
        theirs, ours = (statistics.median(column) for column in zip(*self.turns, strict=True))
        ratios = [ours / theirs for theirs, ours in self.turns]
        low, high = median_interval(ratios)
        inside = max(1 - low, high - 1) <= TOLERANCE
        outside = low > 1 + TOLERANCE or high < 1 - TOLERANCE
        verdict = "yes" if inside else "no" if outside else "cannot tell"
        ratio = f"{statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}]"
        return self.call, self.referee, f"{theirs:.5g}", f"{ours:.5g}", ratio, verdict

    def to_json(self) -> dict[str, Any]:
        return {"call": self.call, "referee": self.referee, "turns_theirs_ours_ms": self.turns}


def in_turns(call: str, referee: str, theirs: Measure, ours: Measure, count: int = TURNS) -> Row:
    """Measure both sides `count` times; the order alternates, so that a drift over the turns favours neither."""
    turns = []
    for turn in range(count):
        if turn % 2:
            ours_ms = ours()
            turns.append((theirs(), ours_ms))
        else:
            turns.append((theirs(), ours()))
    return Row(call, referee, tuple(turns))


# This tool's side.


def our_median(call: Call, device: torch.device, *, cold: bool = False) -> float:
    """Return our median of a call in ms: of the device clock where there is one, else of the wall clock."""
    clock, flush = clock_of(device), CacheFlush(device) if cold else None

    def sample():
        if flush is not None:
            flush()
        return clock.sample(call)

    limits = SamplingLimits(interval=1e-6, max_seconds=MEASURE_MS / 1e3)  # an interval never reached: the whole budget
    sample()  # one warm-up call is enough, the turn before ran the same
    samples, _ = collect(sample, limits, time.perf_counter, lambda: None)
    return statistics.median([each.wall if each.device is None else each.device for each in samples])


def back_to_back(call: Call, device: torch.device) -> float:
    """Return our median of a call in ms, waiting for the device once in five calls."""

    def five_calls() -> None:
        for _ in range(5):
            call()

    call()
    clock, blocks = clock_of(device), []
    while sum(blocks) < MEASURE_MS:
        blocks.append(clock.sample(five_calls).wall)
    return statistics.median(blocks) / 5


# The referees.


def timer(call: Call) -> float:
    """Return Timer's median of blocks of five calls in ms; `blocked_autorange` would exceed the budget."""
    referee, blocks = Timer("call()", globals={"call": call}), []
    while 5 * sum(blocks) < MEASURE_MS:
        blocks.append(1e3 * referee.timeit(5).median)
    return statistics.median(blocks)


def pyperf_median(number: int) -> float:
    """Return pyperf's median in ms of the callable with this number, from processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pyperf.json"
        command = [sys.executable, __file__, "--pyperf", str(number), "-q", "-o", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        content = json.loads(path.read_text())
    return 1e3 * statistics.median(v for run in content["benchmarks"][0]["runs"] for v in run.get("values", ()))


def pyperf_process() -> None:
    """Measure one callable under pyperf, which starts this file again for its worker process."""
    import pyperf

    def pass_number(command: list[str], options: argparse.Namespace) -> None:
        command.extend(("--pyperf", str(options.pyperf)))

    torch.set_num_threads(1)
    runner = pyperf.Runner(processes=1, values=5, warmups=2, add_cmdline_args=pass_number)
    runner.argparser.add_argument("--pyperf", type=int, help="number of the callable, from 0")
    name, call = list(callables("cpu").items())[runner.parse_args().pyperf]
    with torch.inference_mode():
        runner.bench_func(name, call)


def do_bench_median(call: Call) -> float:
    """Return do_bench's median in ms; it overwrites a buffer larger than the L2 cache before each call."""
    from triton.testing import do_bench  # pyright: ignore[reportMissingImports]

    return do_bench(call, warmup=WARM_UP_MS, rep=MEASURE_MS, return_mode="median")


def do_bench_hot_median(call: Call) -> float:
    """Return do_bench's median in ms with the L2 cache left as it is."""
    with _without_cache_clearing():
        return do_bench_median(call)


@contextmanager
def _without_cache_clearing() -> Iterator[None]:
    from triton.runtime import driver  # pyright: ignore[reportMissingImports]

    active = driver.active
    clear_cache = active.clear_cache
    active.clear_cache = lambda _buffer: None
    try:
        yield
    finally:
        active.clear_cache = clear_cache


def do_bench_cudagraph_median(call: Call, *, graph_ms: int) -> float:
    """Return do_bench_cudagraph's median in ms; it replays a graph that lasts about `graph_ms` ten times.

    The chain gets a graph that holds one call, as ours does: three chains of 4000 nodes in one graph took 7% longer.
    """
    from triton.testing import do_bench_cudagraph  # pyright: ignore[reportMissingImports]

    return do_bench_cudagraph(call, rep=graph_ms, return_mode="median")


def kernels_ms(call: Call) -> float:
    """Return how long the kernels, copies and fills of a call run, in ms, from a profiler trace.

    Raises:
        SystemExit: the profiler recorded nothing on the device.

    """
    work = device_work(call, calls=30)
    if work is None:
        raise SystemExit("error: the profiler recorded no kernel: another profiler uses CUPTI, or it is forbidden here")
    return work.busy_ms


def on_cpu() -> Iterator[Row]:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    for number, (name, call) in enumerate(callables("cpu").items()):
        ours = partial(our_median, call, device)
        yield in_turns(name, "torch Timer", partial(timer, call), ours)
        yield in_turns(name, "pyperf", partial(pyperf_median, number), ours, 9)  # each turn starts processes


def on_cuda() -> Iterator[Row]:
    device = torch.device("cuda")
    for name, call in callables("cuda").items():
        graphed = CudaGraphed(call, alias_outputs=True)  # a copy of the output would be timed too
        graphed()
        ours = partial(our_median, call, device)
        yield in_turns(name, "torch Timer, back to back", partial(timer, call), partial(back_to_back, call, device))
        yield in_turns(name, "do_bench, cold", partial(do_bench_median, call), partial(ours, cold=True))
        yield in_turns(name, "do_bench, hot", partial(do_bench_hot_median, call), ours)
        chain = "chain" in name
        captured = partial(do_bench_cudagraph_median, call, graph_ms=1 if chain else MEASURE_MS // 10)
        yield in_turns(name, "do_bench_cudagraph", captured, partial(our_median, graphed, device))
        if chain:  # the gaps between kernels of 1 to 2 us are as long as the kernels, and only our times include them
            continue
        # Back-to-back calls, so that the device rests on neither side; a trace takes seconds, so fewer turns.
        for kind, run in (("eager", call), ("captured", graphed)):
            yield in_turns(name, f"kernels, {kind}", partial(kernels_ms, run), partial(back_to_back, run, device), 7)


def main() -> None:
    rows = []
    with torch.inference_mode():
        for row in on_cuda() if torch.cuda.is_available() else on_cpu():
            rows.append(row)
            print(json.dumps(row.to_json()), file=sys.stderr, flush=True)  # an interrupted run keeps its rows
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, 1 thread"
    print(f"referees on {name}, torch {torch.__version__}\n")
    headers = (
        "callable",
        "referee",
        "theirs, ms",
        "ours, ms",
        "ours / theirs, 95% interval",
        f"within {TOLERANCE:.0%}",
    )
    print(tabulate([row.cells() for row in rows], headers, "github", disable_numparse=True))


if __name__ == "__main__":
    pyperf_process() if "--pyperf" in sys.argv else main()
