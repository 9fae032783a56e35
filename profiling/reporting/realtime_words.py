"""What a table cannot say of a loop of frames: when it settled, what grows, what comes back, how it was run."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.facts import at, interval_at, is_realtime, is_right, items_at, mapping_at, number_at
from profiling.reporting.format import MINUS, count_of, listed, one_line, significant, whole
from profiling.reporting.realtime_frames import MEMORY_KINDS
from profiling.results.records import Record

#: How the loop was run: keys of the section, in the order in which they are said.
_SETTINGS = ("commit", "schedule", "pace", "deliver")

LEGEND = (
    "Frame: from its action, or from the delivery before it where that came later, to picture and sound with the "
    "player. Latency: from its action.",
    "Late: longer than the budget; in real time, delivered later than one budget after it was due. "
    "Holds: at least 99.9% of the frames in time, and all of them where they are fewer than 1000.",
    "Underruns: of a simulated player at the target that begins with so many frames in hand. "
    "Sustained FPS: the highest rate at which 99.9% of these frames are in time.",
    "Slow: above the steady median by 20% and by five times the median absolute deviation; "
    "a frame may have several causes.",
    "Audio real-time factor: seconds of sound made in a second; at 1 or above the player does not run dry.",
)


def realtime_legend(records: Sequence[Record]) -> tuple[str, ...]:
    """Say how the loops were run and how their numbers are meant; empty without any."""
    rows = [record for record in records if is_realtime(record)]
    groups: dict[str, list[str]] = {}
    for record in rows:
        groups.setdefault(_settings(record), []).append(record.variant)
    groups.pop("", None)
    alone = len(groups) == 1
    lines = [f"{facts}." if alone else f"{listed(names)}: {facts}." for facts, names in groups.items()]
    return (*map(one_line, lines), *LEGEND) if rows else ()


def realtime_lines(records: Sequence[Record]) -> tuple[str, ...]:
    """Return a line for each loop: ramp, slope of its frame times, spikes, overhead, sound, clocks held down."""
    lines = []
    for record in records:
        parts = (
            _steady(record),
            _slope(record),
            spikes(record),
            _overhead(record),
            _between(record),
            _sound(record),
            _throttled(record),
        )
        said = "; ".join(filter(None, parts))
        if is_realtime(record) and said:
            mark = "" if is_right(record) else f" ({record.status}, its times do not count)"
            lines.append(one_line(f"{name_of(record)}{mark}: {said}."))
    return tuple(lines)


def name_of(record: Record) -> str:
    """Return the cell's name."""
    return f"{record.component}.{record.variant}"


def growth(record: Record) -> str:
    """Say by how much the frames grow longer; nothing where they do not."""
    if at(record.realtime, "slope", "growing") is not True:
        return ""
    return f"its frames grow longer: {_slope_of(record)}{_growing_stages(record)}"


def leaks(record: Record) -> str:
    """Say which kinds of memory leak and how fast; nothing where none does."""
    memory = mapping_at(record.realtime, "memory")
    found = [
        f"{words} +{significant(number_at(memory, kind, 'bytes_per_frame'))} bytes a frame"
        for kind, words in MEMORY_KINDS.items()
        if at(memory, kind, "leak") is True
    ]
    return f"it leaks memory: {', '.join(found)}" if found else ""


def spikes(record: Record) -> str:
    """Say how often slow frames come back; nothing where they keep no period."""
    period, count, first = (number_at(record.realtime, "spikes", key) for key in ("period", "count", "first"))
    if period is None:
        return ""
    parts = [f"a spike every {period:g} frames"]
    parts += [] if count is None else [count_of(count, "time")]
    parts += [] if first is None else [f"first at frame {first:.0f}"]
    return ", ".join(parts)


def _steady(record: Record) -> str:
    start = number_at(record.realtime, "steady", "from_frame")
    settled = at(record.realtime, "steady", "settled")
    times = [
        f"{key} {significant(value)} ms"
        for key in ("p50", "p99")
        if (value := number_at(record.realtime, "steady", key)) is not None
    ]
    if settled is False:
        return ", ".join(["its frame times never settled", *times])
    return "" if start is None else ", ".join([f"steady from frame {start:.0f} on", *times])


def _slope(record: Record) -> str:
    growing, slope = at(record.realtime, "slope", "growing"), _slope_of(record)
    if not slope or not isinstance(growing, bool):
        return f"slope {slope}" if slope else ""
    return f"slope {slope}: {f'growing{_growing_stages(record)}' if growing else 'not growing by 1% over the run'}"


def _growing_stages(record: Record) -> str:
    """Say which stages grow along; nothing where none does, or the record is older than this."""
    stages = mapping_at(record.realtime, "slope", "stages")
    said = [
        f"{one_line(stage)} on the {side} {_signed(slope)}"
        for stage in stages
        for side in ("host", "device")
        if (slope := number_at(stages, stage, side)) is not None
    ]
    return f", with it {listed(said)}" if said else ""


def _slope_of(record: Record) -> str:
    slope, interval = number_at(record.realtime, "slope", "us_per_frame"), interval_at(record.realtime, "slope", "ci95")
    if slope is None:
        return ""
    between = f" [{_signed(interval[0])}, {_signed(interval[1])}]" if interval else ""
    return f"{_signed(slope)} µs a frame{between}"


def _signed(value: float) -> str:
    return f"{MINUS if value < 0 else '+'}{significant(abs(value), 3)}"


def _overhead(record: Record) -> str:
    overhead, share = (number_at(record.realtime, "budget", key) for key in ("overhead_ms", "overhead_share"))
    if overhead is None:
        return ""
    part = "" if share is None else f" ({share:.1%})"
    return f"{significant(overhead, 3)} ms of a frame{part} beside the longest path of its stages"


def _between(record: Record) -> str:
    """Say how long the loop was at its own business, which is in no frame."""
    p50, most = (number_at(record.realtime, "gap_ms", key) for key in ("p50", "max"))
    if p50 is None or most is None or at(record.realtime, "pace") == "realtime":
        return ""
    return f"{significant(p50, 3)} ms (at most {significant(most, 3)}) between two frames go to the measurement"


def _sound(record: Record) -> str:
    """Say which window of latents is decoded, and how near shorter ones come to the whole."""
    sound = mapping_at(record.realtime, "sound")
    kind, decoded, whole_window = at(sound, "window"), number_at(sound, "decoded"), number_at(sound, "of")
    if not isinstance(kind, str) or decoded is None or whole_window is None:
        return ""
    near = [
        f"{length} at {db:.1f}"
        for length in mapping_at(sound, "snr_db")
        if (db := number_at(sound, "snr_db", length)) is not None
    ]
    ratios = f" (newest latents alone, dB to the whole window: {', '.join(near)})" if near else ""
    return f"sound {one_line(kind)}, {decoded:.0f} of {whole_window:.0f} latents{ratios}"


def _throttled(record: Record) -> str:
    reasons = [one_line(reason) for reason in items_at(record.realtime, "throttle_reasons")]
    return f"clocks held down: {', '.join(reasons)}" if reasons else ""


def _settings(record: Record) -> str:
    frames, warmup, steps = (number_at(record.realtime, key) for key in ("frames", "warmup_frames", "steps"))
    parts = [] if frames is None else [f"{whole(frames)} frames"]
    parts += [] if warmup is None else [f"{whole(warmup)} warm-up frames before them"]
    parts += [] if steps is None else [f"{count_of(steps, 'step')} a frame"]
    parts += [f"{key} {value}" for key in _SETTINGS if isinstance(value := at(record.realtime, key), str)]
    return ", ".join(parts)
