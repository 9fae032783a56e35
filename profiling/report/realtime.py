"""Loops of frames: which frame rates they hold, where the time of a frame goes, slow frames, growth and leaks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiling.errors import InputError, printable
from profiling.report.answer import allowed_late, holds_words
from profiling.report.cells import UNDECIDED
from profiling.report.charts import POINTS, Chart, Figure, Series, envelope
from profiling.report.format import MINUS, count_of, decimals, listed, percent, significant, times
from profiling.report.latency import slow_marks, slow_table, summed_words
from profiling.report.page import Section
from profiling.report.roofline import stage_ms
from profiling.report.run_data import RunData, cell_table, cell_words, wrong_because
from profiling.report.table import Column, Depth, columns
from profiling.results.field import described
from profiling.results.frames import Array, read_frames, series_file
from profiling.results.loop import BudgetPart, Realtime
from profiling.results.measured import LATE, MemoryKinds, Summary
from profiling.results.record import Record
from profiling.results.verdicts import judged_rates, keeps_audio

_FRAMES = "#7b8a9c"

_LEGEND = (
    "Frame: time from its begin, when its inputs are read (or the previous delivery, if later), until all its outputs "
    "are delivered. Late: longer than the budget; with pace=realtime, delivered a budget or more after it was due. "
    "Holds: at most {late} of the frames are late, by the upper 95% bound of their share."
)


def realtime_section(data: RunData) -> Section:
    """Return the verdict on each loop, where a frame's time goes, slow frames, and the chart of all frames."""
    rows = [record for record in data.loops if record.status != "skipped"]
    loops = [(record, record.realtime) for record in rows if record.realtime is not None]
    lines = [f"{record.name}: {verdict(record)}" for record in rows]
    lines += [
        f"{record.name}: the warm-up did not reach the steady state: {'; '.join(loop.unsteady)}."
        for record, loop in loops
        if loop.unsteady
    ]
    slow = [(record, loop.slow) for record, loop in loops if loop.slow is not None]
    lines += [words] if (words := summed_words(slow, "frame")) else []
    parts = [part for record, loop in loops for part in _parts(record, loop)]
    depth: Depth = "console" if len(loops) == 1 else "report"  # of several the verdicts name the longest stage
    tables = cell_table("Stage budget, medians", _BUDGET, parts, keys=3, depth=depth), slow_table(slow, "frame")
    series, unread = _frame_times(data)
    drawings = {cell_words(r, component=True): _frames_figure(r, frames) for r, frames in series}
    longest = max((frames.size for _, frames in series), default=0)
    note = "Marks: slow frames by cause; at the edge, longer than the axis. Shaded: before the times settled."
    if longest > POINTS:
        note += f" Of more than {POINTS} frames the lowest and highest of each stretch are drawn."
    charts = (Chart("frames", "Frame time over frames", drawings, note),)
    lines = list(map(printable, lines))
    legend = _LEGEND.format(late=allowed_late(rows))
    return Section("realtime", "Frames against the deadline", lines, (*unread, legend), tables, charts)


def verdict(record: Record) -> str:
    """Return in words whether a loop holds its frame rate, by how much it misses it, and its longest stage."""
    loop, frame = record.realtime, record.summary
    if not record.is_correct:
        timed = f"{loop.frames:,} frames were timed" if loop is not None and loop.frames else ""
        return _joined(f"{wrong_because(record)}, its times do not count", timed, _leaks(record))
    if loop is None or frame is None or loop.late is None or not loop.target_fps:
        return _joined("no frame was compared with a deadline", _leaks(record))
    first_ms = loop.first_frame_ms if (loop.frames_per_tick or 1) > 1 else None  # where frames come in chunks
    return _joined(
        f"{loop.target_fps:g} FPS: {_target_words(record, loop, frame)}",
        _budget_words(record, loop, frame),
        _rate_words(record, loop, frame),
        _audio(record, loop),
        "" if first_ms is None else f"The first frame of a session is there after {significant(first_ms, 3)} ms",
        _longest_stage(record, loop, frame),
        _growth(loop),
        _leaks(record),
    )


def _target_words(record: Record, loop: Realtime, frame: Summary) -> str:
    """Return whether the target rate is held: yes, no, or undecided, with the number of late frames."""
    said = judged_rates(record).get(loop.target_fps)
    if said is None:
        return UNDECIDED
    rate = loop.too_slow_fps(loop.target_fps)
    if rate is not None and frame.p50 <= loop.budget_ms:
        return f"not held, the application delivers {rate:.3g} frames/s"
    if said.answer == "yes":
        return f"yes, {said.late} of {said.n:,} late (at most {percent(said.most)})"
    return holds_words(said, "frames") if said.answer == UNDECIDED else "not held"


def _rate_words(record: Record, loop: Realtime, frame: Summary) -> str:
    """Return which rates are held, which are not, and for which the application delivers too few frames to tell."""
    rates: dict[str, list[str]] = {"yes": [], "no": [], UNDECIDED: []}
    wanted, delivered, not_tried = 0, 0.0, list[str]()
    for fps, said in judged_rates(record).items():
        rate = loop.too_slow_fps(fps)
        if rate is not None and frame.p50 <= loop.budget_ms * loop.target_fps / fps:
            delivered = rate
            not_tried += [f"{fps:g}"] if fps != loop.target_fps else []
        elif (said.answer, fps) != (UNDECIDED, loop.target_fps):  # which the first sentence says
            rates[said.answer].append(f"{fps:g}")
            wanted = max(wanted, said.wanted)
    words = ("Holds", "Does not hold", f"{UNDECIDED.capitalize()}:")
    more = f" ({wanted:,} frames more would tell)" if wanted else ""
    sentences = [
        f"{kind} {listed(of_kind)} FPS{more * (kind == words[-1])}"
        for kind, of_kind in zip(words, rates.values(), strict=True)
        if of_kind
    ]
    if not_tried:
        sentences.append(f"Not tried: {listed(not_tried)} FPS, the application delivers {delivered:.3g} frames/s")
    return ". ".join(sentences)


def _joined(*sentences: str) -> str:
    return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence)


def _budget_words(record: Record, loop: Realtime, frame: Summary) -> str:
    budget, unit = loop.budget_ms, "frame" if (loop.frames_per_tick or 1) == 1 else "chunk"
    # As many decimals as tell time and budget apart: 16.7 of 16.7 ms would explain no miss.
    name, tail_ms = frame.tail
    places = next((n for n in (1, 2, 3) if f"{tail_ms:.{n}f}" != f"{budget:.{n}f}"), 1)
    times = f"p50 {frame.p50:.{places}f}, {name} {tail_ms:.{places}f}"
    if loop.held_ms is not None and name == "p99" and (record.late or LATE) == LATE:
        times += f" (95% bound {loop.held_ms:.{places}f})"
    limit = f"{budget:.{places}f} ms budget"
    if not loop.late:
        return f"All {count_of(loop.frames, unit)} meet their {limit}: {times} ms"
    means = f"; each is {loop.miss}" if loop.miss else ""
    if loop.late == loop.frames:
        return f"Every {unit} misses its {limit}: {times} ms{means}"
    stall = loop.deadlines.get(f"{loop.target_fps:g}")
    longest = f", the longest by {stall.longest_stall_ms:.1f} ms" if stall is not None else ""
    return f"{loop.late:,} of {count_of(loop.frames, unit)} miss their {limit}{longest}: {times} ms{means}"


def _longest_stage(record: Record, loop: Realtime, frame: Summary) -> str:
    """Name the stage that takes the largest part of a frame, on average where stages do not overlap."""
    parts = loop.budget.parts if loop.budget is not None else {}
    times = {stage: part.mean_ms for stage, part in parts.items() if stage in loop.stages}
    of, words = frame.mean, " on average"
    if None in times.values():
        times, of, words = {stage: stage_ms(record, stage) for stage in loop.stages}, frame.p50, ""
    known = {stage: ms for stage, ms in times.items() if ms is not None}
    if len(known) < 2:
        return ""
    longest = max(known, key=lambda stage: known[stage])
    places = max(1, decimals(known[longest], 3))
    return f"The stage {longest} takes {known[longest]:.{places}f} of {of:.{places}f} ms{words}"


def _audio(record: Record, loop: Realtime) -> str:
    """Say that sound is made slower than it is played, or may be."""
    answer = keeps_audio(record)
    if answer not in ("slower", UNDECIDED):
        return ""
    words = "Audio runs dry" if answer == "slower" else f"{UNDECIDED.capitalize()} whether audio runs dry"
    return f"{words}: it is made at {times(loop.audio_rtf)} real time"


def _growth(loop: Realtime) -> str:
    if loop.slope is None or not loop.slope.growing:
        return ""
    stages = [
        f"{stage} on the {clock} {_signed(ms)}"
        for stage, growth in loop.slope.stages.items()
        for clock, ms in (("host", growth.host), ("device", growth.device))
        if ms is not None
    ]
    value, low, high = map(_signed, (loop.slope.us_per_frame, *loop.slope.ci95))
    return f"Frames grow longer by {value} µs a frame [{low}, {high}]{f', with it {listed(stages)}' if stages else ''}"


def _signed(number: float) -> str:
    return f"{MINUS if number < 0 else '+'}{significant(abs(number), 3)}"


def _leaks(record: Record) -> str:
    memory = record.realtime.memory if record.realtime is not None else {}
    leaks = [
        f"{described(MemoryKinds, kind).title} +{significant(trend.bytes_per_frame)} bytes a frame"
        for kind, trend in memory.items()
        if trend.leak
    ]
    return f"It leaks memory: {', '.join(leaks)}" if leaks else ""


#: A part of the frames of a loop: its median times, and its name.
_Part = tuple[Record, BudgetPart, str]
_BUDGET = (
    Column[_Part]("stage", lambda row: row[2]),
    *columns(BudgetPart, "device_ms", "host_ms", "mean_ms", "share"),
)


def _parts(record: Record, loop: Realtime) -> Iterator[_Part]:
    """Yield the parts of a frame, and the frame itself where the means of its parts add up to its own."""
    parts = loop.budget.parts if loop.budget is not None else {}
    named = {"wait": "wait for the device"}
    yield from ((record, part, named.get(name, name)) for name, part in parts.items())
    if loop.frame_ms is not None and any(part.mean_ms is not None for part in parts.values()):
        p50 = loop.frame_ms.p50
        yield record, BudgetPart(host_ms=p50, mean_ms=loop.frame_ms.mean, share=p50 / loop.budget_ms), "frame"


def _frame_times(data: RunData) -> tuple[list[tuple[Record, Array]], list[str]]:
    """Return (frame times of each loop, NaN where not measured; a line for each missing or unreadable file)."""
    series, lines = [], []
    for record in data.loops:
        file = series_file(record.name)
        try:
            frames = read_frames(data.folder, record.name)
        except InputError as error:
            lines.append(printable(f"no frames to draw: {file}: {error}"))
            continue
        if frames is None:
            if record.realtime is not None and record.realtime.frames:
                lines.append(printable(f"no frames to draw: {file} is missing"))
        elif np.isfinite(frames["frame_ms"]).any():
            series.append((record, frames["frame_ms"]))
    return series, lines


def _frames_figure(record: Record, values: Array) -> Figure:
    """Draw the frame times of a loop, its deadline, and its slow frames by cause."""
    loop, places = record.realtime, envelope(values, POINTS)
    line = Series("frame time", list(zip(places.tolist(), values[places].tolist(), strict=True)), _FRAMES)
    if loop is None:
        return Figure(line)
    steady, level = loop.steady, (loop.budget_ms, f"deadline, {loop.target_fps:g} FPS") if loop.target_fps else None
    shaded_to = 0 if steady is None else steady.from_frame if steady.settled else values.size
    return Figure(line, slow_marks(loop), level, shaded_to)
