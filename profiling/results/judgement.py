"""Conclusions from records: which are correct, what the baseline is, what speed may be claimed.

Tables, summaries and charts all use these functions, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Literal, Protocol

from msgspec.structs import replace

from profiling.results.loop import Deadline
from profiling.results.measured import LEAST_VALUES, ClockConditions, Summary
from profiling.results.record import BASELINE, Record

#: Others disturbed a window of calls where they took more than this share of its time (0 to 1).
DISTURBED_SHARE = 0.05
#: Most that an involuntary switch costs where the wait itself was not measured, in ms: a time slice of the scheduler.
SLICE_MS = 4.0
#: The interval of a ratio must lie beyond this difference; less is a tie, however many windows there are.
TIE_SHARE = 0.003
#: Two processes with the same code may differ by this share on a GPU, because their memory lies elsewhere: 60 equal
#: pairs on an H200, measured on two days with a working set of six times the L2 cache, differed by up to 0.6%.
PROCESS_SHARE = 0.007
#: The same where the cell's memory is less than `NEAR_CACHE` times the L2 cache, so that its place decides what stays
#: there: 37 of 38 equal pairs, with a working set about as large as L2, differed by up to 1.4%, and one by 2.4%; 12 in
#: one process by up to 0.9%.
NEAR_CACHE_SHARE, NEAR_CACHE = 0.025, 4.0
#: The same on a CPU for cells that took turns on the same cores of their own: 80 equal pairs with one thread, on an
#: idle machine of 2 cores, differed by at most 2.1%, and 20 others by 2.5%.
PINNED_CPU_SHARE = 0.03
#: The same on a CPU for others: 32 equal pairs with 2 threads on 2 cores differed by up to 11%, and 80 pairs of cells
#: of two runs, minutes apart, with one thread on a core of its own, by up to 9.5%.
CPU_PROCESS_SHARE = 0.12
#: Two cells of the same code that took no turns, minutes apart or of two runs, differ by up to this share on the best
#: machine.
RUNS_SHARE = 0.02
#: Hosts differ where the times of equal launches do by more than this factor.
HOST_FACTOR = 1.1
#: Level of the interval beyond which one of two cells is called faster. It is above 95%, since a claim that holds 19
#: times in 20 is false once in 20 equal pairs, and since neighbouring windows are not quite independent.
CLAIM_LEVEL = 0.99
#: The ratio of two cells in turns counts as known where its 95% interval reaches at most this far to either side.
KNOWN_SHARE = 0.01
#: SM clocks differ where their medians do by more than this fraction.
CLOCK_CHANGE = 0.03


def by_component(records: Iterable[Record]) -> dict[str, tuple[Record, ...]]:
    """Group records by component; components and records keep their order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.component, []).append(record)
    return {component: tuple(group) for component, group in groups.items()}


def baseline_name(group: Sequence[Record]) -> str:
    """Return the variant that a component's speedups refer to."""
    return next((record.speedup.vs for record in group if record.speedup is not None), BASELINE)


def correct_baseline(group: Sequence[Record]) -> Record | None:
    """Return the component's baseline if it ran and is correct; without one no speedup may be claimed."""
    name = baseline_name(group)
    return next((record for record in group if record.variant == name and record.is_correct), None)


@dataclass(frozen=True)
class Lost:
    """What others took while a cell was timed: the share of the time (0 to 1), and of what."""

    share: float
    of: Literal["CPU", "GPU"]
    is_estimated: bool = False  # from the number of interruptions: at most so much

    @property
    def disturbs(self) -> bool:
        """Whether the times say as much about the others as about the cell."""
        return self.share > DISTURBED_SHARE

    @property
    def words(self) -> str:
        """What happened, as a clause: other processes took 38% of the CPU."""
        return f"other processes took {'up to ' * self.is_estimated}{self.share:.0%} of the {self.of}"


class Conditions(Protocol):
    """What is known of a timed window."""

    @property
    def cpu_lost_share(self) -> float | None: ...  # noqa: D102 - fields of the record
    @property
    def gpu_lost_share(self) -> float | None: ...  # noqa: D102
    @property
    def run_queue_wait_ms(self) -> float | None: ...  # noqa: D102
    @property
    def descheduled(self) -> int | None: ...  # noqa: D102


def lost_in(conditions: Conditions, timed_ms: float) -> Lost | None:
    """Return what others took of a window of `timed_ms`; None where nothing is known of it.

    Where the record has no share, it is estimated from the run-queue wait, else from the number of interruptions.
    """
    cpu, gpu, switches = conditions.cpu_lost_share, conditions.gpu_lost_share, conditions.descheduled
    if cpu is not None or timed_ms <= 0:
        return _larger(cpu, gpu)
    waits = [conditions.run_queue_wait_ms, None if switches is None else SLICE_MS * switches]
    most = min((wait for wait in waits if wait is not None), default=None)
    return _larger(None if most is None else min(1.0, most / timed_ms), gpu, is_estimated=True)


def _larger(cpu: float | None, gpu: float | None, *, is_estimated: bool = False) -> Lost | None:
    if gpu is not None and gpu > (cpu or 0.0):
        return Lost(gpu, "GPU")
    return None if cpu is None else Lost(cpu, "CPU", is_estimated)


def lost(record: Record) -> Lost | None:
    """Return what others took while a cell was timed; None where the record does not say."""
    wall, conditions, loop = record.metrics.wall_ms, record.metrics.latency, record.realtime
    if loop is not None:
        return _larger(loop.cpu_lost_share, loop.gpu_lost_share)
    return None if wall is None or conditions is None else lost_in(conditions, wall.mean * wall.n)


def lost_in_calls(record: Record) -> Lost | None:
    """Return what others took while calls in a row were timed; None where the record does not say."""
    calls = record.metrics.calls
    return None if calls is None else _larger(calls.cpu_lost_share, calls.gpu_lost_share)


def disturbance(record: Record) -> Lost | None:
    """Return what others took where that is so much that times of the record may not be compared; else None."""
    taken = lost(record)
    return taken if taken is not None and taken.disturbs and len(undisturbed_blocks(record)) < LEAST_VALUES else None


def undisturbed_blocks(record: Record) -> frozenset[int]:
    """Return the blocks in which the record's window was not disturbed; none where it took no turns."""
    if record.turns is None:
        return frozenset()
    windows, samples = record.turns.windows, _by_window(record)
    return frozenset(
        window.block
        for window, part in zip(windows, samples, strict=False)
        if (taken := lost_in(window, sum(part))) is None or not taken.disturbs
    )


def disturbance_explains(faster: Record, slower: Record) -> Lost | None:
    """Return what others took from one of two records, where that could be why their times differ; else None.

    Others lengthen times. They cannot explain the difference where nearly every call of the faster record is shorter
    than any of the slower one would be without them.
    """
    if took_turns(faster, slower):
        if len(_common_blocks(faster, slower)) >= LEAST_VALUES or not (_repeated(faster) or _repeated(slower)):
            return None
        from_faster, from_slower = lost(faster), lost(slower)
    else:
        from_faster, from_slower = disturbance(faster), disturbance(slower)
    taken = max(filter(None, (from_faster, from_slower)), key=lambda each: each.share, default=None)
    one, other = _times(faster), _times(slower)
    if taken is None or one is None or other is None:
        return taken
    return None if one.tail[1] < other.min * (1 - (_most_lost(slower) if from_slower else 0.0)) else taken


def others_explain_miss(record: Record, budget_ms: float) -> bool:
    """Return whether others may be why calls or frames miss a budget: without them, the shortest one would meet it."""
    taken, times = lost(record), _times(record)
    if taken is None or not taken.disturbs or times is None:
        return False
    return times.min * (1 - _most_lost(record)) <= budget_ms


def _most_lost(record: Record) -> float:
    """Return an upper bound, 0 to 1, of the share of a record's time that other processes took.

    Threads that compute on a CPU may wait one after the other, each time delaying all: the waits of all threads add up.
    Of a loop only the longest wait is known.
    """
    taken, wall, conditions = lost(record), record.metrics.wall_ms, record.metrics.latency
    if taken is None:
        return 0.0
    if taken.of == "GPU" or not (record.device or "").startswith("cpu"):
        return taken.share
    if record.realtime is not None:
        return 1.0
    waited_ms = conditions.run_queue_wait_ms if conditions is not None else None
    timed_ms = wall.mean * wall.n if wall is not None else 0.0
    return min(1.0, max(taken.share, waited_ms / timed_ms if waited_ms and timed_ms > 0 else 0.0))


def holds_rate(record: Record, rate: Deadline) -> bool | None:
    """Return whether a loop holds the rate of one of its deadlines; None if others may be why it does not."""
    chunk = (record.realtime.frames_per_tick if record.realtime is not None else None) or 1
    return None if not rate.holds and others_explain_miss(record, chunk * rate.budget_ms) else rate.holds


def _repeated(record: Record) -> bool:
    """Return whether any window of the record was disturbed."""
    return record.turns is not None and len(undisturbed_blocks(record)) < len(record.turns.windows)


def _times(record: Record) -> Summary | None:
    """Return the summary of the wall times of a call, or the frame times of a loop."""
    return record.metrics.wall_ms if record.realtime is None else record.realtime.frame_ms


def can_be_ranked(one: Record, other: Record) -> bool:
    """Return whether the times tell which is faster, beyond other processes, SM clocks and the spread of equal code.

    Cells in turns with too few windows for an interval of their ratio are ranked only if each call of one was
    shorter than any of the other.
    """
    if one.median_ms and other.median_ms and clocks_explain(one, other, one.median_ms / other.median_ms):
        return False
    if same_code_explains(one, other):
        return False
    faster, slower = sorted((one, other), key=lambda record: typical_ms(record) or 0.0)
    if (paired := paired_speedup(one, other)) is not None and paired[1] is None and not _are_apart(faster, slower):
        return False
    return disturbance_explains(faster, slower) is None


def can_be_ranked_across_runs(faster: Record, slower: Record, launch_factor: float = 1.0) -> bool:
    """Return whether two cells of different runs, on devices of one kind, differ by more than equal code would.

    What one run knows of its neighbouring windows is unknown here: the medians must differ by more than two runs of the
    same code do, and their 95% intervals must not meet. `launch_factor` is the time of a launch on the slower cell's
    host over that on the faster one's: where it is beyond `HOST_FACTOR`, it could make a difference as large.
    """
    one, other = _times(faster), _times(slower)
    one_ms, other_ms = typical_ms(faster), typical_ms(slower)
    if not one_ms or not other_ms or one is None or other is None or one.ci95 is None or other.ci95 is None:
        return False
    share = max(same_code_share(faster, slower), launch_factor - 1 if launch_factor > HOST_FACTOR else 0.0)
    if other_ms / one_ms <= 1 + share or one.ci95[1] >= other.ci95[0]:
        return False
    return can_be_ranked(faster, slower)


def without_samples(record: Record) -> Record:
    """Return the record without the samples that comparing it with a cell of another run does not need.

    Those are all of them, unless others disturbed some of its windows, so that the median is that of the rest.
    """
    wall, turns = record.metrics.wall_ms, record.turns
    if wall is not None and (turns is None or len(undisturbed_blocks(record)) in (0, len(turns.windows))):
        wall, turns = replace(wall, samples=()), None if turns is None else replace(turns, windows=())
    return replace(record, metrics=replace(record.metrics, wall_ms=wall, device_ms=None, host_ms=None), turns=turns)


def loop_work(record: Record) -> dict[str, object]:
    """Return what a frame of a loop computes, by name: options that were recorded; empty for a call."""
    loop = record.realtime
    if loop is None:
        return {}
    chunk = None if loop.frames_per_tick == 1 else loop.frames_per_tick
    work = {"pace": loop.pace, "deliver": loop.deliver, "frames in a chunk": chunk, **loop.settings}
    return {name: value for name, value in work.items() if value is not None}


def work_of(record: Record) -> dict[str, object]:
    """Return what a call or a frame computes, by name: only times of equal work can be compared."""
    conditions = record.metrics.latency
    work = {
        **{"target": record.target, "scale": record.scale, "parameters": record.parameters},
        "frames per call": record.frames_per_call,
        "cold": conditions and conditions.cold,
        **loop_work(record),
    }
    return {name: value for name, value in work.items() if value is not None}


def _are_apart(faster: Record, slower: Record) -> bool:
    """Return whether each of several calls of one record was shorter than any of the other's, by more than chance."""
    one, other = _times(faster), _times(slower)
    if one is None or other is None or min(one.n, other.n) < LEAST_VALUES:
        return False
    return one.max * (1 + TIE_SHARE) < other.min


def took_turns(one: Record, other: Record) -> bool:
    """Return whether two cells were timed in turns with each other: one may have ended before the other began."""
    if one.turns is None or other.turns is None or one.turns.began != other.turns.began:
        return False
    return not {window.block for window in one.turns.windows}.isdisjoint(window.block for window in other.turns.windows)


def _common_blocks(one: Record, other: Record) -> frozenset[int]:
    """Return the blocks in which neither of two cells was disturbed."""
    return undisturbed_blocks(one) & undisturbed_blocks(other)


def fastest_correct(group: Iterable[Record]) -> Record | None:
    """Return the correct record with the lowest typical frame or wall time; None where none was timed."""
    timed = [(time, record) for record in group if record.is_correct and (time := typical_ms(record)) is not None]
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


def typical_ms(record: Record) -> float | None:
    """Return the median of the times that comparisons use, in ms: where windows were disturbed, of the others."""
    if len(undisturbed_blocks(record)) in (0, len(record.turns.windows) if record.turns is not None else 0):
        return record.median_ms
    return median(ms for part in comparable_samples(record) for ms in part)


def claimed_speedup(record: Record, group: Sequence[Record]) -> float | None:
    """Return the speedup that may be shown: of a correct record against a correct baseline, beyond that of clocks."""
    baseline = correct_baseline(group)
    if baseline is None or not record.is_correct or baseline.cell == record.cell or record.speedup is None:
        return None
    explained = clocks_explain(baseline, record, record.speedup.wall) or same_code_explains(baseline, record)
    return None if explained else record.speedup.wall


def same_code_share(one: Record, other: Record) -> float:
    """Return the largest relative difference in time of two such cells with equal code: 0.03 is 3%."""
    in_turns = took_turns(one, other)
    if (one.device or "").startswith("cpu"):
        return PINNED_CPU_SHARE if in_turns and _is_pinned(one) and _is_pinned(other) else CPU_PROCESS_SHARE
    share = NEAR_CACHE_SHARE if _is_near_cache(one) or _is_near_cache(other) else PROCESS_SHARE
    return share if in_turns else max(share, RUNS_SHARE)


def _is_pinned(record: Record) -> bool:
    """Return whether the record's process was pinned to cores of its own while it was timed."""
    return record.metrics.latency is not None and bool(record.metrics.latency.pinned_cores)


def _is_near_cache(record: Record) -> bool:
    """Return whether the cell's memory is so small that its addresses decide which data stay in the L2 cache."""
    latency = record.metrics.latency
    share = None if latency is None else latency.l2_share
    in_one_process = record.turns is not None and record.turns.one_process
    return in_one_process or (share is not None and share < NEAR_CACHE)


def same_code_explains(one: Record, other: Record) -> bool:
    """Return whether two times differ, but by no more than those of equal code.

    Of cells that took turns, by the ratio of their windows, in which a drift of the machine cancels out.
    """
    one_ms, other_ms = typical_ms(one), typical_ms(other)
    if not one_ms or not other_ms:
        return False
    paired = paired_speedup(one, other)
    ratio = one_ms / other_ms if paired is None else paired[0]
    return 1 + TIE_SHARE < max(ratio, 1 / ratio) <= 1 + same_code_share(one, other)


def sm_clock(record: Record) -> float | None:
    """Return the median SM clock in MHz while the calls or frames of a record were timed."""
    conditions: ClockConditions | None = record.realtime if record.is_realtime else record.metrics.latency
    return None if conditions is None else conditions.sm_clock_median_mhz


def clock_ratio(one: Record, other: Record) -> float | None:
    """Return the SM clock of `other` over that of `one` where they differ by more than 3%, else None."""
    before, after = sm_clock(one), sm_clock(other)
    if not before or not after or abs(after - before) <= CLOCK_CHANGE * max(before, after):
        return None
    return after / before


def clocks_differ(one: Record, other: Record) -> str:
    """Return `SM clock 1755 against 1980 MHz` where those of two records differ by more than 3%, else nothing."""
    differ = clock_ratio(one, other) is not None
    return f"SM clock {sm_clock(one):.0f} against {sm_clock(other):.0f} MHz" if differ else ""


def clocks_explain(one: Record, other: Record, speedup: float) -> bool:
    """Return whether different SM clocks alone could make `other` faster than `one` by this factor, or slower."""
    ratio = clock_ratio(one, other)
    return ratio is not None and min(1.0, ratio) <= speedup <= max(1.0, ratio)


def intervals_overlap(first: Record, second: Record) -> bool | None:
    """Return whether two wall medians may be equal; None if unknown.

    Where both took turns, their neighbouring windows are compared at `CLAIM_LEVEL`; else the 95% intervals of
    the two medians, which seldom miss each other by chance. What is apart by no more than `TIE_SHARE` is equal.
    """
    if (paired := paired_speedup(first, second, level=CLAIM_LEVEL)) is not None:
        interval, first_is_faster = paired[1], (typical_ms(first) or 0.0) <= (typical_ms(second) or 0.0)
        if interval is None:
            return None
        return interval[0] <= 1 + TIE_SHARE if first_is_faster else interval[1] >= 1 - TIE_SHARE
    one, other = first.metrics.wall_ms, second.metrics.wall_ms
    if one is None or other is None or one.ci95 is None or other.ci95 is None:
        return None
    (low, high), (other_low, other_high) = one.ci95, other.ci95
    return low <= other_high * (1 + TIE_SHARE) and other_low <= high * (1 + TIE_SHARE)


def is_undecided(one: Record, other: Record) -> bool:
    """Return whether more windows in turns could tell which of two cells is faster.

    They may be equal (`intervals_overlap`), and the 95% interval of their ratio reaches further than `KNOWN_SHARE`, and
    further than equal code differs. True also where the ratio has no interval yet.
    """
    paired = paired_speedup(one, other)
    if paired is None or paired[1] is None:
        return True
    reach = (paired[1][1] - paired[1][0]) / (2 * paired[0])
    return intervals_overlap(one, other) is True and reach > max(KNOWN_SHARE, same_code_share(one, other))


def paired_speedup(
    record: Record, other: Record, *, level: float = 0.95
) -> tuple[float, tuple[float, float] | None] | None:
    """Return (wall time of `other` over that of `record`, its interval) by the windows of the same blocks.

    None where they did not take turns with each other.
    """
    from profiling.results.stats import paired_ratio  # numpy, without which most of a report is made

    if not took_turns(record, other):
        return None
    medians, others = _window_medians(record), _window_medians(other)
    undisturbed = _common_blocks(record, other)
    enough = len(undisturbed) >= LEAST_VALUES
    blocks = [block for block in medians if block in others and (block in undisturbed or not enough)]
    if not blocks or min(*medians.values(), *others.values()) <= 0:
        return None
    return paired_ratio([others[block] for block in blocks], [medians[block] for block in blocks], level=level)


def _window_medians(record: Record) -> dict[int, float]:
    """Return the median wall time in milliseconds of each window, by its block."""
    windows = record.turns.windows if record.turns is not None else ()
    return {window.block: median(part) for window, part in zip(windows, _by_window(record), strict=False)}


def _by_window(record: Record) -> tuple[tuple[float, ...], ...]:
    """Return the wall times of each window; none where the windows do not say how many samples each took."""
    samples = samples_by_round(record)
    return samples if record.turns is not None and len(samples) == len(record.turns.windows) else ()


def is_disturbed(record: Record) -> bool:
    """Return whether others took so much of the timed windows that the times say as much about them as of the cell."""
    taken = lost(record)
    return taken is not None and taken.disturbs


def comparable_samples(record: Record) -> tuple[tuple[float, ...], ...]:
    """Return the wall times that comparisons use, a tuple a round or window: of undisturbed ones if enough remain."""
    samples, undisturbed = samples_by_round(record), undisturbed_blocks(record)
    if record.turns is None or len(undisturbed) < LEAST_VALUES:
        return samples
    windows = zip(record.turns.windows, samples, strict=True)
    return tuple(part for window, part in windows if window.block in undisturbed)


def samples_by_round(record: Record, clock: str = "wall_ms") -> tuple[tuple[float, ...], ...]:
    """Return the samples of `clock` (wall_ms, device_ms or host_ms) in milliseconds, a tuple a round or window.

    Empty where there are none; one round where the rounds do not say how many samples each took.
    """
    summary = getattr(record.metrics, clock)
    samples: tuple[float, ...] = () if summary is None else summary.samples
    if not samples:
        return ()
    sizes = [part.n for each in record.rounds or () if (part := getattr(each, clock)) is not None]
    if record.turns is not None:
        sizes = [window.n for window in record.turns.windows]
    if not sizes or min(sizes) <= 0 or sum(sizes) != len(samples):
        return (samples,)
    ends = list(accumulate(sizes))
    return tuple(samples[end - size : end] for end, size in zip(ends, sizes, strict=True))
