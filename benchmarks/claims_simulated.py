"""Simulated runs, whose truth is known, through the judge: how often a claim is false, how often an interval misses.

Cells of one component take turns by `profiling.run.turns`, with its controls and looks; only their windows are drawn.
The noise of a window is that of windows of committed runs, so that it has their tails and correlations, or normal with
a given size; bursts of other processes, drift and the differences of placements are added.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from scipy.stats import trim_mean

from profiling.metrics.sampling import Ready, Turn, WindowSamples
from profiling.results.jsonl import read_records
from profiling.results.judge import (
    LOOKS,
    ONE_PROCESS,
    RESOLUTION,
    TRIM,
    Answer,
    Array,
    HoldsAnswer,
    Pair,
    Ranking,
    compare,
    holds,
    rank,
)
from profiling.results.measured import LATE
from profiling.results.stats import COMMON_FPS, rates_of_calls
from profiling.results.verdicts import placements_of
from profiling.run.turns import Placement, take_turns

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
#: Blocks that the budget allows.
BLOCKS = 80


@dataclass(frozen=True)
class Scene:
    """How cells are simulated; shares are relative, and `ratios` are true times over that of the first cell."""

    name: str
    ratios: Sequence[float]
    spread: float  # true standard deviation between placements
    kind: str  # of which `judge.DEFAULT_SPREADS` holds the spread that is assumed
    noise: float = 0.002  # standard deviation of a window's median
    correlation: float = 0.3  # of neighbouring windows
    bursts: float = 0.0  # probability that a burst of other processes begins in a block
    burst_share: float = 0.4  # what they take while it lasts
    drift: float = 0.0  # change of all cells together over the budget
    tails: bool = False  # noise with rare long windows
    starved: float = 0.0  # probability of a window 3 to 400 times as long, of which 50 to 70% are measured as taken
    slow: float = 1.0  # factor on its time while a process runs slowly: for 6 windows of 12 on average, at random
    stored: bool = False  # the noise is that of windows of committed runs, in their order
    budget: int = BLOCKS  # blocks for which there is time
    between: float = 0.0  # true standard deviation between runs; each cell is then timed in a run of its own, compiled


@dataclass
class Outcome:
    """What the judge said of one simulated component."""

    ranking: Ranking
    against_first: dict[str, Pair]
    blocks: int


def simulate(scene: Scene, rng: np.random.Generator) -> Outcome:
    """Simulate one component: `take_turns` with cells whose windows are drawn; its clock counts blocks."""
    lasting = _bursts(scene, rng)
    common = np.linspace(0.0, scene.drift, BLOCKS) + 0.002 * np.cumsum(rng.standard_normal(BLOCKS)) / np.sqrt(BLOCKS)

    def place(ratio: float, begin: int = 0) -> Placement:
        log_ms, taken = _windows(scene, rng, rng.normal(np.log(ratio), scene.spread), common, lasting)
        windows = iter(zip(np.exp(log_ms[begin:]).tolist(), taken[begin:].tolist(), strict=True))

        def window(_: Turn) -> WindowSamples:
            ms, share = next(windows)
            return WindowSamples(start_s=0.0, wall_ms=(ms,), host_ms=(ms,), cpu_lost_share=share)

        pinned, device = scene.kind == "CPU, pinned", "cpu" if scene.kind.startswith("CPU") else "cuda"
        ready = Ready(used={}, free={}, max_iterations=1_000_000, max_seconds=scene.budget, pinned=pinned)
        return Placement(str(ratio), ready, window, device, is_captured=scene.kind == "captured")

    cells = [place(ratio * np.exp(rng.normal(0.0, scene.between))) for ratio in scene.ratios]
    ratios = dict(zip(map(id, cells), scene.ratios, strict=True))
    for together in [[each] for each in cells] if scene.between else [cells]:
        # With a share of 1 no rate asks for further calls.
        take_turns(
            *(together, scene.budget, int(rng.integers(2**31)), partial(_blocks, together[0])),
            again=lambda cell: place(ratios[id(cell)], begin=len(cell.windows)),
            late=1.0,
        )
    judged = {str(number): each.cell(each.spread or ONE_PROCESS) for number, each in enumerate(cells)}
    if scene.between:
        for name, cell in judged.items():
            of_a_run = tuple(replace(each, session=name) for each in cell.placements)
            judged[name] = replace(cell, placements=of_a_run, is_compiled=True)
    in_one_run = not scene.between
    against = {name: compare(cell, judged["0"], in_one_run=in_one_run) for name, cell in judged.items() if name != "0"}
    return Outcome(rank(judged, in_one_run=in_one_run), against, len(cells[0].windows))


def _blocks(cell: Placement) -> float:
    return float(len(cell.windows))


def _bursts(scene: Scene, rng: np.random.Generator) -> Array:
    """Return the share that others take in each block; a burst lasts five blocks on average."""
    shares, left, share = np.zeros(BLOCKS), 0, 0.0
    for block in range(BLOCKS):
        if not left and rng.random() < scene.bursts:
            left, share = rng.geometric(0.2), scene.burst_share * rng.uniform(0.3, 1.5)
        if left:
            left, shares[block] = left - 1, min(0.9, share)
    return shares


def _windows(
    scene: Scene, rng: np.random.Generator, log_ms: float, common: Array, lasting: Array
) -> tuple[Array, Array]:
    """Return (log ms, share taken) of a cell's window in each block; what others take varies from window to window."""
    if scene.stored:
        series = stored_noise()
        chosen = series[rng.integers(len(series))]
        noise = np.resize(np.roll(chosen, rng.integers(chosen.size)), BLOCKS) / scene.noise
        return log_ms + scene.noise * noise + common, np.zeros(BLOCKS)
    noise = rng.standard_normal(BLOCKS)
    for block in range(1, BLOCKS):
        noise[block] = scene.correlation * noise[block - 1] + np.sqrt(1 - scene.correlation**2) * noise[block]
    if scene.tails:
        noise += (rng.random(BLOCKS) < 0.05) * rng.exponential(10.0, BLOCKS)
    if scene.slow > 1:
        changes = rng.random(BLOCKS) < 1 / 6
        noise += np.log(scene.slow) / scene.noise * ((np.cumsum(changes) + rng.integers(2)) % 2)
    taken = np.clip(lasting * rng.uniform(0.7, 1.3, BLOCKS), 0.0, 0.95)
    # Of one thread all that is measured was in its way; else a part of it.
    lengthened = -np.log1p(-taken * (1.0 if scene.kind == "CPU, pinned" else rng.uniform(0.5, 1.0)))
    if scene.starved:
        lasts = rng.random(BLOCKS) < scene.starved
        lengthened += lasts * rng.uniform(np.log(3), np.log(400), BLOCKS)
        taken = rng.uniform(0.5, 0.7, BLOCKS)
    return log_ms + scene.noise * noise + common + lengthened, taken


@cache
def stored_noise() -> tuple[Array, ...]:
    """Return a series for each committed cell with 20 windows or more: the logarithms of its windows' median times.

    Their trimmed mean is subtracted, which is the typical time that the judge compares: the median of a skewed series
    is another number.
    """
    records = [record for path in RESULTS.glob("*/results.jsonl") for record in read_records(path.parent).records]
    placed = [placements_of(record) for record in records if record.is_correct]
    times = [np.log(each[0].ms) for each in placed if each and each[0].ms.size >= 20]
    return tuple(each - trim_mean(each, TRIM) for each in times)


@dataclass(frozen=True)
class Counts:
    """Counts over simulated components: of runs, and of comparisons with the first cell."""

    scene: Scene
    runs: int
    comparisons: int
    covered: int
    false_claims: int
    false_runs: int  # in which a cell was called slower than the leader that is not
    answers: dict[Answer, int]
    blocks: float


def count(scene: Scene, runs: int, seed: int = 0) -> Counts:
    """Simulate `runs` components of a scene."""
    rng = np.random.default_rng(seed)
    covered = false = comparisons = false_runs = blocks = 0
    answers: dict[Answer, int] = {"same": 0, "faster": 0, "slower": 0, "undecided": 0}
    for _ in range(runs):
        outcome = simulate(scene, rng)
        blocks += outcome.blocks
        for name, pair in outcome.against_first.items():
            truth, answer = scene.ratios[int(name)], pair.answer()
            low, high = pair.interval() or (0.0, np.inf)
            comparisons += 1
            covered += low <= truth <= high
            answers[answer] += 1
            false += is_false(answer, truth)
        lead = scene.ratios[int(outcome.ranking.leader)]
        said = ((answer, scene.ratios[int(name)] / lead) for name, answer in outcome.ranking.answers.items())
        false_runs += any(is_false(answer, ratio) for answer, ratio in said)
    return Counts(scene, runs, comparisons, covered, false, false_runs, answers, blocks / runs)


def is_false(answer: Answer, ratio: float) -> bool:
    """Return whether an answer on a time is not true, given the true ratio to the other."""
    if answer == "same":
        return not 1 / (1 + 1.5 * RESOLUTION) <= ratio <= 1 + 1.5 * RESOLUTION
    return (answer == "slower" and ratio <= 1) or (answer == "faster" and ratio >= 1)


@dataclass(frozen=True)
class Rate:
    """Calls of a cell of which a share is late, in bursts of `length` on average; at most 1% may be."""

    name: str
    share: float
    length: float = 1.0
    calls: int = 600  # of the first look


@dataclass(frozen=True)
class RateCounts:
    """How often a rate was held, by answer, and the calls that it took."""

    rate: Rate
    runs: int
    answers: dict[HoldsAnswer, int]
    calls: float

    @property
    def false(self) -> int:
        """How often the answer was not true."""
        return self.answers["yes" if self.rate.share > LATE else "no"]


def count_rates(rate: Rate, runs: int, seed: int = 0) -> RateCounts:
    """Simulate a cell alone `runs` times: its turns, and the further calls that an undecided rate asks for."""
    rng = np.random.default_rng(seed)
    answers: dict[HoldsAnswer, int] = {"yes": 0, "no": 0, "undecided": 0}
    fps, total, window_calls = COMMON_FPS[0], 0, rate.calls // min(LOOKS)
    for _ in range(runs):
        left = 0

        def window(_: Turn) -> WindowSamples:
            nonlocal left
            late = np.zeros(window_calls, dtype=bool)
            for call in range(window_calls):
                if not left and rng.random() < rate.share / rate.length / (1 - rate.share):
                    left = int(rng.geometric(1 / rate.length))
                late[call], left = left > 0, max(0, left - 1)
            ms = np.where(late, 2000.0, 1.0) / fps
            return WindowSamples(start_s=0.0, wall_ms=tuple(ms.tolist()), host_ms=tuple(ms.tolist()))

        ready = Ready(used={}, free={}, max_iterations=100_000, max_seconds=1e6, pinned=True)
        cell, ticks = Placement("cell", ready, window, "cuda", is_captured=True), itertools.count()
        take_turns([cell], 1e6, 0, lambda: float(next(ticks)))  # noqa: B023 - called in this round only
        wall_ms = [ms for _, each in cell.windows for ms in each.wall_ms]
        seen = next(each for each in rates_of_calls(wall_ms, 1) if each.fps == fps)
        answers[holds(seen.misses, seen.bursts, len(wall_ms), LATE, cell.rate_looks).answer] += 1
        total += len(wall_ms)
    return RateCounts(rate, runs, answers, total / runs)


RATES = (
    Rate("none late", 0.0),
    Rate("0.2% late", 0.002),
    Rate("1.2% late", 0.012),
    Rate("1.2% late, first asked after 300 calls", 0.012, calls=300),
    Rate("2% late, in bursts of 3", 0.02, 3.0),
    Rate("2% late, in bursts of 3, first asked after 300 calls", 0.02, 3.0, calls=300),
    Rate("2% late, in bursts of 10", 0.02, 10.0),
    Rate("3% late", 0.03),
)

SCENES = (
    Scene("captured, equal", (1.0, 1.0), 0.002, "captured", 0.001),
    Scene("captured, 0.2% slower", (1.0, 1.002), 0.002, "captured", 0.001),
    Scene("captured, 0.5% slower", (1.0, 1.005), 0.002, "captured", 0.001),
    Scene("captured, 0.8% slower", (1.0, 1.008), 0.002, "captured", 0.001),
    Scene("captured, 2% slower", (1.0, 1.02), 0.002, "captured", 0.001),
    Scene("captured, 12 equal", (1.0,) * 12, 0.002, "captured", 0.001),
    Scene("captured, 5 equal, 8 blocks", (1.0,) * 5, 0.002, "captured", 0.012, budget=8),
    Scene("captured, 4 of 5 are 8% slower, 8 blocks", (1.0, *(1.08,) * 4), 0.002, "captured", 0.012, budget=8),
    Scene("noise of 10%, equal", (1.0, 1.0), 0.002, "captured", 0.1),
    Scene("noise of 10%, 4 equal", (1.0,) * 4, 0.002, "captured", 0.1),
    Scene("long tails, equal", (1.0,) * 3, 0.002, "captured", 0.003, tails=True),
    Scene("stored noise, equal", (1.0,) * 4, 0.002, "captured", stored=True),
    Scene("stored noise, 5% slower", (1.0, 1.05), 0.002, "captured", stored=True),
    Scene("all drift by 30%, equal", (1.0, 1.0), 0.002, "captured", 0.002, drift=-0.3),
    Scene("eager, equal", (1.0, 1.0), 0.15, "host-bound", 0.02),
    Scene("eager, twice as fast", (1.0, 0.5), 0.15, "host-bound", 0.02),
    Scene("eager, two speeds, equal", (1.0, 1.0), 0.05, "host-bound", 0.05, slow=1.8),
    Scene("eager, two speeds, twice as fast", (1.0, 0.5), 0.05, "host-bound", 0.05, slow=1.8),
    Scene("eager, two speeds, five times", (1.0, 0.2), 0.05, "host-bound", 0.05, slow=1.8),
    Scene("CPU, equal", (1.0, 1.0), 0.03, "CPU", 0.01),
    Scene("CPU, bursts, equal", (1.0,) * 3, 0.03, "CPU", 0.01, bursts=0.1),
    Scene("GPU, 30% taken, equal", (1.0,) * 3, 0.002, "captured", 0.01, bursts=1.0, burst_share=0.3),
    Scene("CPU, pinned, 30% taken, equal", (1.0,) * 3, 0.01, "CPU, pinned", 0.01, bursts=1.0, burst_share=0.3),
    Scene("CPU, pinned, 30% taken, half", (1.0, 0.5), 0.01, "CPU, pinned", 0.01, bursts=1.0, burst_share=0.3),
    Scene("CPU, 5% taken, equal", (1.0,) * 3, 0.03, "CPU", 0.01, bursts=1.0, burst_share=0.05),
    Scene("CPU, 5% taken, twice as fast", (1.0, 0.5), 0.03, "CPU", 0.01, bursts=1.0, burst_share=0.05),
    Scene("CPU, always busy, equal", (1.0, 1.0), 0.03, "CPU", 0.05, bursts=1.0),
    Scene("CPU, always busy, tenfold", (1.0, 0.1), 0.03, "CPU", 0.05, bursts=1.0, burst_share=0.5),
    Scene("two runs, compiled, equal", (1.0, 1.0), 0.002, "captured", 0.005, between=0.024),
    Scene("two runs, compiled, 20% slower", (1.0, 1.2), 0.002, "captured", 0.005, between=0.024),
    Scene("CPU, threads starve, 3 equal", (1.0,) * 3, 0.03, "CPU", 0.05, starved=0.4),
    Scene("CPU, threads starve, tenfold", (1.0, 0.1), 0.03, "CPU", 0.05, starved=0.4),
)
