"""What may be said of records: hands their numbers to the judge, so that a record gives the same verdict everywhere.

A record is compared by the medians of its windows (`Turns`), by those of its rounds, or by its samples in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median
from typing import Literal

import msgspec
import numpy as np

from profiling.results import judge
from profiling.results.judge import Answer, Cell, Holds, HoldsAnswer, Line, Pair, Ranking, Windows
from profiling.results.measured import LATE, LEAST_VALUES, Deadline, Interference, Interval, Speedup, Spread, Window
from profiling.results.record import BASELINE, Record
from profiling.results.stats import BATCHES, batch_medians

#: The host sets the pace where a call returns after this share of its wall time. Of eager forward passes on H200s that
#: returned after 60% of it or more, kernels filled 75% of the time at most; of those that returned after 40%, over 90%.
_HOST_SHARE = 0.5


def by_component(records: Iterable[Record]) -> dict[str, tuple[Record, ...]]:
    """Group records by component; components and records keep their order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.component, []).append(record)
    return {component: tuple(group) for component, group in groups.items()}


def correct_baseline(group: Sequence[Record]) -> Record | None:
    """Return the component's baseline if it ran and is correct; without one no speedup may be claimed."""
    return next((record for record in group if record.variant == BASELINE and record.is_correct), None)


@dataclass(frozen=True)
class Taken:
    """What others took while a cell was timed: the share of the time (0 to 1), and of what."""

    share: float
    of: Literal["CPU", "GPU"]

    @property
    def is_named(self) -> bool:
        """Whether it is so much that it stands beside the times."""
        return self.share > judge.NAMED_SHARE

    @property
    def words(self) -> str:
        """The fact: 38% of the CPU went to other processes."""
        return f"{self.share:.0%} of the {self.of} went to other processes"


def taken(conditions: Interference | None) -> Taken | None:
    """Return what others took of the CPU or of the GPU, whichever is more; None where it is not known."""
    if conditions is None:
        return None
    cpu, gpu = conditions.cpu_lost_share, conditions.gpu_lost_share
    if gpu is not None and gpu > (cpu or 0.0):
        return Taken(gpu, "GPU")
    return None if cpu is None else Taken(cpu, "CPU")


def spread_kind(record: Record) -> str:
    """Return what decides how much equal code differs between processes: a key of `judge.DEFAULT_SPREADS`."""
    latency, wall, host = record.metrics.latency, record.metrics.wall_ms, record.metrics.host_ms
    return kind_of(
        record.device or "cpu",
        captured=is_captured(record),
        pinned=latency is not None and bool(latency.pinned_cores),
        host_share=host.p50 / wall.p50 if wall is not None and host is not None else 1.0,
    )


def is_captured(record: Record) -> bool:
    """Return whether calls replay CUDA graphs, of the capture or of the compiler."""
    captured = record.graphs is not None or any(each.kind == "capture" for each in record.recipe or ())
    return captured or bool(record.prepare is not None and record.prepare.cudagraph_captures)


def is_compiled(record: Record) -> bool:
    """Return whether a compiler made the code of its calls, also the module's own; another run compiles it again."""
    by_recipe = any(each.kind == "compiler" for each in record.recipe or ())
    return by_recipe or bool(record.prepare is not None and record.prepare.graphs)


def kind_of(device: str, *, captured: bool, pinned: bool, host_share: float) -> str:
    """Return the kind of a cell; `host_share` is the time until a call returns over its wall time."""
    if not device.startswith("cuda"):
        return "CPU, pinned" if pinned else "CPU"
    return "captured" if captured else "device-bound" if host_share < _HOST_SHARE else "host-bound"


def spread_of(record: Record) -> Spread:
    """Return the spread of equal code between processes that its run has stored.

    Where it stored none, or not of which kind of cell it is, it is the default, corrected by the record's own controls.
    """
    stored, default = record.turns and record.turns.spread, judge.DEFAULT_SPREADS[spread_kind(record)]
    if stored is not None and stored.kind is not None:
        return stored
    placements = placements_of(record)
    return default.taught(judge.control_pairs([Cell(placements, default)])) if placements else default


def placements_of(record: Record) -> tuple[Windows, ...]:
    """Return the windows of each placement in which a record was timed; none where it was not timed above 0 ms."""
    turns = record.turns
    if turns is not None and turns.windows:
        session = f"{record.component} {turns.began}"
        timed = (turns.windows, *(each.windows for each in turns.controls))
        return tuple(windows_of(each, session) for each in timed if min(window.p50 for window in each) > 0)
    share = known.share if (known := taken(record.conditions)) is not None else 0.0
    if record.realtime is not None and record.realtime.windows_ms:
        return (Windows.of(record.realtime.windows_ms, taken=share),)
    parts = [part for part in samples_by_round(record) if part]
    if not parts:
        median_ms = record.median_ms or 0.0
        return (Windows.of([median_ms], taken=share),) if median_ms > 0 else ()
    batches = [batch_medians(part, BATCHES if len(parts) < LEAST_VALUES else 1) for part in parts]
    return tuple(Windows.of(each, taken=share) for each in batches if min(each) > 0)


def windows_of(windows: Sequence[Window], session: str) -> Windows:
    """Return windows as the judge takes them; those of a session took turns with each other."""
    shares = [max(each.cpu_lost_share or 0.0, each.gpu_lost_share or 0.0) for each in windows]
    least = [each.p50 if each.min is None else each.min for each in windows]
    return Windows.of([each.p50 for each in windows], [each.block for each in windows], shares, session, least)


def samples_by_round(record: Record) -> tuple[tuple[float, ...], ...]:
    """Return the wall times of calls in milliseconds, a tuple a round; one where it was not repeated."""
    samples = () if record.metrics.wall_ms is None else record.metrics.wall_ms.samples
    ends = list(accumulate(each.wall_ms.n for each in record.rounds or () if each.wall_ms is not None))
    if not ends or not samples:
        return (samples,) if samples else ()
    return tuple(samples[begin:end] for begin, end in pairwise((0, *ends)))


def cell_of(record: Record) -> Cell | None:
    """Return what the judge compares of a record; None where it is not correct or was not timed."""
    placements = placements_of(record) if record.is_correct else ()
    return Cell(placements, spread_of(record), is_compiled(record)) if placements else None


def compare_records(one: Record, other: Record) -> Pair | None:
    """Return the ratio of two records' times, one over other; None where one is not correct or was not timed."""
    first, second = cell_of(one), cell_of(other)
    return None if first is None or second is None else judge.compare(first, second)


def speedup(record: Record, group: Sequence[Record]) -> Pair | None:
    """Return the time of the correct baseline of `group` over that of a record; None where none may be claimed.

    Of the record that leads, it is the pair by which it leads. The others are judged together (Holm), among as many
    pairs as the leader was chosen from: none of a dozen equal variants is called faster by chance.
    """
    baseline = correct_baseline(group)
    pair = None if baseline is None or record is baseline else compare_records(baseline, record)
    tests = len(group) * (len(group) - 1) // 2
    if (
        baseline is None
        or pair is None
        or pair.answer() not in ("faster", "slower")
        or pair.p_value <= judge.FALSE / tests
    ):
        return pair  # the answer is the same among any of so many
    ranked = ranking(group)
    if ranked is not None and ranked.leader == record.variant:
        return ranked.pairs[baseline.variant]
    found = {each.cell: compare_records(baseline, each) for each in group if each is not baseline}
    return judge.judged({cell: each for cell, each in found.items() if each is not None}, tests=tests)[record.cell]


def as_shown(pair: Pair) -> Pair:
    """Return the pair with its own 95% interval, not the wider one of several comparisons, if its answer stays."""
    alone = replace(pair, level=1 - judge.FALSE)
    return alone if alone.answer() == pair.answer() else pair


def ranking(group: Iterable[Record]) -> Ranking | None:
    """Rank the correct records of a component by variant; None where none was timed."""
    cells = {record.variant: cell for record in group if (cell := cell_of(record)) is not None}
    return judge.rank(cells) if cells else None


def fastest_correct(group: Iterable[Record]) -> Record | None:
    """Return the correct record that leads its group; None where none was timed."""
    records = tuple(group)
    ranked = ranking(records)
    return None if ranked is None else next(each for each in records if each.variant == ranked.leader)


def answer_on(record: Record, group: Sequence[Record]) -> Answer | None:
    """Return whether a record is faster or slower than its baseline, the same, or undecided; None without one."""
    pair = speedup(record, group)
    if pair is None:
        return None
    answers: dict[Answer, Answer] = {"slower": "faster", "faster": "slower"}  # the pair is baseline over record
    return answers.get(pair.answer(), pair.answer())


def interval_of(record: Record) -> Interval | None:
    """Return the 95% interval of a record's typical time in ms, of the process that was timed."""
    placements, summary = placements_of(record), record.summary
    if not placements or summary is None:
        return None
    windows = placements[0]
    if len(placements) >= LEAST_VALUES:  # rounds
        windows = Windows.of([median(each.ms) for each in placements], taken=float(windows.taken.mean()))
    return judge.call_interval(windows, summary.min, summary.p50, summary.max)


def drift_of(record: Record) -> Line | None:
    """Return how the times of a cell changed while it was timed, in ms; None where no change can be claimed."""
    placements = placements_of(record)
    return judge.drift(placements[0]) if placements else None


def holds_rate(record: Record, deadline: Deadline) -> Holds | None:
    """Judge whether a record holds a frame rate, beside what others took of it; None where it was not timed.

    An application that delivers fewer frames a second holds no such rate.
    """
    summary = record.summary
    if summary is None or not record.is_correct:
        return None
    allowed, loop = record.late or LATE, record.realtime
    looks = 1 if record.turns is None else record.turns.rate_looks
    said = judge.holds(deadline.misses, deadline.bursts, summary.n, allowed, looks)
    if loop is not None and loop.too_slow_fps(deadline.fps) is not None:
        return replace(said, answer="no")
    others, alone = taken(record.conditions), deadline.alone or 0
    if spread_kind(record) in judge.THREADED:  # threads wait for each other: what was taken of a call is not known
        alone = 0
    without = judge.holds(alone, min(deadline.bursts, alone), summary.n, allowed, looks)
    return judge.holds_beside(said, others.share if others else 0.0, summary.min, deadline.budget_ms, without)


def judged_rates(record: Record) -> dict[float, Holds]:
    """Return whether a record holds each frame rate that it was compared with, the lowest first; none if not timed."""
    said = {deadline.fps: holds_rate(record, deadline) for deadline in record.deadlines}
    return {fps: each for fps, each in said.items() if each is not None}


def keeps_audio(record: Record) -> Answer | None:
    """Return whether sound is made slower than it is played, or faster, the same, or undecided; None without sound.

    A loop that is paced at the rate of its sound keeps up where it holds that rate. Else the rate is that of all
    frames, known as well as the typical frame; where too few windows were kept, the shortest and the longest bound it.
    """
    loop, placements, frames = record.realtime, placements_of(record), record.summary
    if loop is None or not loop.audio_rtf or not record.is_correct or frames is None or not placements:
        return None
    media_fps = loop.wall_fps / loop.audio_rtf if loop.wall_fps else None
    paced = [
        each for each in record.deadlines if loop.pace == "realtime" and media_fps and np.isclose(each.fps, media_fps)
    ]
    if paced and (said := holds_rate(record, paced[0])) is not None:
        # The time to make a second of sound, compared with a second.
        answers: dict[HoldsAnswer, Answer] = {"yes": "same", "no": "slower", "undecided": "undecided"}
        return answers[said.answer]
    low, high = judge.time_interval(placements[0]) or (frames.min, frames.max)
    time, typical = 1 / loop.audio_rtf, float(np.exp(Cell(placements, spread_of(record)).log_ms))
    return judge.claim(float(np.log(time)), (time * low / typical, time * high / typical))


def work_of(record: Record) -> dict[str, object]:
    """Return what a call or a frame computes, by name: only times of equal work can be compared."""
    conditions, loop = record.metrics.latency, record.realtime
    work = {
        **{"target": record.target, "scale": record.scale, "parameters": record.parameters, "inputs": record.inputs},
        "frames per call": record.frames_per_call,
        "cold": conditions and conditions.cold,
    }
    if loop is not None:
        chunk = None if loop.frames_per_tick == 1 else loop.frames_per_tick
        work |= {"pace": loop.pace, "deliver": loop.deliver, "frames in a chunk": chunk}
        work |= {name: "off" if value is None else value for name, value in loop.work.items()}
    return {name: value for name, value in work.items() if value is not None}


def with_speedup(record: Record, baseline: Record | None) -> Record:
    """Add the speedup, the wall time of the baseline over that of `record`, if both are correct and timed above 0."""
    if baseline is None or record.variant == BASELINE or record.is_realtime:
        return record
    pair = compare_records(baseline, record)
    if pair is None:
        return record
    calls = break_even_calls(record, baseline) if pair.answer() == "slower" else None
    ratio = Speedup(vs=BASELINE, wall=pair.ratio, break_even_calls=calls)
    return msgspec.structs.replace(record, speedup=ratio)


def break_even_calls(record: Record, baseline: Record) -> int | None:
    """Return the number of calls after which the variant's longer preparation has paid off; None if it never does.

    A call takes the time of calls in a row if that was measured, else the median wall time.
    """
    if record.prepare is None or baseline.prepare is None:
        return None
    call_s, baseline_call_s = _call_seconds(record), _call_seconds(baseline)
    if call_s is None or baseline_call_s is None or call_s >= baseline_call_s:
        return None
    return max(0, math.ceil((record.prepare.from_cold - baseline.prepare.from_cold) / (baseline_call_s - call_s)))


def _call_seconds(record: Record) -> float | None:
    if record.metrics.calls is not None:
        return record.metrics.calls.seconds_per_call
    return None if record.wall_p50 is None else record.wall_p50 / 1e3
