"""Slow samples, of calls or of frames, and what explains them: causes with the milliseconds that each took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.results.frames import Array, Series, stage_names
from profiling.results.loop import Steady
from profiling.results.measured import SlowFrame, SlowFrames

#: Which samples of a series, bool [n].
Mask = NDArray[np.bool_]
#: A frame is slow above the steady median plus this many median absolute deviations, and above this multiple of it.
SLOW_MADS, SLOW_FACTOR = 5.0, 1.2
#: A cause explains a slow frame if it took at least this share of the time beyond the steady median.
LEAST_SHARE = 0.5
#: Most slow frames listed in a record; all are counted.
LISTED = 50
COMPILE, LOWER_CLOCK = "compile", "lower SM clock"
#: Causes, by the series of the milliseconds that each took in a frame.
CAUSES = {
    COMPILE: "compile_ms",
    "CUDA graph captured": "capture_ms",
    "cudaMalloc": "malloc_ms",
    "garbage collection": "collection_ms",
    "run-queue wait": "run_queue_ms",
    "CPU stolen by another virtual machine": "steal_ms",
    "another process on the GPU": "others_ms",
}
#: The place of time that a frame spent in none of its stages, and the cause of time that nothing explains.
OUTSIDE, UNKNOWN = "outside all stages", "not attributed"


def threshold_ms(frame_ms: Array, steady: Steady) -> float:
    """Return the time in ms above which a sample is slow; `frame_ms` is [n] in ms."""
    deviation = float(np.median(np.abs(frame_ms[steady.from_frame :] - steady.p50)))
    return max(steady.p50 + SLOW_MADS * deviation, SLOW_FACTOR * steady.p50)


def slow_section(series: Series, steady: Steady, slow: Mask, events: Sequence[Mapping[str, Any]]) -> SlowFrames:
    """Return the threshold, the number of `slow` [n] frames, and what explains them; a frame may have several causes.

    A cause says where it was: "garbage collection in decode". Time that no cause explains belongs to the place alone:
    "stage decode", "stages world, decode" where none of them took half of it, or "outside all stages". `events` are
    recompiles: {"frame", "id"}.
    """
    frame_ms, took_ms, spent_ms = series["frame_ms"], cause_ms(series, steady), _place_ms(series, steady)
    frames, total_ms = list[SlowFrame](), defaultdict[str, float](float)
    for frame in map(int, np.flatnonzero(slow)):
        excess_ms = float(frame_ms[frame]) - steady.p50
        where, alone, alone_ms = _places({place: float(values[frame]) for place, values in spent_ms.items()}, excess_ms)
        took = {cause: float(values[frame]) for cause, values in took_ms.items()}
        recompiles = [str(event["id"]) for event in events if event["frame"] == frame]
        if recompiles:
            took[f"recompile {', '.join(recompiles)}"] = took.pop(COMPILE)
        explained = {f"{cause} {where}".rstrip(): ms for cause, ms in took.items() if ms >= LEAST_SHARE * excess_ms}
        if not explained and alone != UNKNOWN:
            explained = {alone: alone_ms}
        causes = tuple(explained) or (UNKNOWN,)
        frames.append(SlowFrame(frame=frame, ms=float(frame_ms[frame]), causes=causes, cause_ms=explained))
        left_ms = excess_ms
        for cause, ms in sorted(explained.items(), key=lambda item: -item[1]):
            total_ms[cause] += min(ms, left_ms)
            left_ms -= min(ms, left_ms)
        total_ms[alone] += left_ms
    return SlowFrames(
        threshold_ms=threshold_ms(frame_ms, steady),
        count=len(frames),
        causes=dict(Counter(cause for each in frames for cause in each.causes).most_common()),
        cause_ms={cause: ms for cause, ms in sorted(total_ms.items(), key=lambda item: -item[1]) if ms > 0},
        frames=tuple(sorted(frames, key=lambda each: -each.ms)[:LISTED]),
    )


def _places(spent_ms: Mapping[str, float], excess_ms: float) -> tuple[str, str, float]:
    """Return the fewest places that together took `LEAST_SHARE` of the excess, and their ms.

    They are named as they follow a cause ("in world"), and as they stand without one ("stage world"): nowhere, and
    `UNKNOWN`, where all places together took less.
    """
    chosen = dict[str, float]()
    for place, ms in sorted(spent_ms.items(), key=lambda item: -item[1]):
        chosen[place] = ms
        if sum(chosen.values()) >= LEAST_SHARE * excess_ms:
            break
    else:
        return "", UNKNOWN, 0.0
    stages = [place for place in chosen if place != OUTSIDE]
    outside = [OUTSIDE] if OUTSIDE in chosen else []
    within = [f"in {', '.join(stages)}"] if stages else []
    named = [f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"] if stages else []
    return ", ".join(within + outside), ", ".join(named + outside), sum(chosen.values())


def _place_ms(series: Series, steady: Steady) -> dict[str, Array]:
    """Return the milliseconds [n] beyond the usual of each frame in each stage, and outside all where that is known.

    Those of a stage are of its host or its device time, whichever is longer; in a frame without the stage it took none.
    """
    taken = {name: np.nan_to_num(values) for name, values in series.items()}
    spent = {
        stage: np.maximum(*(_beyond_median(taken[f"{clock}_{stage}_ms"], steady) for clock in ("host", "device")))
        for stage in stage_names(series)
    }
    rest_ms = series.get("rest_ms")  # calls have none, and frames in flight beside others no number
    if rest_ms is None or not np.isfinite(rest_ms).any():
        return spent
    return spent | {OUTSIDE: _beyond_median(rest_ms, steady)}


def cause_ms(series: Series, steady: Steady) -> dict[str, Array]:
    """Return the milliseconds, float64 [n], that each cause took in each frame beyond its median in steady frames.

    What a cause takes in every frame makes none of them slow. A lower SM clock lengthens the work of the device, in
    inverse proportion at most; it is known in the frames in which it was read, which a long frame is.
    """
    took = {cause: _beyond_median(series[name], steady) for cause, name in CAUSES.items()}
    clock = series["sm_clock_mhz"]
    if np.isfinite(clock).any():
        usual = float(np.nanmedian(clock))
        lower = np.maximum(0.0, 1 - np.nan_to_num(clock, nan=usual) / usual)
        work = [ms for name, ms in series.items() if name.startswith("device_") and name.endswith("_ms")]
        took[LOWER_CLOCK] = lower * np.nansum(work, axis=0)
    return took


def _beyond_median(values: Array, steady: Steady) -> Array:
    known = values[steady.from_frame :][np.isfinite(values[steady.from_frame :])]
    usual = float(np.median(known)) if known.size else 0.0
    return np.maximum(np.nan_to_num(values) - usual, 0.0)
