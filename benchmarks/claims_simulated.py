"""Simulated runs, whose truth is known, through the judge: how often a claim is false, how often an interval misses.

Cells of one component take turns as in `profiling.run.turns`: blocks of windows, a control of the first cell and of the
best one after the first look, an end at a planned look or with the budget. The noise of a window is drawn from the
calls of committed runs, so that it has their tails and correlations, or is normal with a given size; bursts of other
processes, drift and the luck of placements are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from profiling.results.jsonl import read_records
from profiling.results.judge import (
    LOOKS,
    RESOLUTION,
    Answer,
    Array,
    Cell,
    Pair,
    Ranking,
    Windows,
    compare,
    control_pairs,
    is_settled,
    rank,
)
from profiling.results.measured import Spread
from profiling.results.verdicts import placements_of

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
#: Blocks that the budget allows.
BLOCKS = 80
SESSION = "simulated"


@dataclass(frozen=True)
class Scene:
    """How cells are simulated; shares are relative, and `ratios` are true times over that of the first cell."""

    name: str
    ratios: Sequence[float]
    spread: float  # true standard deviation between placements
    prior: Spread
    noise: float = 0.002  # standard deviation of a window's median
    correlation: float = 0.3  # of neighbouring windows
    bursts: float = 0.0  # probability that a burst of other processes begins in a block
    burst_share: float = 0.4  # what they take while it lasts
    drift: float = 0.0  # change of all cells together over the budget
    tails: bool = False  # noise with rare long windows
    slow: float = 1.0  # factor on its time while a process runs slowly: for 6 windows of 12 on average, at random
    stored: bool = False  # the noise is that of windows of committed runs, in their order


@dataclass
class Outcome:
    """What the judge said of one simulated component."""

    ranking: Ranking
    against_first: dict[str, Pair] = field(default_factory=dict)
    blocks: int = 0


def simulate(scene: Scene, rng: np.random.Generator) -> Outcome:
    """Simulate one component, with the looks and controls of a run."""
    places = [rng.normal(np.log(ratio), scene.spread) for ratio in scene.ratios]
    lasting = _bursts(scene, rng)
    common = np.linspace(0.0, scene.drift, BLOCKS) + 0.002 * np.cumsum(rng.standard_normal(BLOCKS)) / np.sqrt(BLOCKS)
    series = [_windows(scene, rng, place, common, lasting) for place in places]
    looks, controls, first_control = list(LOOKS), dict[int, tuple[Array, Array]](), 0
    blocks = looks[0]
    while True:
        cells = _cells(scene, series, controls, first_control, blocks)
        if blocks == looks[0] and not controls:
            best = min(range(len(cells)), key=lambda place: cells[place].log_ms)
            first_control = blocks
            for place in {0, best}:
                again = rng.normal(np.log(scene.ratios[place]), scene.spread)
                controls[place] = _windows(scene, rng, again, common, lasting)
            blocks += looks[0]
            continue
        level = next((LOOKS[look] for look in looks if look >= blocks), 0.95)
        if blocks >= BLOCKS or is_settled(cells, level):
            break
        blocks = next((look for look in looks if look > blocks), BLOCKS)
    names = [str(place) for place in range(len(cells))]
    ranking = rank(dict(zip(names, cells, strict=True)))
    against = {name: compare(cell, cells[0]) for name, cell in zip(names[1:], cells[1:], strict=True)}
    return Outcome(ranking, against, blocks)


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
    lengthened = -np.log1p(-taken * rng.uniform(0.5, 1.0))  # a part of what is measured was in nobody's way
    return log_ms + scene.noise * noise + common + lengthened, taken


@cache
def stored_noise() -> tuple[Array, ...]:
    """Return the logarithms of the window medians of each committed cell over their median, of 20 windows or more."""
    records = [record for path in RESULTS.glob("*/results.jsonl") for record in read_records(path.parent).records]
    placed = [placements_of(record) for record in records if record.is_correct]
    times = [np.log(each[0].ms) for each in placed if each and each[0].ms.size >= 20]
    return tuple(each - np.median(each) for each in times)


def _cells(
    scene: Scene,
    series: Sequence[tuple[Array, Array]],
    controls: dict[int, tuple[Array, Array]],
    first_control: int,
    blocks: int,
) -> list[Cell]:
    """Return the cells after so many blocks, with the spread that their controls taught."""

    def windows(part: tuple[Array, Array], begin: int = 0) -> Windows:
        chosen = slice(begin, blocks)
        return Windows.of(np.exp(part[0][chosen]), range(begin, blocks), part[1][chosen], SESSION)

    cells = []
    for place, part in enumerate(series):
        again = (windows(controls[place], first_control),) if place in controls else ()
        cells.append(Cell((windows(part), *again), scene.prior))
    learned = scene.prior.taught(control_pairs(cells))
    return [replace(cell, spread=learned) for cell in cells]


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


_CAPTURED, _EAGER, _CPU = Spread(0.0025, 8.0), Spread(0.15, 6.0), Spread(0.04, 6.0)
SCENES = (
    Scene("captured, equal", (1.0, 1.0), 0.002, _CAPTURED, 0.001),
    Scene("captured, 0.2% slower", (1.0, 1.002), 0.002, _CAPTURED, 0.001),
    Scene("captured, 0.5% slower", (1.0, 1.005), 0.002, _CAPTURED, 0.001),
    Scene("captured, 0.8% slower", (1.0, 1.008), 0.002, _CAPTURED, 0.001),
    Scene("captured, 2% slower", (1.0, 1.02), 0.002, _CAPTURED, 0.001),
    Scene("captured, 12 equal", (1.0,) * 12, 0.002, _CAPTURED, 0.001),
    Scene("noise of 10%, equal", (1.0, 1.0), 0.002, _CAPTURED, 0.1),
    Scene("noise of 10%, 4 equal", (1.0,) * 4, 0.002, _CAPTURED, 0.1),
    Scene("long tails, equal", (1.0,) * 3, 0.002, _CAPTURED, 0.003, tails=True),
    Scene("stored noise, equal", (1.0,) * 4, 0.002, _CAPTURED, stored=True),
    Scene("stored noise, 5% slower", (1.0, 1.05), 0.002, _CAPTURED, stored=True),
    Scene("all drift by 30%, equal", (1.0, 1.0), 0.002, _CAPTURED, 0.002, drift=-0.3),
    Scene("eager, equal", (1.0, 1.0), 0.15, _EAGER, 0.02),
    Scene("eager, twice as fast", (1.0, 0.5), 0.15, _EAGER, 0.02),
    Scene("eager, two speeds, equal", (1.0, 1.0), 0.05, _EAGER, 0.05, slow=1.8),
    Scene("eager, two speeds, twice as fast", (1.0, 0.5), 0.05, _EAGER, 0.05, slow=1.8),
    Scene("eager, two speeds, five times", (1.0, 0.2), 0.05, _EAGER, 0.05, slow=1.8),
    Scene("CPU, equal", (1.0, 1.0), 0.03, _CPU, 0.01),
    Scene("CPU, bursts, equal", (1.0,) * 3, 0.03, _CPU, 0.01, bursts=0.1),
    Scene("CPU, always busy, equal", (1.0, 1.0), 0.03, _CPU, 0.05, bursts=1.0),
    Scene("CPU, always busy, tenfold", (1.0, 0.1), 0.03, _CPU, 0.05, bursts=1.0, burst_share=0.5),
)
