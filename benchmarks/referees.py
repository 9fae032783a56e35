"""Compare the times of this tool with those of others, for the same callables: python benchmarks/referees.py

On a CPU (one thread): torch.utils.benchmark.Timer and pyperf (extra dev). On a GPU: Timer; Triton's do_bench, which
clears the L2 cache before each call, against our cold samples, and without clearing against our hot ones;
do_bench_cudagraph against a captured call; nvbench (package cuda-bench), which clears the cache too, against our cold
samples of an eager and of a captured call; and the time of kernels in a profiler trace. Bars on a GPU: within 1% of
Timer, do_bench and do_bench_cudagraph where the device sets the time, within 2% where launches do. It exits with 1
where one is missed.

Both sides of a row take turns as the variants of a run do (profiling/run/turns.py): short windows in a balanced order
until the ratio of neighbouring windows is known well enough. Only the windows of nvbench and pyperf are counted: the
first gives its numbers at the end of its process, the second starts processes of its own.

What differs by design: do_bench keeps a queue in front of the device, do_bench_cudagraph many calls in one graph, and
nvbench holds the device back until a call is launched. This tool waits for each call, as a loop does that shows every
frame, so its times include the 10 to 20 us that an idle device needs to start its first kernel; the callables take
milliseconds, so that this does not matter. Timer waits once a block, so it is compared with our back-to-back calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from profiling.errors import reason_of
from profiling.graphs import CudaGraphed
from profiling.machine.spreads import Spreads
from profiling.metrics.clocks import CacheFlush, CallClock
from profiling.metrics.sampling import LONGEST, SHORTEST, Ready, Turn, WindowSamples
from profiling.report.table import Column, Table, markdown
from profiling.results.judge import ONE_PROCESS, Cell, Pair, Windows, compare
from profiling.results.measured import Spread
from profiling.run.turns import Placement, take_turns
from profiling.trace.device_work import device_work

Call = Callable[[], object]
Measure = Callable[[float], float]  # seconds of a window -> ms of a call
#: Allowed difference where the device, and where launches set the time.
DEVICE_BOUND, LAUNCH_BOUND = 0.01, 0.02
#: At most for the turns of a row, in seconds, also where the host sets the time, whose speed varies more; at least and
#: at most so many windows of each side.
SECONDS, LAUNCH_SECONDS, LEAST, MOST = 20.0, 50.0, 8, 240
#: Windows of each side where their number is fixed, and the seconds of one.
FIXED_WINDOWS, WINDOW_SECONDS = 12, 0.15
#: Seconds after which nvbench's process is given up.
NVBENCH_SECONDS = 240
#: Warm-up of do_bench in ms, equal to that of `REWARM` in a window of a run or longer.
WARM_UP_MS = 30


class OneProcess(Spreads):
    """Of sides in one process no difference of processes can hide, nor explain, a ratio."""

    def known(self, kind: str) -> Spread:
        """Return a spread of 0."""
        return ONE_PROCESS


def callables(device: str) -> dict[str, Call]:
    """Return calls bound by arithmetic, by memory and by launches; each writes to memory of its own.

    On a GPU each takes milliseconds, so that the start of an idle device does not matter. The product is one of
    zeros, which takes as long as one of other numbers and draws the least power: at its power limit a device has a
    clock that depends on what ran before, and on the length of the pauses.
    """
    cuda = device == "cuda"
    rows, side, length, count = (16384, 8192, 2**30, 4000) if cuda else (512, 512, 2**23, 50)
    dtype = torch.bfloat16 if cuda else torch.float32
    left, right = (torch.zeros(lines, side, device=device, dtype=dtype) for lines in (rows, side))
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
    """Times of a callable by a referee and by this tool, in ms, a window of each in each turn.

    The verdict is about the ratio of neighbouring windows with its 95% interval. An interval that crosses the tolerance
    decides nothing. `is_bar`: issue and docs promise it; the other rows are shown beside.
    """

    call: str
    referee: str
    theirs_ms: Sequence[float]
    ours_ms: Sequence[float]
    tolerance: float
    is_bar: bool

    @property
    def pair(self) -> Pair:
        """Ours over theirs, with its interval."""
        ours, theirs = (Windows.of(ms, session="row") for ms in (self.ours_ms, self.theirs_ms))
        return compare(Cell((ours,), ONE_PROCESS), Cell((theirs,), ONE_PROCESS))

    @property
    def verdict(self) -> str:
        """Whether the two agree within the tolerance."""
        interval = self.pair.interval()
        if interval is None:
            return "undecided"
        low, high = interval
        if max(1 - low, high - 1) <= self.tolerance:
            return "yes"
        return "no" if low > 1 + self.tolerance or high < 1 - self.tolerance else "undecided"


def table_of(rows: Sequence[Row]) -> Table[Row]:
    return Table(
        "Referees",
        (
            Column[Row]("callable", lambda row: row.call),
            Column[Row]("referee", lambda row: row.referee),
            Column[Row]("theirs", lambda row: statistics.median(row.theirs_ms), "ms"),
            Column[Row]("ours", lambda row: statistics.median(row.ours_ms), "ms"),
            Column[Row]("windows of each", lambda row: len(row.ours_ms), "count"),
            Column[Row]("ours / theirs, 95% interval", lambda row: with_interval(row.pair)),
            Column[Row]("tolerance", lambda row: row.tolerance, "percent"),
            Column[Row]("within", lambda row: row.verdict),
            Column[Row]("bar", lambda row: row.is_bar, "flag"),
        ),
        rows,
    )


def with_interval(pair: Pair) -> str:
    """Return the ratio with four digits after the point."""
    interval = pair.interval()
    return f"{pair.ratio:.4f}" + ("" if interval is None else f" [{interval[0]:.4f}, {interval[1]:.4f}]")


@dataclass(frozen=True)
class Rows:
    """Makes the rows of a callable: who measures it, and what they must agree to."""

    call: str
    tolerance: float
    has_bars: bool
    only: str = ""  # what "CALL, REFEREE" of a row must contain

    def in_turns(self, ours: Measure, referees: Mapping[str, Measure], *, is_bar: bool = True) -> Iterator[Row]:
        """Let this tool and the referees take turns, as the variants of a run do, and yield a row for each referee."""
        referees = {name: measure for name, measure in referees.items() if self.only in f"{self.call}, {name}"}
        if not referees:
            return
        host = self.tolerance == LAUNCH_BOUND
        sides = [_resident(name, measure, host=host) for name, measure in {"ours": ours, **referees}.items()]
        seconds = LAUNCH_SECONDS if host else SECONDS
        take_turns(sides, seconds * len(sides) / 2, seed=0, spreads=OneProcess())
        own = _by_block(sides[0])
        for side in sides[1:]:
            theirs = _by_block(side)
            blocks = [block for block in own if block in theirs]
            yield self.row(side.name, [theirs[b] for b in blocks], [own[b] for b in blocks], is_bar=is_bar)

    def row(self, referee: str, theirs: Sequence[float], ours: Sequence[float], *, is_bar: bool) -> Row:
        return Row(self.call, referee, theirs, ours, self.tolerance, is_bar and self.has_bars)


def _resident(name: str, measure: Measure, *, host: bool) -> Placement:
    """Return a side of a row as a cell that waits for its turns; a window is one number, the median of its calls.

    Windows hold twelve calls; where the `host` sets the time they are short, since its speed may change within seconds.
    """

    def window(turn: Turn) -> WindowSamples:
        start = time.perf_counter()
        return WindowSamples(start_s=start, wall_ms=(measure(seconds),))

    call_s = measure(0.05) / 1e3  # also warms up
    seconds = SHORTEST if host else min(LONGEST, max(SHORTEST, 12 * call_s))
    limits = {"min_iterations": LEAST, "max_iterations": MOST, "max_seconds": SECONDS}
    ready = Ready(used={}, free={}, **limits)
    return Placement(name, ready, window)


def _by_block(side: Placement) -> dict[int, float]:
    return {block: window.wall_ms[0] for block, window in side.windows}


def fixed(ours: Measure, theirs: Measure) -> tuple[list[float], list[float]]:
    """Measure both sides in `FIXED_WINDOWS` windows each, in the order A B B A; return (theirs, ours) in ms."""
    times: dict[Measure, list[float]] = {theirs: [], ours: []}
    for turn in range(FIXED_WINDOWS):
        for measure in (ours, theirs) if turn % 2 else (theirs, ours):
            times[measure].append(measure(WINDOW_SECONDS))
    return times[theirs], times[ours]


# This tool's side.


def our_median(call: Call, device: torch.device, seconds: float, *, cold: bool = False) -> float:
    """Return our median of a call in ms: of the device clock where there is one, else of the wall clock."""
    clock, flush = CallClock(device), CacheFlush(device) if cold else None

    def sample():
        if flush is not None:
            flush()
        return clock.sample(call)

    sample()  # one warm-up call is enough, the turn before ran the same
    start, samples = time.perf_counter(), [sample()]
    while time.perf_counter() - start < seconds:
        samples.append(sample())
    return statistics.median([each.wall if each.device is None else each.device for each in samples])


def back_to_back(call: Call, device: torch.device, seconds: float) -> float:
    """Return our median of a call in ms, waiting for the device once in five calls.

    Two calls precede each five, as in Timer, so that both begin on a device that has just worked.
    """

    def calls(number: int) -> None:
        for _ in range(number):
            call()

    clock, blocks = CallClock(device), []
    while sum(blocks) < 1e3 * seconds:
        clock.sample(partial(calls, 2))
        blocks.append(clock.sample(partial(calls, 5)).wall)
    return statistics.median(blocks) / 5


# The referees.


def timer(call: Call, seconds: float) -> float:
    """Return Timer's median of blocks of five calls in ms; `blocked_autorange` would exceed the window."""
    referee, blocks = Timer("call()", globals={"call": call}), []
    while 5 * sum(blocks) < 1e3 * seconds:
        blocks.append(1e3 * referee.timeit(5).median)
    return statistics.median(blocks)


def pyperf_median(number: int, _: float) -> float:
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


def do_bench_median(call: Call, seconds: float) -> float:
    """Return do_bench's median in ms; it overwrites a buffer larger than the L2 cache before each call."""
    from triton.testing import do_bench  # pyright: ignore[reportMissingImports]

    return do_bench(call, warmup=WARM_UP_MS, rep=round(1e3 * seconds), return_mode="median")


def do_bench_hot_median(call: Call, seconds: float) -> float:
    """Return do_bench's median in ms with the L2 cache left as it is."""
    with _without_cache_clearing():
        return do_bench_median(call, seconds)


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


def do_bench_cudagraph_median(call: Call, seconds: float, *, one_call: bool) -> float:
    """Return do_bench_cudagraph's median in ms; it replays a graph that lasts a tenth of the window ten times.

    The chain gets a graph that holds one call, as ours does: three chains of 4000 nodes in one graph took 7% longer.
    """
    from triton.testing import do_bench_cudagraph  # pyright: ignore[reportMissingImports]

    return do_bench_cudagraph(call, rep=1 if one_call else round(100 * seconds), return_mode="median")


def kernels_ms(call: Call, _: float) -> float:
    """Return how long the kernels, copies and fills of a call run, in ms, from a profiler trace.

    Raises:
        SystemExit: the profiler recorded nothing on the device.

    """
    work = device_work(call, calls=30)
    if work is None:
        raise SystemExit("error: the profiler recorded no kernel: another profiler uses CUPTI, or it is forbidden here")
    return work.busy_ms


# nvbench runs its benchmarks itself, once a process, and gives its numbers at the end: it calls our side in between.


def nvbench_process(file: Path) -> None:
    """Let nvbench run in this process, our windows between its own; write (name, kind, theirs, ours) into `file`.

    Times are in ms, a number a window.

    Raises:
        SystemExit: with a sentence that says why nvbench cannot run here.

    """
    try:
        import cuda.bench as nvbench  # pyright: ignore[reportMissingImports]
        from cuda.bench.results import BenchmarkResult  # pyright: ignore[reportMissingImports]

        run_all, register = nvbench.run_all_benchmarks, nvbench.register  # loads the extension for this CUDA
    except Exception as error:  # it is not installed, or its extension cannot be loaded
        raise SystemExit(f"cuda.bench cannot be imported: {reason_of(error)}") from error
    device, ours_ms, functions = torch.device("cuda"), dict[str, list[float]](), []
    with torch.inference_mode():
        for name, call in callables("cuda").items():
            graphed = CudaGraphed(call, alias_outputs=True)
            graphed()
            for kind, run in (("eager", call), ("captured", graphed)):
                # nvbench holds the device back until a call is launched. Thousands of launches do not fit into the
                # device's queue and would wait for ever: they are timed as they are launched.
                held_back = kind == "captured" or "chain" not in name
                times = ours_ms.setdefault(f"{name}|{kind}", [])
                function = nvbench_turn(run, device, times, held_back=held_back)
                function.__name__ = f"{name}|{kind}"
                functions.append(function)
                register(function).add_int64_axis("turn", range(FIXED_WINDOWS))
        results = file.with_suffix(".nvbench.json")
        run_all(["referees", "--devices", "0", "--jsonbin", str(results)])
    theirs_ms = {name: list(map(nvbench_ms, states)) for name, states in BenchmarkResult.from_json(results).items()}
    file.write_text(json.dumps([(*name.split("|"), theirs_ms[name], ours_ms[name]) for name in ours_ms]))
    os._exit(0)  # the usual exit would tear down the device, which torch and nvbench share, twice


def nvbench_turn(run: Call, device: torch.device, ours_ms: list[float], *, held_back: bool) -> Callable[[Any], None]:
    """Return a function for nvbench that it calls for each turn: it times one window of nvbench and one of ours."""

    def launch(launch: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(launch.get_stream().addressof(), device)):
            run()

    def turn(state: Any) -> None:
        state.set_timeout(WINDOW_SECONDS)
        state.set_throttle_threshold(0.0)  # it would discard samples at lower clocks, which ours include
        theirs = partial(state.exec, launch, batched=False, sync=not held_back)
        for side in ("ours", "theirs") if state.get_int64("turn") % 2 else ("theirs", "ours"):
            if side == "theirs":
                theirs()
            else:
                ours_ms.append(our_median(run, device, WINDOW_SECONDS, cold=True))

    return turn


def nvbench_ms(state: Any) -> float:
    """Return the median of nvbench's samples of a turn in ms, the mean where it kept none."""
    if state.samples:
        return 1e3 * statistics.median(state.samples)
    return 1e3 * float(state.summaries["nv/cold/time/gpu/mean"].value)


def nvbench_rows() -> tuple[list[Row], str]:
    """Return the rows of nvbench from a process of its own, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--nvbench", str(file)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=NVBENCH_SECONDS)
        except subprocess.TimeoutExpired:
            return [], f"it did not end within {NVBENCH_SECONDS} s"
        if not file.exists():
            said = ended.stderr.strip() or ended.stdout.strip() or f"its process ended with {ended.returncode}"
            return [], said.splitlines()[-1]
        content = json.loads(file.read_text())
    return [
        rows_of(name).row(f"nvbench, {kind}, cold", theirs, ours, is_bar=False) for name, kind, theirs, ours in content
    ], ""


def on_cpu(only: str) -> Iterator[Row]:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    for number, (name, call) in enumerate(callables("cpu").items()):
        ours, rows = partial(our_median, call, device), Rows(name, LAUNCH_BOUND, has_bars=False, only=only)
        yield from rows.in_turns(ours, {"torch Timer": partial(timer, call)})
        if only in f"{name}, pyperf":
            yield rows.row("pyperf", *fixed(ours, partial(pyperf_median, number)), is_bar=False)


def rows_of(name: str, only: str = "") -> Rows:
    """Return what makes the rows of a callable on a GPU."""
    return Rows(name, LAUNCH_BOUND if "chain" in name else DEVICE_BOUND, has_bars=True, only=only)


def on_cuda(only: str) -> Iterator[Row]:
    device = torch.device("cuda")
    for name, call in callables("cuda").items():
        graphed = CudaGraphed(call, alias_outputs=True)  # a copy of the output would be timed too
        graphed()
        ours, chain, rows = partial(our_median, call, device), "chain" in name, rows_of(name, only)
        yield from rows.in_turns(
            partial(back_to_back, call, device), {"torch Timer, back to back": partial(timer, call)}
        )
        yield from rows.in_turns(partial(ours, cold=True), {"do_bench, cold": partial(do_bench_median, call)})
        yield from rows.in_turns(ours, {"do_bench, hot": partial(do_bench_hot_median, call)})
        captured = partial(do_bench_cudagraph_median, call, one_call=chain)
        yield from rows.in_turns(partial(our_median, graphed, device), {"do_bench_cudagraph": captured})
        if chain:  # the gaps between kernels of 1 to 2 us are as long as the kernels, and only our times include them
            continue
        # Back-to-back calls, so that the device rests on neither side.
        for kind, run in (("eager", call), ("captured", graphed)):
            referee = {f"kernels, {kind}": partial(kernels_ms, run)}
            yield from rows.in_turns(partial(back_to_back, run, device), referee, is_bar=False)


def measure(only: str) -> tuple[list[Row], list[str]]:
    """Return the rows, each printed to stderr as soon as it is measured, and what was left out."""
    rows, left_out = [], []
    with torch.inference_mode():
        for row in on_cuda(only) if torch.cuda.is_available() else on_cpu(only):
            rows.append(row)
            print(json.dumps(asdict(row)), file=sys.stderr, flush=True)  # an interrupted run keeps its rows
    if torch.cuda.is_available() and not only:
        torch.cuda.empty_cache()
        more, reason = nvbench_rows()
        rows += more
        left_out += [f"nvbench: {reason}"] if reason else []
    return rows, left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvbench", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help='part of "CALLABLE, REFEREE": these rows only, none of nvbench')
    options = parser.parse_args()
    if options.nvbench is not None:
        nvbench_process(options.nvbench)
    started = time.perf_counter()
    rows, left_out = measure(options.only)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, 1 thread"
    print(f"referees on {name}, torch {torch.__version__}, {time.perf_counter() - started:.0f} s\n")
    print(markdown(table_of(rows)))
    for line in left_out:
        print(f"\nleft out: {line}")
    missed = [row for row in rows if row.is_bar and row.verdict != "yes"]
    if missed:
        raise SystemExit(f"\nmissed: {'; '.join(f'{row.call}, {row.referee}' for row in missed)}")


if __name__ == "__main__":
    pyperf_process() if "--pyperf" in sys.argv else main()
