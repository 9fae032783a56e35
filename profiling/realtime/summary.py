"""Summarises the series of a loop's frames as the section `realtime` of its record. Runs without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from profiling.metrics.slow_samples import SLOW_FACTOR, Mask, slow_section, threshold_ms
from profiling.realtime.deadlines import deadlines, held_ms, rate_key, sustained_fps, underruns
from profiling.realtime.graph import DELIVER, Graph
from profiling.realtime.trend import find_steady, line_of, rolling_median, slope_section, unsteady_times
from profiling.results.energy import Energy, EnergyWindow, energy_section, others_reason
from profiling.results.frames import ENERGY, MEMORY, Array, Series, check_series, frame_count, stage_names
from profiling.results.loop import Budget, BudgetPart, Gap, MemoryTrend, Realtime, Steady
from profiling.results.measured import LATE, Summary
from profiling.results.stats import COMMON_FPS, batch_medians, summarize

#: Frames in the playout buffer before display starts, for which underruns are counted.
BUFFERS = (0, 1, 2, 3)
#: Least growth over the run, in bytes, that counts as a leak. The allocator's counter is exact; the memory of a device
#: or a process also changes for other reasons.
SMALLEST_LEAK = {"allocated": 4096, "reserved": 4096, "device_used": 8 * 2**20, "host_rss": 8 * 2**20}
#: Most windows into which the energy of a loop is divided, and the least seconds of one: ten steps of a counter that
#: steps every 0.1 s. The whole must have two of them.
ENERGY_WINDOWS, ENERGY_WINDOW_S = 20, 1.0


def summarize_frames(
    series: Series,
    loop: Realtime,
    graph: Graph | None = None,
    *,
    events: Sequence[Mapping[str, Any]] = (),
    media_rate: float | None = None,
    late: float = LATE,
) -> Realtime:
    """Return `loop`, the section as it is before the first frame, with the measurements of the frames added.

    `series` may end after any frame; without a frame, nothing is added. `graph` names the rates to compare with, and
    how old an input is when it is delivered. `events` are recompiles: {"frame", "id"}.
    `media_rate` is the rate in frames/s at which delivered sound is played, None for a loop without sound. `late` is
    the share of frames that may be late (0 to 1). Fields that need more frames are absent.

    Raises:
        ValueError: a series is missing or of another length, or a frame has no time.

    """
    if frame_count(series) == 0:
        return loop
    check_series(series, paced=loop.pace == "realtime")
    frame_ms = series["frame_ms"]
    chunk = loop.frames_per_tick or 1
    compared = COMMON_FPS if graph is None else graph.rates
    rates = deadlines(series, target_fps=loop.target_fps, pace=loop.pace, chunk=chunk, rates=compared)
    target = rates[rate_key(loop.target_fps)]
    steady = find_steady(frame_ms)
    slow = _slow_frames(frame_ms, steady)
    gaps = series["gap_ms"][np.isfinite(series["gap_ms"])]
    # The tool's own work between two frames is part of no frame's time, and later due times are moved by as much: it is
    # left out here, too. What an application does between its frames is part of its rate.
    if loop.pace == "free":
        span_ms = float(frame_ms[1:].sum())
    elif loop.pace == "realtime":
        periods_ms = (frame_ms.size - 1) * 1000 * chunk / loop.target_fps
        span_ms = float(np.ptp(series["delivered_ms"]) - np.ptp(series["due_ms"]) + periods_ms)
    else:
        span_ms = float(np.ptp(series["delivered_ms"]))
    fps = 1000 * chunk * (frame_ms.size - 1) / span_ms if span_ms > 0 else None
    per_frame_ms = frame_ms / chunk
    # The host's waits are counted from delivery to delivery.
    since_ms = np.diff(series["delivered_ms"], prepend=series["delivered_ms"][:1] - frame_ms[:1])
    warmup = "FrameRecorder(warmup_frames={})" if loop.pace == "application" else "loop.warmup_frames={}"
    return msgspec.structs.replace(
        loop,
        frames=frame_count(series),
        stages=stage_names(series),
        frame_ms=_clock_summary(frame_ms),
        windows_ms=tuple(batch_medians(frame_ms)),
        latency_ms=_clock_summary(series["latency_ms"]),
        input_age_ms=_input_ages(series, graph) if graph is not None else {},
        gap_ms=Gap(p50=float(np.median(gaps)), max=float(gaps.max())) if gaps.size else None,
        wall_fps=fps,
        audio_rtf=None if fps is None or media_rate is None else fps / media_rate,
        budget=_budget(series, target_ms=1000 * chunk / loop.target_fps, overlapping=loop.schedule == "overlap"),
        deadlines=rates,
        late=target.misses,
        underruns={str(buffer): underruns(per_frame_ms, loop.target_fps, buffer) for buffer in BUFFERS},
        sustained_fps=sustained_fps(per_frame_ms, late),
        held_ms=held_ms(frame_ms, late),
        steady=steady,
        slope=slope_section(series, steady.from_frame),
        unsteady=(*loop.unsteady, *unsteady_times(frame_ms, steady, loop.warmup_frames or 0, warmup)),
        slow=slow_section(series, steady, slow, events),
        memory=memory_section(series, steady.from_frame),
        cpu_lost_share=_lost_share(series, since_ms, "run_queue_ms", "steal_ms"),
        gpu_lost_share=_lost_share(series, frame_ms, "others_ms"),
    )


def _slow_frames(frame_ms: Array, steady: Steady) -> Mask:
    """Return which frames [n] are slow.

    Where times never settle, and most frames of the first or the last quarter would be slow, a frame must also stand
    out from the frames around it: those are the level before or after a change, and no burst.
    """
    threshold, quarter = threshold_ms(frame_ms, steady), max(1, frame_ms.size // 4)
    slow = frame_ms > threshold
    if not steady.settled and max(np.median(frame_ms[:quarter]), np.median(frame_ms[-quarter:])) > threshold:
        slow &= frame_ms > SLOW_FACTOR * rolling_median(frame_ms)
    return slow


def loop_energy(
    series: Series, loop: Realtime, *, idle_w: float | None = None, step_ms: float | None = None
) -> Energy | None:
    """Return the energy of the frames between the first and the last reading of the counter; None without a reading.

    `loop` is what `summarize_frames` returned.
    """
    frames = np.flatnonzero(np.isfinite(series[ENERGY]))
    if frames.size == 0:
        return None
    ends_s, joules = series["delivered_ms"][frames] / 1e3, series[ENERGY][frames]
    seconds = float(ends_s[-1] - ends_s[0])
    count = min(ENERGY_WINDOWS, frames.size - 1, int(seconds / max(ENERGY_WINDOW_S, 0.01 * (step_ms or 0.0))))
    reason = others_reason(loop.gpu_lost_share)
    if count < 2:
        reason = f"{seconds:.2g} s of frames are too short for the steps of the counter. Use more frames"
    elif not joules[-1] > joules[0]:
        reason = f"the driver's energy counter did not change for {seconds:.3g} s"
    if reason is not None:
        return Energy(reason=reason, idle_w=idle_w, step_ms=step_ms)
    places = np.unique(np.searchsorted(ends_s, ends_s[0] + seconds * np.arange(count + 1) / count - 1e-9))
    windows = [
        EnergyWindow(
            seconds=float(ends_s[end] - ends_s[begin]),
            calls=float(frames[end] - frames[begin]),
            joules=float(joules[end] - joules[begin]),
        )
        for begin, end in pairwise(places)
    ]
    return energy_section(windows, frames_per_call=loop.frames_per_tick or 1, idle_w=idle_w, step_ms=step_ms)


def _lost_share(series: Series, since: Array, *names: str) -> float | None:
    """Return the share of the time `since` (0 to 1) that others took, of frames where it was read; None if of none."""
    read = {name: np.isfinite(series[name]) for name in names}
    shares = [float(series[name][known].sum() / since[known].sum()) for name, known in read.items() if known.any()]
    return min(1.0, sum(shares)) if shares else None


def _clock_summary(values: Array) -> Summary:
    """Summarise a clock over all frames; the samples are in the file of series."""
    return msgspec.structs.replace(summarize(values), samples=())


def _input_ages(series: Series, graph: Graph) -> dict[str, Summary]:
    """Return, by source, the time from the begin of the tick that sampled a value to the delivery of what shows it.

    Ticks that show a value of the warm-up are left out: when it was sampled is not recorded.
    """
    ages: dict[str, list[float]] = {}
    for tick, delivered_ms in enumerate(series["delivered_ms"]):
        for source, sampled in graph.sampled(tick).items():
            if sampled >= 0:
                ages.setdefault(source, []).append(float(delivered_ms - series["action_ms"][sampled]))
    return {source: _clock_summary(np.array(values)) for source, values in ages.items()}


def _budget(series: Series, *, target_ms: float, overlapping: bool) -> Budget:
    """Return the median times of every stage and their share of the target's frame time.

    The share is that of the device time, or of the host time where the device was not timed. `unaccounted` is the frame
    time beyond the longest path through its stages. Means are over all frames, also those in which a stage did not run,
    and add up to the mean frame time; stages that overlap have none.
    """
    parts = {}
    for stage in stage_names(series):
        taken = stage_ms(series, stage)
        taken_ms = median(taken)
        parts[stage] = BudgetPart(
            host_ms=median(series[f"host_{stage}_ms"]),
            device_ms=median(series[f"device_{stage}_ms"]),
            share=None if taken_ms is None else taken_ms / target_ms,
            mean_ms=None if overlapping else float(np.nansum(taken)) / taken.size,
        )
    on_device = any(part.device_ms is not None for part in parts.values())
    for name in ("wait", "rest"):
        taken_ms = median(series[f"{name}_ms"])
        # While the host waits, the device works, and that time is in the shares of the stages.
        counted_ms = None if on_device and name == "wait" else taken_ms
        parts[name] = BudgetPart(host_ms=taken_ms, share=None if counted_ms is None else counted_ms / target_ms)
    outside_ms = series["frame_ms"] - _longest_path(series, overlapping=overlapping)
    overhead_ms = median(outside_ms)
    if overhead_ms is not None:
        parts["unaccounted"] = BudgetPart(
            host_ms=overhead_ms, share=overhead_ms / target_ms, mean_ms=float(np.mean(outside_ms))
        )
    return Budget(parts=parts)


def stage_ms(series: Series, stage: str) -> Array:
    """Return the time of a stage in ms [n]: on the device, or on the host where the device was not timed."""
    device = series[f"device_{stage}_ms"]
    return device if np.isfinite(device).any() else series[f"host_{stage}_ms"]


def _longest_path(series: Series, *, overlapping: bool) -> Array:
    """Return the longest path through the stages of each frame [n], in ms.

    Stages in sequence add up. Overlapping ones share the interval of a frame (some work on the frame before), so the
    longest counts; the delivery follows them. A stage that did not run in a frame took no time in it.
    """
    stages = {stage: np.nan_to_num(stage_ms(series, stage)) for stage in stage_names(series)}
    if not stages:
        return np.full(series["frame_ms"].size, np.nan)
    if not overlapping:
        return np.sum(list(stages.values()), axis=0)
    delivery = stages.pop(DELIVER, np.zeros(series["frame_ms"].size))
    return np.max(list(stages.values()), axis=0) + delivery


def median(values: Array) -> float | None:
    """Return the median of the finite values, None without any."""
    measured = values[np.isfinite(values)]
    return float(np.median(measured)) if measured.size else None


def memory_section(series: Series, from_frame: int) -> dict[str, MemoryTrend]:
    """Return each kind of memory that was sampled; growth and leak are those from `from_frame` on.

    Both are absent for fewer than 8 samples.
    """
    section = {}
    for kind in MEMORY:
        frames = np.flatnonzero(np.isfinite(series[kind]))
        if frames.size == 0:
            continue
        values = series[kind][frames]
        steady = frames >= from_frame
        section[kind] = MemoryTrend(
            first=int(values[0]),
            last=int(values[-1]),
            **_growth(frames[steady].astype(np.float64), values[steady], SMALLEST_LEAK[kind]),
        )
    return section


def _growth(frames: Array, values: Array, smallest_leak: int) -> dict[str, Any]:
    line = line_of(values, frames)
    if line is None:
        return {}
    grown = line.slope * (frames[-1] - frames[0])
    # Memory that grows once or twice and stays is no leak: a leak grows in every quarter.
    levels = [np.percentile(part, 50, method="lower") for part in np.array_split(values, 4)]
    rises = bool((np.diff(levels) > 0).all())
    return {
        "bytes_per_frame": line.slope,
        "leak": bool(grown >= smallest_leak) and line.is_claimed(0.0) and rises,
    }
