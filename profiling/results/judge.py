"""Every claim about times: which of two cells is faster, which of many is fastest, whether one drifts or holds a rate.

Pure functions over arrays: no record, no file. Everything that prints or exports a claim asks here and decides nothing.

**Model.** A cell was timed in windows, in one placement or several; a placement is a process, which has its own memory
addresses and its own luck with the host. The logarithm of a window's median time is

    cell + turn + placement + noise

- *turn*: what slows the machine for longer than a window. Cells that took turns share it, so that it cancels in the
  difference of neighbouring windows. Between cells that took no turns it is part of the noise.
- *placement*: equal code in two processes differs, however long each is timed. Repeating inside a process cannot show
  that, so repetitions belong where the variation is: some cells are placed a second time (Kalibera and Jones, Rigorous
  Benchmarking in Reasonable Time, 2013). The standard deviation is pooled from what such pairs showed here, and a prior
  with the weight of few of them (`Spread`).
- *noise*: 20% trimmed means with winsorised variances (Tukey and McLaughlin, 1963), widened where neighbouring windows
  are correlated, and bounded by what was seen where no window of one cell is as short as one of the other. Both add
  up to Student's t with the degrees of freedom of Satterthwaite (1946).

**Four answers.** The 95% interval of the ratio lies within ± `RESOLUTION`: *same* (an equivalence test). It excludes 1
and the estimate is beyond the resolution: *faster* or *slower*. Else *undecided*. As a true ratio grows from 1, the
answer goes from same to undecided to faster. Of several cells the one with the lowest estimate leads, and the others
are tested against it. The leader was chosen by the same data, so that Holm's method counts all pairs.

**Disturbance widens.** What other processes took of a window is measured; no window is dropped. One thread on a core of
its own waits exactly as long as is measured: the interval of a ratio holds the one with that removed from both cells.
What others took of a GPU may have slowed one cell and not the other: the interval reaches from where all of it is
removed from the slower cell to where all is removed from the faster one. Threads that wait for each other lose more
than is measured, the more the more is taken (`STARVED`), so that windows may differ a hundredfold. But others only
lengthen: where no call of one cell, without what was measured, is as short as many windows of the other, that bounds
the ratio (`Shortest`; by the chance that so many of the shortest are of one cell, as in Wilcoxon's rank-sum test,
1945). Of both the narrower end holds.

**Drift.** A cell whose windows have a trend is timed longer. If that does not end it, the cell says so, and the
interval of its time holds both ends; that of a ratio holds both ends of the ratio, in which a shared drift cancels.
Six windows can show no trend: where they rise or fall in order, turns go on to the next look.

**Rates.** A cell holds a frame rate if at most 1% of its calls are late. That is said by the one-sided 95% bound of
Clopper and Pearson (1934) on k late of n calls. Late calls come in bursts: k and n are divided by the mean length of a
burst. Where the answer is undecided, more calls may be made, at most twice, and are judged by 99.5% bounds. Bursts that
none of the calls showed cannot be known: of 600 calls with 2% late in bursts of 3, 2% show none.

**Looks.** Turns end at one of `LOOKS`. All but the last ask for 99.9% intervals (Haybittle 1971, Peto 1976), so that
looking adds at most 0.3 points to the 5% of the last. They also end where more windows would not change the answer: the
placements alone leave the comparison open at the level of the look, and the noise is small beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import combinations, pairwise, permutations
from math import comb, inf
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from profiling.results.measured import LATE, LEAST_VALUES, PRIOR_PAIRS, RESOLUTION, Spread

Array = NDArray[np.float64]
Answer = Literal["same", "faster", "slower", "undecided"]
HoldsAnswer = Literal["yes", "no", "undecided"]
Name = TypeVar("Name")

#: Probability of a false claim; of a false answer on a rate at each look after the first one.
FALSE, AGAIN = 0.05, 0.005
#: A trend is claimed below this p-value. It is that low since residuals around a curve of any shape understate noise
#: that is correlated: with a correlation of 0.5, 24 stationary windows are called a trend in 1% of simulated series.
TREND_P = 1e-5
#: Largest p-value of the same trend without its first or last window. Of simulated series with one odd window at an
#: end 1 to 5% are then called drifting, 35 to 100% without this rule; steps and ramps are found as often as without it.
END_P = 0.01
#: Windows of each cell after which turns may end, and the level of the intervals at each of these looks.
LOOKS: Mapping[int, float] = {6: 0.999, 10: 0.999, 15: 0.999, 75: 0.95}
#: Fewest windows from which noise is estimated; slow calls beside other processes may leave a run with no more.
FEWEST = 4
#: The correlation of neighbours is at least this over the number of windows, since few windows cannot show one. Of
#: fewer than `LEAST_VALUES` it is that.
FEW = 2.0
#: Share of the windows that is trimmed at either end.
TRIM = 0.2
#: Standard errors in the largest difference of windows that are apart (99.9%), and the fewest windows: that all of 8
#: err to one side has a probability of 0.8%.
APART, APART_WINDOWS = 3.29, 8
#: Other processes are reported with a time if they took more than this share of it (0 to 1). For an undecided pair
#: `wants` states how many times as much would have to be measured, and "over 10 times" where it is more than that.
NAMED_SHARE, MOST_TIMES = 0.02, 10.0
#: Most that can be removed from a window, as a share of it.
MOST_TAKEN = 0.999
#: Kinds of cells that compute in several threads. A window of theirs of which others took a share x may be longer by
#: (1 + x / STARVED) times that: twice at 2%, 6 times at 10%.
THREADED, STARVED = frozenset({"CPU", None}), 0.02
#: Least rank correlation with time (p < 5%) at which six windows, which are too few for a trend, go on.
IN_ORDER = 0.88
#: Spreads where nothing was learned, by what sets the pace of a call. GPU, captured or device-bound: between processes
#: on an H100 0.08% to 0.26%; compiled or eager, with kernels that set the pace: second processes of an image decoder
#: differed by 0.7 to 8.6%. Host-bound: eager took 12.0 to 13.8 ms in four processes and 23 ms in a fifth. CPU: equal
#: pairs with one pinned thread differed by up to 2.5%, others by up to 11%.
DEFAULT_SPREADS: Mapping[str, Spread] = {
    kind: Spread(std, freedom, kind=kind)
    for kind, std, freedom in (
        ("captured", 0.0025, PRIOR_PAIRS),
        ("device-bound", 0.035, 6.0),
        ("host-bound", 0.15, 6.0),
        ("CPU, pinned", 0.01, PRIOR_PAIRS),
        ("CPU", 0.04, 6.0),
    )
}
#: Degrees of freedom of what is known.
_CERTAIN = 1e6
#: Spread of windows in one process.
ONE_PROCESS = Spread(0.0, PRIOR_PAIRS)
#: Of the energy of equal code in two runs: 95% of the ratios are within 5%, by temperature or between two GPUs of one
#: model.
ENERGY_SPREAD = Spread(0.018, PRIOR_PAIRS)
#: Standard deviations that are added for a cell that took no turns with the other. The first is of another temperature,
#: host and GPU; the second is of code that another run compiles, which may choose other kernels. Compiled and captured,
#: an audio decoder took 2.60 and 2.76 ms in two runs of one revision, on two GPUs of one host, a world model 2.06 and
#: 2.13 ms; a captured loop without a compiler 23.60 and 23.56 ms on two hosts. If compilations differ by 3.5% in truth,
#: 8% of equal pairs are called different.
BETWEEN_RUNS, COMPILED_AGAIN = 0.006, 0.024
#: Degrees of freedom of these two numbers: as many differences taught them.
BETWEEN_FREEDOM = 5.0


@dataclass(frozen=True)
class Windows:
    """The windows of a cell in one placement, float64 or int64 [windows].

    `ms`: median time of a call in each. `turns`: number of its turn in the `session`; windows of two cells with the
    same session and turn were neighbours. `taken`: the largest share (0 to 1) of each that others can have taken.
    `least`: time of the shortest call in each, which others lengthened least.
    """

    ms: Array
    turns: NDArray[np.int64]
    taken: Array
    least: Array
    session: str = ""

    @staticmethod
    def of(
        ms: Sequence[float],
        turns: Sequence[int] | None = None,
        taken: Sequence[float] | float = 0.0,
        session: str = "",
        least: Sequence[float] | None = None,
    ) -> Windows:
        """Return windows made of plain numbers. Raises ValueError if lengths differ or a time is not positive.

        Without `least` the windows stand for their shortest calls.
        """
        times = np.asarray(ms, dtype=np.float64)
        numbers = np.arange(times.size) if turns is None else np.asarray(turns, dtype=np.int64)
        shares = np.clip(np.broadcast_to(np.asarray(taken, dtype=np.float64), times.shape), 0.0, MOST_TAKEN)
        if times.size == 0 or times.shape != numbers.shape or not (np.isfinite(times) & (times > 0)).all():
            raise ValueError("windows need times above 0, and a turn and a share for each")
        return Windows(times, numbers, shares, times if least is None else np.asarray(least, np.float64), session)


@dataclass(frozen=True)
class Cell:
    """What was timed of a cell: a tuple of placements, and the spread of equal code between such.

    `is_compiled`: another run compiles it again, and may choose other kernels.
    """

    placements: tuple[Windows, ...]
    spread: Spread
    is_compiled: bool = False

    @property
    def log_ms(self) -> float:
        """The logarithm of its typical time in ms."""
        return float(np.mean([_trimmed(np.log(each.ms))[0] for each in self.placements]))

    @property
    def taken(self) -> float:
        """The mean share of its windows that others took (0 to 1)."""
        return float(np.average([each.taken.mean() for each in self.placements]))

    def of_all_windows(self, *, in_one_run: bool) -> _Run:
        """Return its time and how well that is known, where no other cell took turns with it."""
        between = COMPILED_AGAIN if self.is_compiled and not in_one_run else BETWEEN_RUNS
        return _mean([_run_alone(placements, self.spread, between) for placements in _by_session(self).values()])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of its time in ms, over processes and runs; None where the windows are too few for one."""
        run = self.of_all_windows(in_one_run=False)
        spread = run.spread.std**2, run.spread.freedom
        return Pair(run.log, run.noise, run.freedom, *spread, low_shift=min(0.0, run.shorter_one)).interval()


def claim(log_ratio: float, interval: tuple[float, float] | None, resolution: float = RESOLUTION) -> Answer:
    """Return the answer on a ratio of two times by its interval; None: there is none."""
    if interval is None:
        return "undecided"
    if 1 / (1 + resolution) <= interval[0] and interval[1] <= 1 + resolution:
        return "same"
    if abs(log_ratio) > np.log1p(resolution) and (interval[0] > 1 or interval[1] < 1):
        return "slower" if log_ratio > 0 else "faster"
    return "undecided"


@dataclass(frozen=True)
class Shortest:
    """Lower bounds of the ratio of two times, one over other, where other processes took part of the CPU or the GPU.

    They can only lengthen a window. `logs`: logarithms of (shortest call of one, less the share that others typically
    took) / (shortest, second shortest, third shortest... window of other). `windows`: number of windows of one.
    """

    logs: tuple[float, ...]
    windows: int

    @staticmethod
    def of(one: Cell, other: Cell) -> Shortest:
        """Return the bounds of one over other by the windows in turns that both had: else chance would say nothing."""
        turns = [np.unique(np.concatenate([each.turns for each in cell.placements])) for cell in (one, other)]
        shared = np.intersect1d(turns[0], turns[1])
        mine, theirs = ([(each, np.isin(each.turns, shared)) for each in cell.placements] for cell in (one, other))
        known = [(each, at) for each, at in mine if at.any()]
        least = min(float(each.least[at].min() * (1 - np.median(each.taken[at]))) for each, at in known)
        others = np.sort(np.concatenate([each.ms[at] for each, at in theirs]))
        return Shortest(tuple(np.log(least / others).tolist()), sum(int(at.sum()) for _, at in known))

    def bound(self, level: float) -> float:
        """Return the logarithm of the bound at a two-sided `level`; minus infinity where there are too few windows."""
        numbers = range(1, len(self.logs) + 1)
        return next((self.logs[n - 1] for n in numbers if self._chance(n) <= 1 - level), -inf)

    def p_value(self, placement: float, freedom: float) -> float:
        """Return the two-sided p-value of a ratio of 1: at that level a bound, less what processes differ by, is 1.

        `placement` is the variance of the logarithm by that, with degrees of `freedom`.
        """
        from scipy.special import stdtr

        errors = [each / np.sqrt(placement) if placement else inf for each in self.logs if each > 0]
        chances = enumerate(errors, 1)
        return min((max(self._chance(n), float(2 * stdtr(freedom, -error))) for n, error in chances), default=1.0)

    def _chance(self, number: int) -> float:
        """Return the probability that by chance the `number` shortest of all windows belong to one cell, either one."""
        total = self.windows + len(self.logs)
        return min(1.0, 2 * comb(total - number, self.windows) / comb(total, self.windows))


@dataclass(frozen=True)
class Pair:
    """The ratio of two times, one over other, above 1 where `one` takes longer.

    `noise` and `placement` are the variances of its logarithm. `low_shift` and `high_shift` (logarithms, at most
    and at least 0) move the ends of the interval to where what others took is removed, and to the ends of a trend.
    `shortest`: bounds of one over other, and of other over one, beside other processes.
    """

    log_ratio: float
    noise: float
    noise_freedom: float
    placement: float
    placement_freedom: float
    low_shift: float = 0.0
    high_shift: float = 0.0
    taken: float = 0.0  # the larger mean share of the two that others took
    in_turns: bool = True
    in_one_run: bool = True
    level: float = 1 - FALSE  # of its interval, and of what it claims; higher among several (`judged`)
    shortest: tuple[Shortest, Shortest] | None = None

    @property
    def ratio(self) -> float:
        """The estimate."""
        return float(np.exp(self.log_ratio))

    def interval(self, level: float | None = None) -> tuple[float, float] | None:
        """Return the interval of the ratio at `level`; None where the windows are too few for one."""
        level = self.level if level is None else level
        reach = self.reach(level)
        if not np.isfinite(reach):
            return None
        low, high = self.log_ratio + self.low_shift - reach, self.log_ratio + self.high_shift + reach
        if self.shortest is not None:
            above, below = (each.bound(level) - self._placement_reach(level) for each in self.shortest)
            low, high = max(low, min(above, self.log_ratio)), min(high, max(-below, self.log_ratio))
        return float(np.exp(low)), float(np.exp(high))

    def answer(self, level: float | None = None, resolution: float = RESOLUTION) -> Answer:
        """Return whether `one` is faster or slower than `other`, the same within `resolution`, or undecided."""
        return claim(self.log_ratio, self.interval(level), resolution)

    @property
    def is_certain(self) -> bool:
        """Whether nothing about it is random: both cells hold one measurement (`compare_runs`)."""
        return not self.noise and not self.placement

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the times are equal.

        What other processes took is first removed from the slower cell, which makes the difference smaller.
        """
        from scipy.special import stdtr  # takes a moment to import, and a reader of records needs none of it

        if not np.isfinite(self.noise):
            return 1.0
        known = 1.0
        if self.shortest is not None:
            known = self.shortest[0 if self.log_ratio > 0 else 1].p_value(self.placement, self.placement_freedom)
        towards_1, error = self.log_ratio, self._error
        towards_1 += self.low_shift if self.log_ratio > 0 else self.high_shift
        if towards_1 * self.log_ratio <= 0:
            return known
        return min(known, float(2 * stdtr(self._freedom, -abs(towards_1) / error)) if error else 0.0)

    def wants(self) -> str:
        """Return what would decide an undecided pair: a quiet machine, more placements, or more windows."""
        if not np.isfinite(self.noise):
            return "a quiet machine" if self.taken > NAMED_SHARE else "more time (seconds=)"
        times = self.times_wanted()
        is_hopeless = self.taken > NAMED_SHARE and times > MOST_TIMES
        if is_hopeless or self.high_shift - self.low_shift > 2 * self.reach(self.level):
            return "a quiet machine"
        often = f"over {MOST_TIMES:.0f}" if times > MOST_TIMES else f"{int(np.ceil(max(2.0, times)))}"
        if self.placement > self.noise:
            if self.in_turns:
                return f"measuring in {often} times as many processes (--multirun seed=0,1,2)"
            if self.in_one_run:
                return f"measuring in {often} times as many processes (rounds=)"
            return "measuring both in turns"
        return f"{often} times the windows (seconds=, metric.latency.max_iterations=)"

    def times_wanted(self) -> float:
        """Return how many times as much would have to be measured for an answer, if the estimate stays."""
        apart = abs(self.log_ratio)
        return (self.reach(self.level) / max(apart, np.log1p(RESOLUTION) - apart)) ** 2

    def is_limited_by_placement(self, level: float | None = None) -> bool:
        """Whether more windows would decide nothing: the difference of processes, or others, dominate the interval.

        Then the noise is small, the pair would be undecided at `level` even without it, and its answer at the usual
        level is the same with and without it.
        """
        farthest = max(each.logs[0] for each in self.shortest) if self.shortest is not None else 0.0
        if farthest > self._placement_reach(1 - FALSE) and self.answer() == "undecided":
            return False  # more windows make it less probable that those of one cell are the shortest by chance
        measured = -float(np.log1p(-min(self.taken, MOST_TAKEN))) / 2
        removed = min(measured, (self.high_shift - self.low_shift) / 4)
        if not np.isfinite(self.noise) or self.noise > max(self.placement / 4, removed**2):
            return False
        without = replace(self, noise=0.0)
        return without.answer(level) == "undecided" and without.answer() == self.answer()

    @property
    def _error(self) -> float:
        return float(np.sqrt(self.noise + self.placement))

    @property
    def _freedom(self) -> float:
        parts = ((self.noise, self.noise_freedom), (self.placement, self.placement_freedom))
        below = sum(variance**2 / freedom for variance, freedom in parts)
        return max(1.0, (self.noise + self.placement) ** 2 / below) if below else _CERTAIN

    def _placement_reach(self, level: float) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.placement_freedom, (1 + level) / 2) * np.sqrt(self.placement))

    def reach(self, level: float) -> float:
        """Return half the width of the interval of log(ratio) at `level`, before it is widened by other processes."""
        from scipy.special import stdtrit

        if not np.isfinite(self.noise):
            return float("inf")
        return float(stdtrit(self._freedom, (1 + level) / 2)) * self._error


def compare(one: Cell, other: Cell, *, in_one_run: bool = True) -> Pair:
    """Return the ratio of two cells, one over other: in turns of neighbouring windows, else of all windows.

    Differences between runs (sessions) that measured the same show by how much runs differ. `in_one_run`: one code was
    compiled for both, or each once; another run compiles anew.
    """
    theirs = _by_session(other)
    runs = [
        run
        for session, placements in _by_session(one).items()
        if (run := _run_in_turns(placements, theirs.get(session, ()), one.spread, other.spread)) is not None
    ]
    if runs:
        found = _mean(runs)
    else:
        first, second = (each.of_all_windows(in_one_run=in_one_run) for each in (one, other))
        spread = _total((first.spread, second.spread), alike=one.spread == other.spread)
        found = _Run(
            *(first.log - second.log, first.noise + second.noise, min(first.freedom, second.freedom)),
            *(spread, first.shorter_one, second.shorter_one),
        )
    # Others lengthen times: without them one was shorter by `shorter_one` at most, and other by `shorter_other`.
    pair = Pair(
        *(found.log, found.noise, found.freedom, found.spread.std**2, found.spread.freedom),
        low_shift=min(0.0, found.shorter_one),
        high_shift=max(0.0, -found.shorter_other),
        taken=max(one.taken, other.taken),
        in_turns=bool(runs),
        in_one_run=in_one_run,
    )
    if len(runs) != 1 or len(theirs) != 1 or not pair.taken or pair.high_shift - pair.low_shift < RESOLUTION:
        return pair
    shortest = Shortest.of(one, other), Shortest.of(other, one)
    low, high = shortest[0].bound(pair.level), -shortest[1].bound(pair.level)
    return replace(pair, log_ratio=float(np.clip(found.log, low, max(low, high))), shortest=shortest)


@dataclass(frozen=True)
class _Run:
    """The logarithm of a time or a ratio that one run measured, its variance, and the spread of equal code."""

    log: float
    noise: float
    freedom: float  # of the noise
    spread: Spread
    shorter_one: float  # logarithms of what is left without others
    shorter_other: float = 0.0


def compare_runs(one: Cell, other: Cell) -> Pair:
    """Return what `compare` does of cells of two runs; one measurement that both hold is the same for certain."""
    windows = [[each.ms.tolist() for each in cell.placements] for cell in (one, other)]
    if windows[0] == windows[1] and any(len(each) > 1 for each in windows[0]):
        return Pair(0.0, 0.0, _CERTAIN, 0.0, _CERTAIN, in_turns=False)
    return compare(one, other, in_one_run=False)


def _by_session(cell: Cell) -> dict[str, list[Windows]]:
    """Return the placements of a cell by run; those without a session are of one."""
    found: dict[str, list[Windows]] = {}
    for each in cell.placements:
        found.setdefault(each.session, []).append(each)
    return found


def _run_in_turns(ones: Sequence[Windows], others: Sequence[Windows], one: Spread, other: Spread) -> _Run | None:
    """Return the ratio by the turns that all placements had, else by those of each pair of them; None: too few.

    Where second placements had few turns, only the first ones count if the ratio is better known by these alone.
    """

    def placed(numbers: tuple[int, int]) -> Spread:
        return _total((_shared(one, numbers[0]), _shared(other, numbers[1])), alike=one == other)

    def reach(known: tuple[float, ...], numbers: tuple[int, int]) -> float:
        spread = placed(numbers)
        return Pair(known[0], known[1], known[2], spread.std**2, spread.freedom).reach(1 - FALSE)

    kinds = {one.kind, other.kind}
    in_turns = partial(_in_turns, starved=STARVED if kinds & THREADED else np.inf, one_thread=kinds == {"CPU, pinned"})
    together, numbers = in_turns(ones, others, LEAST_VALUES), (len(ones), len(others))
    if together is not None:
        known = [together]
        if _turns_of(ones, others).size < APART_WINDOWS <= _turns_of(ones[:1], others[:1]).size:
            first = in_turns(ones[:1], others[:1])
            if first is not None and reach(first, (1, 1)) < reach(together, numbers):
                known, numbers = [first], (1, 1)
    else:
        pairs = {(i, j): in_turns([a], [b]) for i, a in enumerate(ones) for j, b in enumerate(others)}
        found = {at: pair for at, pair in pairs.items() if pair is not None and pair[1] < np.inf}
        known, numbers = list(found.values()), (len({i for i, _ in found}), len({j for _, j in found}))
    if not known:
        return None
    log, freedom, *removed = (float(np.mean([each[i] for each in known])) for i in (0, 2, 3, 4))
    noise = float(np.mean([np.sqrt(each[1]) for each in known])) ** 2  # they share windows: as if wholly correlated
    return _Run(log, noise, freedom, placed(numbers), *removed)


def _run_alone(placements: Sequence[Windows], spread: Spread, between: float) -> _Run:
    known = [(*_trimmed(np.log(each.ms)), _removed(each.taken)) for each in placements]
    logs, noises, freedoms, removed = zip(*known, strict=True)
    # The processes of a run share host, clocks and compiled code: more of them do not reduce this part.
    total = _total((_shared(spread, len(known)), Spread(between, BETWEEN_FREEDOM)), alike=False)
    noise = sum(noises) / len(known) ** 2
    return _Run(float(np.mean(logs)), noise, min(freedoms), total, float(np.mean(removed)))


def _mean(runs: Sequence[_Run]) -> _Run:
    """Return the mean over runs; their differences teach by how much runs differ."""
    steps = [(a.log - b.log, a.noise + b.noise) for a, b in pairwise(runs)]
    before = Spread(float(np.sqrt(np.mean([run.spread.std**2 for run in runs]))), min(r.spread.freedom for r in runs))
    return _Run(
        *(float(np.mean([run.log for run in runs])), sum(run.noise for run in runs) / len(runs) ** 2),
        min(run.freedom for run in runs),
        _shared(_seen(before, [step for step in steps if step[1] < np.inf]), len(runs)),
        *(float(np.mean([getattr(run, name) for run in runs])) for name in ("shorter_one", "shorter_other")),
    )


def _seen(before: Spread, steps: Sequence[tuple[float, float]]) -> Spread:
    """Return by how much runs differ: what is known, and what differences of successive runs teach.

    What is known counts for nothing where they show so much more that it cannot be true (an F test at 5%): hosts that
    differ, for example. Successive differences overlap, so that n of them are worth 2 n / 3 (von Neumann, 1941).
    """
    from scipy.special import fdtrc

    found = float(np.mean([max(0.0, step**2 - noise) / 2 for step, noise in steps])) if steps else 0.0
    if found > 0 and fdtrc(len(steps), before.freedom, found / max(before.std, 1e-9) ** 2) < FALSE:
        return Spread(float(np.sqrt(found)), 2 * len(steps) / 3)
    return before.taught(steps)


def _shared(spread: Spread, number: int) -> Spread:
    """Return the spread of a mean over so many."""
    return Spread(float(spread.std / np.sqrt(number)), spread.freedom)


def _total(parts: tuple[Spread, Spread], *, alike: bool) -> Spread:
    """Return the spread of a difference. If both are `alike`, it is one number, which is known as well for both."""
    variance, below = sum(part.std**2 for part in parts), sum(part.std**4 / part.freedom for part in parts)
    known = min(part.freedom for part in parts) if alike or not below else variance**2 / below
    return Spread(float(np.sqrt(variance)), known)


def _in_turns(
    ones: Sequence[Windows],
    others: Sequence[Windows],
    least: int = 1,
    starved: float = np.inf,
    *,
    one_thread: bool = False,
) -> tuple[float, float, float, float, float] | None:
    """Return (log ratio, variance, freedom, how much shorter one may be, and other) of neighbouring windows.

    The last two are logarithms, at most 0: without other processes, and at the end of a trend of the ratio. `starved`:
    see `_removed`. `one_thread`: each cell computes in one, on a core of its own.

    Of several placements it is the ratio of their means in the turns that each had. None: there are fewer than `least`
    of these, or they are of several sessions or of none.

    Where no window of one is as short as one of the other, without what others can have taken, the differences that
    were seen bound the error (at `APART`): few windows at two speeds, say, have a wide interval otherwise.
    """
    every = (*ones, *others)
    if not (ones and others and ones[0].session) or any(each.session != ones[0].session for each in every):
        return None
    turns = _turns_of(ones, others)
    if turns.size < least:
        return None

    def mean(placements: Sequence[Windows], of: Callable[[Windows], Array]) -> Array:
        places = [np.intersect1d(each.turns, turns, return_indices=True)[1] for each in placements]
        return np.mean([of(each)[at] for each, at in zip(placements, places, strict=True)], axis=0)

    one, other = (mean(each, lambda windows: np.log(windows.ms)) for each in (ones, others))
    taken_one, taken_other = (mean(each, lambda windows: windows.taken) for each in (ones, others))
    centre, variance, freedom = _trimmed(one - other)
    from_one, from_other = _removed(taken_one, starved), _removed(taken_other, starved)
    if one_thread:  # it is removed from both at the same time
        from_one, from_other = min(0.0, from_one - from_other), min(0.0, from_other - from_one)
    moved = fit_line(np.exp(one - other), turns.astype(np.float64))
    if moved is not None and moved.is_claimed():
        ends = np.clip(np.log([moved.begin, moved.end]), (one - other).min(), (one - other).max()) - centre
        from_one, from_other = from_one + min(ends.min(), 0.0), from_other - max(ends.max(), 0.0)
    lows = (np.min(each + np.log1p(-taken)) for each, taken in ((one, taken_one), (other, taken_other)))
    apart = next(lows) > np.max(other) or next(lows) > np.max(one)
    bound = float(np.abs(one - other - centre).max() / APART) ** 2
    if apart and one.size >= APART_WINDOWS and bound < variance:
        variance, freedom = bound, one.size - 1.0
    return centre, variance, freedom, from_one, from_other


def _turns_of(ones: Sequence[Windows], others: Sequence[Windows]) -> NDArray[np.int64]:
    """Return the turns that all of these placements had."""
    return reduce(np.intersect1d, [each.turns for each in (*ones, *others)])


def _removed(taken: Array, starved: float = np.inf) -> float:
    """Return the logarithm (at most 0) of how much shorter a typical window is without what other processes took.

    `taken` is their share of each window. With `starved`, threads may have waited for each other (`STARVED`).
    """
    return _trimmed(np.log1p(-taken) * (1 + taken / starved))[0] if taken.any() else 0.0


def _trimmed(values: Array) -> tuple[float, float, float]:
    """Return (trimmed mean, its variance, degrees of freedom); the variance of too few values is infinite."""
    ordered, cut = np.sort(values), int(TRIM * values.size) if values.size >= LEAST_VALUES else 0
    kept = values.size - 2 * cut
    centre = float(ordered[cut : values.size - cut].mean())
    if values.size < FEWEST:
        return centre, np.inf, 1.0
    variance = float(np.clip(values, ordered[cut], ordered[-1 - cut]).var(ddof=1))
    inflation = _inflation(values)
    return centre, variance * values.size * inflation / kept**2, max(2.0, (kept - 1) / inflation)


def _inflation(values: Array) -> float:
    """Return the variance inflation of a mean by correlated neighbours: at least 1, of ranks.

    The correlation is corrected for bias (Marriott and Pope, Bias in the estimation of autocorrelations, 1954), and
    half of its standard error is added, since what few windows hide would make intervals too narrow.
    """
    if np.ptp(values) == 0:
        return 1.0
    correlation = FEW / values.size
    if values.size >= LEAST_VALUES:
        ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") - (values.size - 1) / 2
        lag_1 = float((ranks[1:] * ranks[:-1]).sum() / (ranks**2).sum())
        unbiased = (values.size * lag_1 + 1) / (values.size - 4)
        correlation = min(max(unbiased + 0.5 / np.sqrt(values.size), correlation), 0.8)
    return float((1 + correlation) / (1 - correlation))


@dataclass(frozen=True)
class Ranking:
    """The leader of several cells, the lowest estimate, and the time of each of the others over its own, by name."""

    leader: str
    pairs: Mapping[str, Pair]

    @property
    def answers(self) -> dict[str, Answer]:
        """Whether each of the others is slower, the same, or undecided."""
        return {name: pair.answer() for name, pair in self.pairs.items()}

    def named(self, answer: Answer) -> list[str]:
        """Return the names of the cells with this answer, those with the lowest estimate first."""
        chosen = [name for name, each in self.answers.items() if each == answer]
        return sorted(chosen, key=lambda name: self.pairs[name].log_ratio)


def rank(cells: Mapping[str, Cell], *, in_one_run: bool = True) -> Ranking:
    """Rank the cells, of one run or of several. Raises ValueError if there are none."""
    if not cells:
        raise ValueError("no cell to rank")
    direct = {
        (one, other): compare(cells[one], cells[other], in_one_run=in_one_run) for one, other in permutations(cells, 2)
    }
    compared = partial(_compare_among, cells, direct)
    ratios = {(one, other): compared(one, other) for one, other in combinations(cells, 2)}

    def total(name: str) -> float:
        return sum({one: 1, other: -1}.get(name, 0) * pair.log_ratio for (one, other), pair in ratios.items())

    leader = min(cells, key=total)
    pairs = {name: compared(name, leader) for name in cells if name != leader}
    return Ranking(leader, judged(pairs, tests=len(cells) * (len(cells) - 1) // 2))


def _compare_among(cells: Mapping[str, Cell], direct: Mapping[tuple[str, str], Pair], one: str, other: str) -> Pair:
    """Return the ratio of two cells; where they took no turns, by one of their run with which each of them took turns.

    In one process compiled cells take turns with the baseline, one after the other: what slowed the machine meanwhile
    slowed the baseline, too, and its own placement cancels. Of several such cells it is the one with the least noise.
    """
    if direct[one, other].in_turns:
        return direct[one, other]
    spreads = cells[one].spread, cells[other].spread
    spread = _total(spreads, alike=spreads[0] == spreads[1])
    by = list[Pair]()
    for third in cells.keys() - {one, other}:
        three = cells[one], cells[third], cells[other]
        if len({placement.session for cell in three for placement in cell.placements}) > 1:
            continue  # of several runs: its own placement differs, too
        first, second = direct[one, third], direct[third, other]
        if first.in_turns and second.in_turns:
            by.append(
                Pair(
                    first.log_ratio + second.log_ratio,
                    *(first.noise + second.noise, min(first.noise_freedom, second.noise_freedom)),
                    *(spread.std**2, spread.freedom),
                    low_shift=first.low_shift + second.low_shift,
                    high_shift=first.high_shift + second.high_shift,
                    taken=max(first.taken, second.taken),
                )
            )
    return min(by, key=lambda pair: (pair.noise, pair.log_ratio), default=direct[one, other])


def fewest_windows(cells: int) -> int:
    """Return the fewest windows at which cells beside others can be told apart: by chance all of one are the shortest.

    That must be as improbable as Holm's method asks for among the pairs of so many cells.
    """
    tests = max(1, cells * (cells - 1) // 2)
    return next(n for n in range(FEWEST, 100) if 2 / comb(2 * n, n) <= FALSE / tests)


def judged(pairs: Mapping[Name, Pair], resolution: float = RESOLUTION, tests: int = 0) -> dict[Name, Pair]:
    """Return pairs at levels at which a difference is claimed falsely of any of them in 5% (Holm).

    `tests`: the number of pairs that these were chosen from, if there were more. A pair keeps its 95% interval unless
    that would claim what cannot be claimed among so many: then it has the wider one, which contains 1.
    """
    number, found = max(tests, len(pairs)), dict(pairs)
    by_p = sorted(pairs, key=lambda name: pairs[name].p_value)
    for place, name in enumerate(by_p):
        if pairs[name].p_value > FALSE / (number - place):
            level = 1 - FALSE / (number - place)
            open_ = (each for each in by_p[place:] if pairs[each].answer(resolution=resolution) != "same")
            return found | {each: replace(pairs[each], level=level) for each in open_}
    return found


def is_settled(cells: Sequence[Cell], level: float) -> bool:
    """Return whether further turns would tell no more; the first cell is the one that the others are compared with.

    Each comparison with the one that leads has an answer at `level`, or is limited by what windows cannot show, and no
    cell drifts. Other comparisons with the first cell have an answer (95%), or would have none without noise: nothing
    is chosen by them, so that looking at them often makes none of them false. A cell alone is settled where its own
    time is known to the resolution.
    """
    if any(drift(windows) is not None or _may_drift(windows) for cell in cells for windows in cell.placements):
        return False
    if len(cells) == 1:
        known = time_interval(cells[0].placements[0])
        return known is not None and known[1] <= (1 + RESOLUTION) ** 2 * known[0]
    leader = min(range(len(cells)), key=lambda place: cells[place].log_ms)
    for place, cell in enumerate(cells):
        for other in {leader, 0} - {place}:
            pair, leads = compare(cell, cells[other]), leader in (place, other)
            asked = level if leads else 1 - FALSE
            is_open = pair.answer(asked) == "undecided" and not pair.is_limited_by_placement(asked)
            if is_open and (leads or replace(pair, noise=0.0).answer() != "undecided"):
                return False
    return True


def drift(windows: Windows) -> Line | None:
    """Return the trend of a cell's windows in ms, its ends among theirs; None where none can be claimed.

    What others took of the windows may not explain it: without that it must be there, too.
    """
    places = windows.turns.astype(np.float64)
    line = fit_line(windows.ms, places)
    if line is None or not line.is_claimed():
        return None
    alone = fit_line(windows.ms * (1 - windows.taken), places) if windows.taken.any() else line
    alike = alone is not None and alone.is_claimed() and (alone.slope > 0) == (line.slope > 0)
    begin, end = np.clip([line.begin, line.end], windows.ms.min(), windows.ms.max())  # it may end beyond all windows
    return replace(line, begin=float(begin), end=float(end)) if alike else None


def _may_drift(windows: Windows) -> bool:
    """Return whether windows that are too few for a trend rise or fall in order, by more than the resolution."""
    if not LEAST_VALUES <= windows.ms.size < LEAST_VALUES + 2:
        return False
    ranks = np.argsort(np.argsort(windows.ms[np.argsort(windows.turns)], kind="stable"), kind="stable")
    in_order = abs(float(np.corrcoef(ranks, np.arange(ranks.size))[0, 1])) >= IN_ORDER
    return in_order and float(np.ptp(np.log(windows.ms))) > np.log1p(RESOLUTION)


@dataclass(frozen=True)
class Line:
    """A straight line through the logarithms of a series: its ends in the unit of the series, and how far it changes.

    `span`: distance of the two ends. `reach`: half the 95% interval of the change of the logarithm. `p_value`: of the
    hypothesis that nothing changes.
    """

    begin: float
    end: float
    span: float
    reach: float
    p_value: float

    @property
    def slope(self) -> float:
        """The change over the span."""
        return (self.end - self.begin) / self.span

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the slope."""
        change = np.log(self.end / self.begin)
        low, high = (self.begin * np.expm1(change + sign * self.reach) / self.span for sign in (-1, 1))
        return float(low), float(high)

    def is_claimed(self, resolution: float = RESOLUTION) -> bool:
        """Return whether the change is beyond chance and beyond the resolution."""
        return bool(self.p_value < TREND_P and abs(np.log(self.end / self.begin)) > np.log1p(resolution))


def fit_line(values: Array, places: Array | None = None) -> Line | None:
    """Fit a line to the logarithms of values above 0, float64 [n], at `places` [n]; None for fewer than eight.

    Whether there is a trend is judged by the residuals around the best rising or falling curve, since a step or a ramp
    is no noise (isotonic regression; Barlow et al., Statistical Inference under Order Restrictions, 1972). As such a
    curve meets a single odd value at either end, the trend must be there without it. The interval is by the residuals
    around the line.
    """
    from scipy.special import stdtrit

    x = np.arange(values.size, dtype=np.float64) if places is None else places
    if values.size < LEAST_VALUES + 2 or not (values > 0).all() or not np.ptp(x):
        return None
    x, y = x - x.mean(), np.log(values)
    slope, p_value, around_curve = _trend(x, y)
    for place, neighbour in ((0, 1), (-1, -2)):
        without = y.copy()
        without[place] = y[neighbour]
        other, p_without, _ = _trend(x, without)
        p_value = max(p_value, p_without * TREND_P / END_P if other * slope > 0 else 1.0)
    around_line = y - y.mean() - slope * x
    # What a curve leaves beside a line is correlated and no noise.
    error, freedom = _slope_error(x, around_line, _inflation(around_curve if p_value < TREND_P else around_line))
    begin, end = np.exp(y.mean() + slope * np.array([x.min(), x.max()]))
    reach = stdtrit(freedom, 1 - FALSE / 2) * error * np.ptp(x)
    return Line(float(begin), float(end), float(np.ptp(x)), float(reach), p_value)


def _trend(x: Array, y: Array) -> tuple[float, float, Array]:
    """Return the slope of `y` over centred `x`, the p-value that there is none, and the residuals around the curve."""
    from scipy.optimize import isotonic_regression
    from scipy.special import stdtr

    slope = float((x * (y - y.mean())).sum() / (x**2).sum())
    curve: Any = isotonic_regression(y, increasing=slope >= 0)
    around_curve = y - curve.x
    error, freedom = _slope_error(x, around_curve, _inflation(around_curve))
    return slope, float(2 * stdtr(freedom, -abs(slope) / error)) if error else float(slope == 0), around_curve


def _slope_error(x: Array, residuals: Array, inflation: float) -> tuple[float, float]:
    """Return the standard error of a slope over centred `x`, and its degrees of freedom."""
    freedom = max(2.0, (residuals.size - 2) / inflation)
    variance = float((residuals**2).sum()) / (residuals.size - 2) * inflation / float((x**2).sum())
    return float(np.sqrt(variance)), freedom


def time_interval(windows: Windows) -> tuple[float, float] | None:
    """Return the 95% interval of a cell's typical time in this placement in ms; None where the windows are too few.

    It holds both ends of a drift, and reaches down to where all that others took is removed.
    """
    interval, moved = _interval(*_trimmed(np.log(windows.ms)), _removed(windows.taken)), drift(windows)
    if interval is None or moved is None:
        return interval
    return min(interval[0], moved.begin, moved.end), max(interval[1], moved.begin, moved.end)


def call_interval(windows: Windows, shortest: float, typical: float, longest: float) -> tuple[float, float] | None:
    """Return the 95% interval of a cell's typical call in ms, around its median; None where the windows are too few.

    It lies within the shortest and the longest call. Beside other processes it reaches down to the shortest one without
    the share of the time that others took: each call may have been lengthened by that.
    """
    found, share = time_interval(windows), float(windows.taken.mean())
    if found is None:
        return None
    low = shortest * (1 - share) if share > NAMED_SHARE else max(found[0], shortest)
    return min(low, typical), max(min(found[1], longest), typical)


def control_pairs(cells: Sequence[Cell]) -> list[tuple[float, float]]:
    """Return (difference of the logarithms, its variance) of placements of equal cells, which teach a spread."""
    found = list[tuple[float, float]]()
    for cell in cells:
        first, *controls = cell.placements
        for control in controls:
            difference = _in_turns([control], [first])
            if difference is not None and np.isfinite(difference[1]):
                found.append((difference[0], difference[1]))
    return found


@dataclass(frozen=True)
class Holds:
    """Whether calls keep a deadline: `late` of `n` were late; `most` is the upper 95% bound of the share of late calls.

    `wanted`: further calls that would decide it if all of them were in time, where it is undecided.
    """

    answer: HoldsAnswer
    late: int
    n: int
    most: float
    wanted: int = 0


def bursts(late: Sequence[bool] | NDArray[np.bool_]) -> int:
    """Return how many groups of late calls there are, with at most one in time between two; `late` is [n] in order."""
    places = np.flatnonzero(np.asarray(late, dtype=bool))
    return int(places.size > 0) + int((np.diff(places) > 2).sum())


def holds(late: int, groups: int, n: int, allowed: float = LATE, looks: int = 1) -> Holds:
    """Judge n calls of which `late` were late, in so many `groups` in a row, by the share that is allowed (0 to 1).

    `looks`: how often it was asked. Calls that were added because the first answer was undecided are judged by 99.5%
    bounds (`AGAIN`), so that asking again adds at most one point to the 5% of false answers.
    """
    from scipy.special import bdtrin

    length = late / groups if groups else 1.0
    effective, false = n / length, FALSE if looks == 1 else AGAIN
    most = _bound(groups, effective, 1 - false) if n else 1.0
    if most <= allowed:
        return Holds("yes", late, n, most)
    if _bound(groups - 1, effective, false) > allowed:
        return Holds("no", late, n, most)
    enough = np.ceil(bdtrin(groups, false, allowed))  # calls at which this many late ones still hold the rate
    return Holds("undecided", late, n, most, max(1, round(length * enough) - n))


def holds_beside(said: Holds, share: float, shortest_ms: float, budget_ms: float, without: Holds) -> Holds:
    """Return what may be said of a rate where others took a share (0 to 1) of the time of the calls.

    They only lengthen calls: a rate that is missed is undecided if the shortest call without that share would be in
    time, unless it is missed by those that are late even `without` what others took of each, which is known of one
    thread only, as that of a loop on a GPU. They may have caused the late calls of an undecided one: more calls beside
    them would not tell.
    """
    if share <= NAMED_SHARE:
        return said
    if said.answer == "undecided" and said.late:
        return replace(said, wanted=0)
    is_missed = said.answer == "no" and without.answer != "no" and shortest_ms * (1 - share) <= budget_ms
    return replace(said, answer="undecided") if is_missed else said


def _bound(events: float, n: float, level: float) -> float:
    """Return the share p of which at most `events` of n are seen with probability 1 - level (Clopper and Pearson)."""
    from scipy.special import betaincinv

    if events < 0:
        return 0.0
    return 1.0 if events >= n else float(betaincinv(events + 1, n - events, level))


def total_ratio(parts: Any, wholes: Any) -> tuple[float, tuple[float, float] | None]:
    """Return (sum of the parts over sum of the wholes, its 95% interval): joules a call, of unequal windows."""
    total = _log_total(parts, wholes)
    return float(np.exp(total[0])), _interval(*total)


def compare_totals(one: tuple[Any, Any], other: tuple[Any, Any], spread: Spread) -> Pair:
    """Return the ratio of two totals, each given as (parts, wholes), measured independently."""
    (first, noise, freedom), (second, others, other_freedom) = _log_total(*one), _log_total(*other)
    return Pair(first - second, noise + others, min(freedom, other_freedom), 2 * spread.std**2, spread.freedom)


def _log_total(parts: Any, wholes: Any) -> tuple[float, float, float]:
    """Return (log of the ratio of sums, its variance, degrees of freedom).

    Source: Cochran, Sampling Techniques (1977), chapter 6, on the logarithm, so that no end is negative. No window,
    other lengths, or a sum that is not above 0 raise ValueError.
    """
    part, whole = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if part.size == 0 or part.size != whole.size or not part.sum() > 0 or not whole.sum() > 0:
        raise ValueError("a ratio of totals needs windows whose sums are above 0")
    ratio = float(part.sum() / whole.sum())
    if part.size < LEAST_VALUES:
        return float(np.log(ratio)), np.inf, 1.0
    residuals = part - ratio * whole
    inflation = _inflation(residuals)
    variance = part.size / (part.size - 1) * float((residuals**2).sum()) * inflation / float(part.sum()) ** 2
    return float(np.log(ratio)), variance, max(2.0, (part.size - 1) / inflation)


def _interval(centre: float, variance: float, freedom: float, removed: float = 0.0) -> tuple[float, float] | None:
    """Return the 95% interval of a value by its logarithm, with a lower end from which `removed` is taken away."""
    from scipy.special import stdtrit

    if not np.isfinite(variance):
        return None
    reach = stdtrit(freedom, 1 - FALSE / 2) * np.sqrt(variance)
    return float(np.exp(centre + removed - reach)), float(np.exp(centre + reach))
