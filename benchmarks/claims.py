"""How often is what the tool says of two cells wrong, and how often does it find a difference that is there?

    python benchmarks/claims.py --device cuda --kind eager --out FILE   eager, compiled or captured cells
    python benchmarks/claims.py --device cpu --pairs 100 [--busy 2]     eager cells with one thread (--threads 2)
    python benchmarks/claims.py --table FILE...                         the table of what was written to files
    python benchmarks/claims.py --simulated 1000                        simulated runs: see claims_simulated.py

A pair is two cells of equal code (A/A), or one with planted work: 2% more, a half, a tenth. Cells of one session share
a first cell and take turns by `profiling.run.turns`, with controls and looks as in any run; each has a process of its
own, and sessions have no process in common. Files hold the windows, so that a table is what `profiling.results.judge`
of today says of them, at the look at which turns would end today. A cell is a chain of small layers, so that a call
takes little time.
The bars: equal code is called different in at most 9 of 100 and 5 of 40 pairs, which a true 5% passes; equal captured
cells are called the same in 80% of quiet pairs; 2% is found in 80% of captured pairs within 20 s; a factor of 2 in 95%
(eager on a GPU: 90%), and of 10 in all, beside busy processes too. The command exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import msgspec
import torch
from claims_simulated import RATES, SCENES, RateCounts, count, count_rates
from torch import nn

from profiling.machine.run_queue import RUN_PROCESS
from profiling.machine.spreads import Spreads
from profiling.metrics.clocks import CallClock
from profiling.metrics.latency import TimedWindowMonitor
from profiling.metrics.monitor import CallMonitor
from profiling.metrics.sampling import (
    REWARM,
    Ready,
    Sample,
    SamplingLimits,
    Turn,
    WindowSamples,
    collect_window,
    warm_up,
)
from profiling.report.table import Column, Table, markdown
from profiling.results.judge import LOOKS, Cell, Windows, compare, is_settled
from profiling.results.measured import Spread
from profiling.results.verdicts import kind_of
from profiling.run.revisions import TOOL, git_state
from profiling.run.turns import Placement, take_turns
from profiling.trace.counters import snapshot

#: Links of a chain by planted work: 50 is 1.
LINKS, PLANTED = 50, {"equal": 50, "2% more": 51, "a half": 25, "a tenth": 5}
#: [rows, width] of a layer; on a GPU all weights are eight times as large as the L2 cache, as those of a network are.
ROWS, WIDTH = {"cuda": 128, "cpu": 32}, {"cuda": 2048, "cpu": 192}
BUSY = "import math, os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(map(math.sqrt, range(100_000)))"


class Chain(nn.Module):
    """`links` layers, each of which adds its input [rows, width] to a product."""

    def __init__(self, width: int, links: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(links))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, width]."""
        state = x
        for layer in self.layers:
            state = torch.tanh(x + layer(state))
        return state


def serve(link: Connection, device_name: str, kind: str, links: int, seconds: float, threads: int) -> None:
    """Prepare a cell, and time a window whenever the other end asks for one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that started it
    os.setsid()  # as a cell of a run, whose siblings are no other processes
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = torch.device(device_name)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    small = kind == "eager" and device.type == "cuda"  # launches, and not the device, set the pace
    rows, width = (16, 128) if small else (ROWS[device.type], WIDTH[device.type])
    module = Chain(width, links).to(device, dtype).eval()
    x = torch.randn(rows, width, device=device, dtype=dtype)
    with torch.inference_mode():
        run = torch.compile(module) if kind == "compiled" else module
        for _ in range(3):
            run(x)
        graph = torch.cuda.CUDAGraph() if kind == "captured" else None
        if graph is not None:
            with torch.cuda.graph(graph):
                module(x)

        def step() -> object:
            return run(x) if graph is None else graph.replay()

        clock, monitor = CallClock(device), TimedWindowMonitor(device, CallMonitor(device))

        def sample() -> Sample:
            if device.type == "cuda":
                torch.cuda.synchronize()
            return clock.sample(step)

        warm_up(sample, snapshot, SamplingLimits(warmup_max_seconds=0.5), time.perf_counter)
        link.send_bytes(
            msgspec.json.encode(
                Ready(
                    **{"min_iterations": 50, "max_iterations": 100_000},
                    **{"max_seconds": seconds, "used": {}, "free": {}, "pinned": monitor.pins},
                )
            )
        )
        while request := link.recv_bytes():
            turn = msgspec.json.decode(request, type=Turn)
            with monitor.on_own_cores():
                collect_window(sample, REWARM, time.perf_counter)
                with monitor.window() as samples:
                    samples += collect_window(sample, turn, time.perf_counter)
            link.send_bytes(msgspec.json.encode(monitor.windows[-1]))


@contextmanager
def prepared(at: Conditions, works: Sequence[str]) -> Iterator[list[Placement]]:
    """Prepare cells in processes of their own, at the same time."""
    with ExitStack() as stack:
        links = []
        for work in works:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(
                target=serve,
                args=(theirs, at.device, at.kind, PLANTED[work], at.most_seconds, at.threads),
                daemon=True,
            )
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            links.append(ours)
        yield [_resident(link, at.device, at.kind, work) for link, work in zip(links, works, strict=True)]


def _resident(link: Connection, device: str, kind: str, work: str) -> Placement:
    def window(turn: Turn) -> WindowSamples:
        link.send_bytes(msgspec.json.encode(turn))
        return msgspec.json.decode(link.recv_bytes(), type=WindowSamples)

    ready = msgspec.json.decode(link.recv_bytes(), type=Ready)
    return Placement(work, ready, window, device=device, is_captured=kind == "captured")


@dataclass(frozen=True)
class Judged:
    """What was said of a cell beside the first one of its session."""

    work: str
    answer: str
    ratio: float
    low: float
    high: float
    seconds: float  # that the session took turns
    taken: float
    noise: float  # standard errors of the logarithm: of the windows, and of the processes
    placement: float

    @property
    def is_false(self) -> bool:
        """Whether a claim was made that is not true."""
        truth = {"equal": "same", "2% more": "slower", "a half": "faster", "a tenth": "faster"}[self.work]
        return self.answer not in (truth, "undecided")

    @property
    def is_found(self) -> bool:
        """Whether the claim was made that is true."""
        return self.answer != "undecided" and not self.is_false


#: A window: its turn, its median in ms, the share that others took, and (not in older files) its shortest call in ms.
Timed = tuple[float, ...]


@dataclass(frozen=True)
class Session:
    """What was timed in turns: a line of a file, from which the judge of today decides."""

    works: tuple[str, ...]  # of its cells, the first included
    seconds: float  # in turns
    spreads: tuple[tuple[float, float], ...]  # of each cell as known then: standard deviation, degrees of freedom
    cells: tuple[tuple[tuple[Timed, ...], ...], ...]  # by placement

    @staticmethod
    def of(works: Sequence[str], seconds: float, cells: Sequence[Cell]) -> Session:
        """Return that of cells that have taken turns."""

        def windows(placement: Windows) -> tuple[Timed, ...]:
            columns = placement.turns, placement.ms, placement.taken, placement.least
            return tuple(
                (float(turn), float(f"{ms:.5g}"), round(float(taken), 3), float(f"{least:.5g}"))
                for turn, ms, taken, least in zip(*columns, strict=True)
            )

        return Session(
            *(tuple(works), round(seconds, 2), tuple((cell.spread.std, cell.spread.freedom) for cell in cells)),
            tuple(tuple(windows(placement) for placement in cell.placements) for cell in cells),
        )

    def judged(self, at: Conditions) -> list[Judged]:
        """Return what is said of each cell beside the first one."""
        kind = kind_of(at.device, captured=at.kind == "captured", pinned=at.threads == 1, host_share=1.0)
        cells = [
            Cell(tuple(_windows(each) for each in placements), Spread(*spread, kind=kind))
            for placements, spread in zip(self.cells, self.spreads, strict=True)
        ]
        first, *others = next(filter(None, (_at_look(cells, *look) for look in LOOKS.items())), cells)
        found = list[Judged]()
        for work, other in zip(self.works[1:], others, strict=True):
            pair = compare(other, first)
            low, high = pair.interval() or (0.0, float("inf"))
            errors = math.sqrt(pair.noise), math.sqrt(pair.placement)
            found.append(Judged(work, pair.answer(), pair.ratio, low, high, self.seconds, pair.taken, *errors))
        return found


def _at_look(cells: Sequence[Cell], blocks: int, level: float) -> list[Cell] | None:
    """Return the cells as they were after so many blocks, if turns end there now; None: they go on."""

    def first(each: Windows) -> Windows:
        at = each.turns < blocks
        return replace(each, ms=each.ms[at], turns=each.turns[at], taken=each.taken[at], least=each.least[at])

    early = [
        Cell(tuple(first(each) for each in cell.placements if each.turns.min() < blocks), cell.spread) for cell in cells
    ]
    has_all = all(cell.placements[0].turns.size == blocks for cell in early)
    return early if has_all and is_settled(early, level) else None


def _windows(placement: Sequence[Timed]) -> Windows:
    turns, ms, taken, *least = zip(*placement, strict=True)
    return Windows.of(ms, [int(turn) for turn in turns], taken, "turns", *least)


@dataclass(frozen=True)
class Conditions:
    """What pairs were measured on, and when: the first line of a file."""

    kind: str
    device: str
    name: str
    busy: int
    most_seconds: float
    date: str
    torch: str
    revision: str
    threads: int = 1
    beside: str = ""  # what else ran on the machine, in words

    @staticmethod
    def of(options: argparse.Namespace) -> Conditions:
        """Return those of now."""
        name = f"{os.cpu_count()} CPU cores"
        if options.device == "cuda":  # not by torch: a process that has used CUDA cannot be forked
            query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            name = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        git = git_state(TOOL)
        revision = (
            f"{git.revision[:12] if git and git.revision else 'unknown'}{' (dirty)' if git and git.dirty else ''}"
        )
        kind = options.kind if options.device == "cuda" else "eager"
        return Conditions(
            *(kind, options.device, name, options.busy, options.seconds),
            *(f"{datetime.now(UTC):%Y-%m-%d}", str(torch.__version__), revision, options.threads),
        )

    @property
    def is_beside(self) -> bool:
        """Whether others ran on the machine."""
        return bool(self.busy or self.beside)

    @property
    def words(self) -> str:
        """They in one line."""
        beside = f"beside {self.beside or f'{self.busy} busy processes'}" if self.is_beside else "nothing beside it"
        threads = f" of {self.threads} threads" * (self.threads > 1)
        return (
            f"{self.kind} cells{threads}, {self.date}, {self.name}, torch {self.torch}, revision {self.revision}, "
            f"{beside}, at most {self.most_seconds:g} s in turns"
        )


def sessions(kind: str, pairs: int, planted: int) -> list[tuple[str, ...]]:
    """Return the work of the cells of each session, beside a first cell."""
    if kind == "captured":  # small differences in sessions of their own, which need their time
        small = [("equal", "2% more")] * planted + [("equal",)] * (pairs - planted)
        return [*small, *[("a half", "a tenth")] * planted]
    return [("equal", "a half", "a tenth")] * planted + [("equal",)] * (pairs - planted)


def timed(at: Conditions, works: Sequence[str], spreads: Spreads, seed: int) -> Session:
    """Time the cells of a session beside a first one."""
    names = ["equal", *works]
    with prepared(at, [*names, *names]) as cells:  # controls at once, to save time
        ours, controls = cells[: len(names)], cells[len(names) :]
        control_of = {id(cell): control for cell, control in zip(ours, controls, strict=True)}
        began = time.monotonic()
        take_turns(ours, at.most_seconds, seed, again=lambda cell: control_of[id(cell)], spreads=spreads)
        seconds = time.monotonic() - began
        return Session.of(names, seconds, [cell.cell(spreads.known(cell.kind)) for cell in ours])


@dataclass(frozen=True)
class Row:
    """The pairs of one kind: what was said of them, and the bar."""

    cells: str
    work: str
    n: int
    said: str
    false: int
    bar: str
    is_met: bool
    most_seconds: float
    seconds: float
    taken: float  # the median share of the time that others took


def row_of(at: Conditions, pairs: Sequence[Judged]) -> Row:
    """Count what was said of pairs of one kind."""
    work, n = pairs[0].work, len(pairs)
    said = Counter(each.answer for each in pairs)
    false, found = sum(each.is_false for each in pairs), sum(each.is_found for each in pairs)
    allowed = 9 * n // 100 if n >= 100 else max(1, 5 * n // 40)
    bars = [f"false: at most {allowed}"]
    met = false <= allowed
    least = {"a half": 0.9 if at.device == "cuda" and at.kind == "eager" else 0.95, "a tenth": 1.0}.get(work)
    if at.kind == "captured" and not at.is_beside:
        least = {"equal": 0.8, "2% more": 0.8}.get(work, least)
    if least is not None:
        bars.append(f"found: at least {least:.0%}")
        met = met and found >= least * n
    words = ", ".join(f"{count_} {answer}" for answer, count_ in said.most_common())
    threads = f", {at.threads} threads" * (at.threads > 1)
    device = at.name.split()[1] if at.device == "cuda" else "CPU"  # H100 of "NVIDIA H100 80GB HBM3"
    cells = f"{device}, {at.kind}{threads}{', beside others' * at.is_beside}"
    seconds, others = sum(each.seconds for each in pairs) / n, median(each.taken for each in pairs)
    return Row(cells, work, n, words, false, "; ".join(bars), met, at.most_seconds, seconds, others)


def rows_of(at: Conditions, pairs: Sequence[Judged]) -> list[Row]:
    """Return a row for each planted work."""
    groups = [[each for each in pairs if each.work == work] for work in PLANTED]
    return [row_of(at, group) for group in groups if group]


def table(rows: Sequence[Row]) -> str:
    """Return the table as Markdown."""
    columns = (
        Column[Row]("cells", lambda row: row.cells),
        Column[Row]("the second does", lambda row: "the same" if row.work == "equal" else row.work),
        Column[Row]("pairs", lambda row: row.n, "count"),
        Column[Row]("said of it", lambda row: row.said),
        Column[Row]("false", lambda row: row.false, "count"),
        Column[Row]("bar", lambda row: row.bar),
        Column[Row]("met", lambda row: row.is_met, "flag"),
        Column[Row]("at most", lambda row: row.most_seconds, "s"),
        Column[Row]("time in turns", lambda row: row.seconds, "s"),
        Column[Row]("taken by others", lambda row: row.taken, "percent"),
    )
    return markdown(Table("Claims", columns, rows))


def read(files: Sequence[Path]) -> dict[Conditions, list[Judged]]:
    """Read what measurements have written; those of equal conditions are one."""
    found: dict[Conditions, list[Judged]] = {}
    for file in files:
        first, *lines = file.read_text().splitlines()
        sessions_ = (msgspec.json.decode(line, type=Session) for line in lines)
        at = msgspec.json.decode(first, type=Conditions)
        found.setdefault(at, []).extend(pair for session in sessions_ for pair in session.judged(at))
    return found


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep so many processes busy during the block, pinned to the cores in rotation: unpinned, they would give way."""
    processes, cores = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)], os.sched_getaffinity(0)
    for process, core in zip(processes, cycle(sorted(cores)), strict=False):
        os.sched_setaffinity(process.pid, {core})
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def measure(at: Conditions, options: argparse.Namespace) -> list[Judged]:
    """Time all pairs, and write each down once it is known."""
    began, spreads, results = time.monotonic(), Spreads(), list[Judged]()
    with busy_processes(at.busy), ExitStack() as stack:
        out = None
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            out = stack.enter_context(options.out.open("w"))
            print(msgspec.json.encode(at).decode(), file=out, flush=True)
        for seed, works in enumerate(sessions(at.kind, options.pairs, options.planted)):
            session = timed(at, works, spreads, seed)
            results += session.judged(at)
            for pair in session.judged(at):
                print(f"{time.monotonic() - began:.0f} s: {pair}", file=sys.stderr, flush=True)
            if out is not None:
                print(msgspec.json.encode(session).decode(), file=out, flush=True)
    print(f"{time.monotonic() - began:.0f} s in all; spreads learned: {spreads.pairs}", file=sys.stderr)
    return results


def main() -> None:
    """Measure, simulate, or print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kind", choices=("eager", "compiled", "captured"), default="eager", help="of cells on a GPU")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of equal code")
    parser.add_argument("--planted", type=int, default=20, help="pairs of each planted difference, at most `pairs`")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute all the time beside it")
    parser.add_argument("--threads", type=int, default=1, help="of a cell on a CPU; one is pinned to a core")
    parser.add_argument("--seconds", type=float, default=20.0, help="most time in turns for a session")
    parser.add_argument("--out", type=Path, help="file for a line for each pair")
    parser.add_argument("--table", type=Path, nargs="+", help="files of which to print the table, and nothing else")
    parser.add_argument("--simulated", type=int, default=0, help="simulated components of each scene, and nothing else")
    options = parser.parse_args()
    if options.simulated:
        at = Conditions.of(options)
        print(f"{at.date}, revision {at.revision}, numpy on a CPU", simulated_table(options.simulated), sep="\n\n")
        return
    if options.table:
        measured = read(options.table)
    else:
        os.environ[RUN_PROCESS] = str(os.getpid())
        importlib.import_module("torch._inductor.config")  # as the fork server of a run does: processes begin with it
        at = Conditions.of(options)
        measured = {at: measure(at, options)}
    alike: dict[Conditions, list[Judged]] = {}  # whenever they were measured
    for at, pairs in measured.items():
        alike.setdefault(replace(at, date="", revision=""), []).extend(pairs)
    rows = [row for at, pairs in alike.items() for row in rows_of(at, pairs)]
    print("\n".join(at.words for at in measured), table(rows), sep="\n\n")
    if missed := [f"{row.cells}, {row.work}" for row in rows if not row.is_met]:
        raise SystemExit(f"missed: {'; '.join(missed)}")


def simulated_table(runs: int) -> str:
    """Return the table of simulated scenes as Markdown."""
    counts = [count(scene, runs) for scene in SCENES]
    kind = type(counts[0])
    columns = (
        Column[kind]("scene", lambda row: row.scene.name),
        Column[kind]("interval holds the truth", lambda row: row.covered / row.comparisons, "percent"),
        Column[kind]("false claims", lambda row: row.false_claims / row.comparisons, "percent"),
        Column[kind]("runs with a false leader", lambda row: row.false_runs / row.runs, "percent"),
        *(
            Column[kind](answer, lambda row, answer=answer: row.answers[answer] / row.comparisons, "percent")
            for answer in ("same", "faster", "slower", "undecided")
        ),
        Column[kind]("blocks", lambda row: row.blocks, "count"),
    )
    of_rates = (
        Column[RateCounts]("calls", lambda row: row.rate.name),
        *(
            Column[RateCounts](f"holds: {answer}", lambda row, answer=answer: row.answers[answer] / row.runs, "percent")
            for answer in ("yes", "no", "undecided")
        ),
        Column[RateCounts]("false answers", lambda row: row.false / row.runs, "percent"),
        Column[RateCounts]("calls made", lambda row: row.calls, "count"),
    )
    rates = Table("Rates", of_rates, [count_rates(rate, runs) for rate in RATES])
    return f"{markdown(Table('Simulated', columns, counts))}\n\n{markdown(rates)}"


if __name__ == "__main__":
    main()
