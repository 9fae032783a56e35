"""Loops of frames: which frame rates they hold, where the time of a frame goes, slow frames, and memory over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from profiling.errors import printable
from profiling.report.answer import CANNOT_TELL, FRAMES, number_in
from profiling.report.budget import BUDGET, budget_parts, budget_views
from profiling.report.charts import (
    CUT_NOTE,
    Chart,
    Figure,
    Level,
    View,
    axis,
    band,
    envelope,
    figure,
    line,
    points_each,
    series_scale,
)
from profiling.report.doubts import limits_text, marks_of
from profiling.report.format import Value, count_of, decimals, estimate, listed, percent, signed, significant
from profiling.report.latency import COST_COLUMNS
from profiling.report.page import Section
from profiling.report.roofline import stage_ms
from profiling.report.run_data import (
    RunData,
    Samples,
    cell_table,
    cell_words,
    first,
    itself,
    name_of,
    wrong_because,
)
from profiling.report.slow import slow_marks, slow_tables, slow_words, summed_words
from profiling.report.table import Column, Depth
from profiling.results.judgement import holds_rate, lost, others_explain_miss
from profiling.results.loop import Deadline, MemoryTrend, Realtime
from profiling.results.measured import LEAST_FOR
from profiling.results.record import Record

_KINDS = {"allocated": "allocated", "reserved": "reserved", "device_used": "device used", "host_rss": "host RSS"}
_BUFFERS = ("0", "1", "2", "3")
_FRAMES = "#7b8a9c"

LEGEND = (
    "Frame: time from its begin, when its inputs are read (or the previous delivery, if later), until all its outputs "
    "are delivered. Latency: time from its begin until delivery.",
    "Late: longer than the budget; with pace=realtime, delivered later than one budget after it was due. "
    "Holds: at least 99.9% of the frames are in time (all of them, of fewer than 1000).",
    "Underruns, buffer N: frames that a player at the target rate misses if it starts with N frames in its buffer. "
    "Sustained FPS: the highest rate at which 99.9% of the frames are in time.",
    "Stage budget: the means of the stages and `unaccounted` add up to that of a frame where stages run in turn.",
    "Slow: above the steady median by 20% and by 5 median absolute deviations; a frame may have several causes.",
    "Audio real-time factor: seconds of audio generated per second; from 1 on, playback does not run dry.",
)


def realtime_section(data: RunData) -> Section:
    """Return the verdict and the settings of each loop, its tables, and its charts."""
    rows = [record for record in data.loops if record.status != "skipped"]
    lines = [*(f"{name_of(r)}: {verdict(r)}" for r in rows), *_settings(rows)]
    lines += [
        f"{name_of(record)}: the warm-up did not reach the steady state: {'; '.join(record.realtime.unsteady)}."
        for record in rows
        if record.realtime is not None and record.realtime.unsteady
    ]
    slow = [(record, r.slow) for record in rows if (r := record.realtime) is not None and r.slow is not None]
    lines += [words] if (words := summed_words([each for _, each in slow], "frame")) else []
    steadiness = [f"{name_of(r)}: {words}." for r in rows if r.is_correct and (words := _steadiness(r))]
    loops = [(record, record.realtime) for record in rows if record.realtime is not None]
    parts = [(record, *item) for record, loop in loops for item in budget_parts(loop).items()]
    deadlines = [(record, deadline) for record in rows for deadline in record.deadlines]
    trends = [
        (r, words, loop.memory[kind]) for r, loop in loops for kind, words in _KINDS.items() if kind in loop.memory
    ]
    leaks = any(trend.leak for _, _, trend in trends)
    tables = (
        cell_table(FRAMES, _FRAME_COLUMNS, rows, itself),
        cell_table("Stage budget, medians", BUDGET, parts, first, keys=3),
        cell_table("Deadlines", _DEADLINES, deadlines, first, depth="report"),
        *slow_tables(slow, "frame", "console"),
        cell_table("Memory over the frames", _MEMORY, trends, first, keys=3, depth="console" if leaks else "report"),
    )
    series, unread = data.frame_times
    views = [View(cell_words(each.record, component=True), _frames_figure(each, len(series))) for each in series]
    longest = max((each.values.size for each in series), default=0)
    note = f"Marks: the slow frames that the record lists, by cause. Shaded: before the times settled. {CUT_NOTE}"
    if longest > points_each(len(series)):
        note += f" Of more than {points_each(len(series))} frames the lowest and highest of each stretch are drawn."
    charts = (
        Chart("frames", "Frame time over frames", views, note),
        Chart("budget", "Stage budget", budget_views(loops), "Medians of each stage; correct loops only."),
    )
    legend = (*steadiness, *unread, *LEGEND) if rows else ()
    return Section("realtime", "Frames against the deadline", tuple(map(printable, lines)), legend, tables, charts)


def verdict(record: Record) -> str:
    """Return in words whether a loop holds its frame rate, by how much it misses it, and its longest stage."""
    loop = record.realtime
    if not record.is_correct:
        reason = f": {record.reason}" if record.reason else ""
        return _joined(f"{wrong_because(record)}, its times do not count{reason}", _leaks(record))
    if loop is None or loop.holds is None or not loop.target_fps:
        return _joined("no frame was compared with a deadline", _leaks(record))
    return _joined(
        f"{loop.target_fps:g} FPS: {_target_words(record, loop)}",
        _budget_words(loop),
        _rate_words(record),
        _first_frame(loop),
        _longest_stage(record),
        slow_words(loop),
        _growth(loop),
        _leaks(record),
        _spikes(loop),
    )


def _target_words(record: Record, loop: Realtime) -> str:
    """Return yes, no, or "cannot tell" with its reason: whether the target rate is held."""
    taken = lost(record)
    if not loop.holds and taken is not None and others_explain_miss(record, loop.budget_ms):
        return f"{CANNOT_TELL}, {taken.words}"
    if loop.holds and (rate := loop.too_slow_fps) is not None:
        return f"no, the application delivers {rate:.3g} frames/s"
    return "yes" if loop.holds else "no"


def _rate_words(record: Record) -> str:
    """Name the rates that are held, those that are not, and those for which the measurement cannot tell."""
    rates = {f"{deadline.fps:g}": holds_rate(record, deadline) for deadline in record.deadlines}
    held, missed, unknown = ([fps for fps, each in rates.items() if each is kind] for kind in (True, False, None))
    loop = record.realtime
    alone = loop is not None and loop.holds and loop.too_slow_fps is not None  # in time, but others lie between them
    words = f"{'Its frames alone hold' if alone else 'Holds'} {listed(held)} FPS" if held else ""
    if missed:
        words = f"{words}, not {listed(missed, last='or')}" if held else f"Holds none of {listed(missed)} FPS"
        words = words if held or len(missed) > 1 else f"Does not hold {missed[0]} FPS"
    unsure = f"{CANNOT_TELL} of {listed(unknown)} FPS" if unknown else ""
    sentence = "; ".join(filter(None, (words, unsure)))
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _joined(*sentences: str) -> str:
    return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence)


def _budget_words(loop: Realtime) -> str:
    """Say how many frames miss their budget, and by how much."""
    frame, budget = loop.frame_ms, loop.budget_ms
    chunk = loop.frames_per_tick or 1
    unit = "frame" if chunk == 1 else f"chunk of {chunk} frames"
    if frame is None:
        return ""
    # As many decimals as tell time and budget apart: 16.7 of 16.7 ms would explain no miss.
    name, tail_ms = frame.tail
    places = next((n for n in (1, 2, 3) if f"{tail_ms:.{n}f}" != f"{budget:.{n}f}"), 1)
    times = f"p50 {frame.p50:.{places}f}, {name} {tail_ms:.{places}f}"
    late, limit = loop.late, f"{budget:.{places}f} ms budget"
    if not late:
        units = "frames" if chunk == 1 else f"chunks of {chunk} frames"
        return f"All {loop.frames:,} {units} meet their {limit} ({times})" if late == 0 else f"{times} of a {limit}"
    means = f", which is {loop.miss}" if loop.miss else ""
    if late == loop.frames:
        return f"Every {unit} misses its {limit} ({times}){means}"
    stall = loop.deadlines.get(f"{loop.target_fps:g}")
    longest = f", the longest by {stall.longest_stall_ms:.1f} ms" if stall is not None else ""
    number = f"{late:,} of {count_of(loop.frames, 'frame' if chunk == 1 else 'chunk')}"
    return f"{number} miss their {limit} ({times}){longest}{f'; each is {loop.miss}' if loop.miss else ''}"


def _first_frame(loop: Realtime) -> str:
    """Say when the first frame of a session is there, where frames come in chunks."""
    if loop.first_frame_ms is None or (loop.frames_per_tick or 1) == 1:
        return ""
    return f"The first frame of a session is there after {significant(loop.first_frame_ms, 3)} ms"


def _longest_stage(record: Record) -> str:
    """Name the stage that takes the largest part of a frame."""
    loop = record.realtime
    if loop is None or loop.frame_ms is None:
        return ""
    times = {stage: ms for stage in loop.stages if (ms := stage_ms(record, stage)) is not None}
    if len(times) < 2:
        return ""
    longest = max(times, key=lambda stage: times[stage])
    places = max(1, decimals(times[longest], 3))
    return f"The stage {longest} takes {times[longest]:.{places}f} of {loop.frame_ms.p50:.{places}f} ms"


def _growth(loop: Realtime) -> str:
    if loop.slope is None or not loop.slope.growing:
        return ""
    stages = [
        f"{stage} on the {clock} {signed(ms, lambda size: significant(size, 3))}"
        for stage, growth in loop.slope.stages.items()
        for clock, ms in (("host", growth.host), ("device", growth.device))
        if ms is not None
    ]
    return f"Frames grow longer by {_slope(loop)}{f', with it {listed(stages)}' if stages else ''}"


def _slope(loop: Realtime) -> str:
    if loop.slope is None:
        return ""
    value, low, high = (
        signed(ms, lambda size: significant(size, 3)) for ms in (loop.slope.us_per_frame, *loop.slope.ci95)
    )
    return f"{value} µs a frame [{low}, {high}]"


def _leaks(record: Record) -> str:
    """Name the kinds of memory that leak, and how fast."""
    memory = record.realtime.memory if record.realtime is not None else {}
    leaks = [
        f"{words} +{significant(memory[kind].bytes_per_frame)} bytes a frame"
        for kind, words in _KINDS.items()
        if kind in memory and memory[kind].leak
    ]
    return f"It leaks memory: {', '.join(leaks)}" if leaks else ""


def _spikes(loop: Realtime) -> str:
    spikes = loop.spikes
    if spikes is None:
        return ""
    return f"A slow frame every {spikes.period} frames, {count_of(spikes.count, 'time')}, first at frame {spikes.first}"


def _settings(rows: Sequence[Record]) -> list[str]:
    """Return the settings of the loops, a line for each combination of settings."""
    groups: dict[str, list[str]] = {}
    for record in rows:
        loop = record.realtime
        if loop is None:
            continue
        settings = [f"{loop.frames:,} frames"]
        settings += [f"{loop.warmup_frames:,} warm-up frames"] if loop.warmup_frames is not None else []
        chunk = loop.frames_per_tick or 1
        settings += [f"in chunks of {chunk}"] if chunk > 1 else []
        options = {"schedule": loop.schedule, "pace": loop.pace, "deliver": loop.deliver}
        work = {name: value for name, value in loop.settings.items() if name.partition(" ")[0] not in loop.choices}
        settings += [f"{name} {value}" for name, value in {**options, **work}.items() if value not in (None, "off")]
        groups.setdefault(", ".join(settings), []).append(record.variant)
    return [f"{'Settings' if len(groups) == 1 else listed(names)}: {words}." for words, names in groups.items()]


def _steadiness(record: Record) -> str:
    """Return when frame times settled, their growth, the time outside the stages, and the sound window."""
    loop = record.realtime
    if loop is None:
        return ""
    parts = []
    if loop.steady is not None:
        start = f"steady from frame {loop.steady.from_frame}" if loop.steady.settled else "frame times never settled"
        enough = loop.frames - loop.steady.from_frame >= LEAST_FOR["p99"]
        p99 = f", p99 {significant(loop.steady.p99)} ms" if enough else ""
        parts.append(f"{start} (p50 {significant(loop.steady.p50)} ms{p99})")
    if loop.slope is not None and not loop.slope.growing:
        parts.append(f"slope {_slope(loop)}: not growing by 1% over the run")
    if loop.budget is not None and loop.budget.overhead_ms is not None:
        part = f" ({percent(loop.budget.overhead_share)})" if loop.budget.overhead_share is not None else ""
        parts.append(
            f"{significant(loop.budget.overhead_ms, 3)} ms{part} of a frame outside its longest path of stages"
        )
    if loop.gap_ms is not None and loop.pace != "realtime":
        gap, most = (significant(ms, 3) for ms in (loop.gap_ms.p50, loop.gap_ms.max))
        what = "outside frame()" if loop.pace == "application" else "overhead of the measurement"
        parts.append(f"{gap} ms between two frames (at most {most} ms) are {what}")
    parts += [f"{stage} chose {_chosen(report)}" for stage, report in loop.choices.items()]
    if loop.input_age_ms:
        ages = (
            f"{source} {significant(age.p50)} ms, {age.tail[0]} {significant(age.tail[1])} ms"
            for source, age in loop.input_age_ms.items()
        )
        parts.append(f"age of the inputs at delivery: {listed(list(ages))}")
    if loop.stages and loop.frames_per_tick is not None:
        outside = "" if loop.deliver == "host" else ", not the copy to the host"
        parts.append(f"a frame's time holds {listed(loop.stages)}{outside}")
    if loop.sm_clock_median_mhz is not None:
        parts.append(
            f"SM clock {loop.sm_clock_median_mhz:.0f} MHz ({loop.sm_clock_min_mhz} to {loop.sm_clock_max_mhz})"
        )
    if limits := limits_text(record):
        parts.append(f"clocks limited by: {limits}")
    return printable("; ".join(parts))


def _chosen(report: Mapping[str, Any]) -> str:
    """Return what a stage has chosen before it was prepared, and what it measured for that."""
    words = []
    for name, value in report.items():
        items = value.items() if isinstance(value, Mapping) else ()
        text = ", ".join(f"{key}: {_number(each)}" for key, each in items) if items else _number(value)
        words.append(f"{name.replace('_', ' ')} {f'({text})' if items else text}")
    return ", ".join(words)


def _number(value: Any) -> str:
    return significant(value, 3) if isinstance(value, float) else str(value)


def _summary(title: str, clock: str, key: str, depth: Depth = "console") -> Column[Record]:
    def read(record: Record) -> Value | None:
        return number_in(getattr(record.realtime, clock, None), key)

    return Column(title, read, "ms", measured=True, depth=depth)


def _loop(read: Callable[[Realtime], Value | None]) -> Callable[[Record], Value | None]:
    return lambda record: read(record.realtime) if record.realtime is not None else None


def _held(record: Record) -> str | None:
    if not record.deadlines or not record.is_correct:
        return None
    rates = {f"{deadline.fps:g}": holds_rate(record, deadline) for deadline in record.deadlines}
    held = ", ".join(fps for fps, is_held in rates.items() if is_held)
    if None in rates.values():
        return f"{held} or more" if held else CANNOT_TELL
    return held or "none"


_FRAME_COLUMNS = (
    Column[Record]("status", lambda record: wrong_because(record) or None),
    *(_summary(f"frame {key}", "frame_ms", key) for key in ("p50", "p95", "p99", "max")),
    Column[Record]("late", _loop(lambda loop: loop.late), "count", measured=True, unit="frames"),
    Column[Record]("holds", _held, unit="FPS"),
    Column[Record]("sustained FPS", _loop(lambda loop: loop.sustained_fps), "fps", measured=True),
    Column[Record]("audio real-time factor", _loop(lambda loop: loop.audio_rtf), "ratio", measured=True),
    Column[Record]("conditions", marks_of, "marks", wrap=22),
    *(_summary(f"latency {key}", "latency_ms", key, depth="report") for key in ("p50", "p99")),
    Column[Record]("video FPS", _loop(lambda loop: loop.wall_fps), "fps", measured=True, depth="report"),
    *(replace(column, depth="report") for column in COST_COLUMNS),
)


_Rate = tuple[Record, Deadline]


def _underruns(size: str) -> Callable[[_Rate], float | None]:
    def read(row: _Rate) -> float | None:
        loop = row[0].realtime
        return loop.underruns.get(size) if loop is not None and loop.target_fps == row[1].fps else None

    return read


_DEADLINES = (
    Column[_Rate]("FPS", lambda row: row[1].fps, "fps"),
    Column[_Rate]("budget", lambda row: row[1].budget_ms, "ms"),
    Column[_Rate]("holds", lambda row: holds_rate(*row) if row[0].is_correct else None, "flag"),
    Column[_Rate]("late", lambda row: row[1].misses, "count", measured=True, unit="frames"),
    Column[_Rate]("longest run", lambda row: row[1].longest_run, "count", measured=True, unit="frames"),
    Column[_Rate]("longest stall", lambda row: row[1].longest_stall_ms, "ms", measured=True),
    *(Column[_Rate](f"underruns, buffer {size}", _underruns(size), "count", measured=True) for size in _BUFFERS),
)

_Trend = tuple[Record, str, MemoryTrend]
_MEMORY = (
    Column[_Trend]("kind", lambda row: row[1]),
    *(Column[_Trend](key, lambda row, key=key: getattr(row[2], key), "MiB") for key in ("first", "last", "min", "max")),
    Column[_Trend]("growth", lambda row: estimate(row[2].bytes_per_frame, row[2].ci95), "number", unit="bytes/frame"),
    Column[_Trend]("leak", lambda row: row[2].leak, "flag"),
)


def _frames_figure(each: Samples, series: int) -> Figure:
    """Draw the frame times of a loop, its deadline, and its slow frames by cause."""
    loop, places = each.record.realtime, envelope(each.values, points_each(series))
    traces = [line("frame time", places, each.values[places], _FRAMES, width=1)]
    levels: list[Level] = []
    shapes = []
    budget_ms = loop.budget_ms if loop is not None and loop.target_fps else None
    ends, top = series_scale([each.values, *([np.array([budget_ms])] if budget_ms is not None else [])])
    if loop is not None:
        traces += slow_marks(loop, top)
        levels = [(budget_ms, f"deadline, {loop.target_fps:g} FPS")] if budget_ms is not None else []
        settled = loop.steady is None or loop.steady.settled
        end = (loop.steady.from_frame if loop.steady is not None else 0) if settled else each.values.size
        shapes = [band("x", 0, end)] if end else []
    y = axis("frame time, ms", **ends)
    return figure(traces, axis("frame", rangemode="tozero"), y, levels, shapes=shapes)
