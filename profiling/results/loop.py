"""The section `realtime` of a record: a loop of frames against its deadlines. Times of single frames are in cells/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from profiling.results.field import Section, about
from profiling.results.measured import RESOLUTION, ClockConditions, Deadline, Interval, SlowFrames, Summary

#: Parts of a frame's budget that are no stages, and the whole: no stage may have such a name.
BUDGET_NAMES = ("wait", "rest", "unaccounted", "frame")


class Gap(Section, frozen=True, kw_only=True):
    """Time between two delivered frames in which no frame was being computed."""

    p50: Annotated[float, about("median", "ms")]
    max: Annotated[float, about("longest", "ms")]


class BudgetPart(Section, frozen=True, kw_only=True):
    """Median times of one stage, or of waiting and the rest."""

    host_ms: Annotated[float | None, about("time of the host", "ms")] = None
    device_ms: Annotated[float | None, about("time of the device", "ms", "GPU")] = None
    share: Annotated[
        float | None, about("share of the target's frame time, may exceed 1", "0 to 1", "of the budget")
    ] = None
    mean_ms: Annotated[
        float | None, about("mean over all frames; of the stages and `unaccounted` it adds up to a frame's", "ms")
    ] = None


class Budget(Section, frozen=True, kw_only=True):
    """Where the time of a frame goes."""

    parts: Annotated[
        Mapping[str, BudgetPart],
        about("by stage, and wait, rest and unaccounted: the frame beyond the longest path through its stages"),
    ] = {}


class Steady(Section, frozen=True, kw_only=True):
    """The part of the series after frame times have settled."""

    from_frame: Annotated[int, about("its first frame", "frame", "steady from")]
    settled: Annotated[bool, about("false: times never settle, and all frames are used")]
    p50: Annotated[float, about("median frame time", "ms", title="steady p50")]


class StageGrowth(Section, frozen=True, kw_only=True):
    """Growth of the time of a stage."""

    host: Annotated[float | None, about("host time", "us/frame")] = None
    device: Annotated[float | None, about("device time", "us/frame")] = None


class Slope(Section, frozen=True, kw_only=True):
    """Growth of frame times over the steady part."""

    us_per_frame: Annotated[float, about("slope", "us/frame")]
    ci95: Annotated[Interval, about("95% interval of the slope", "us/frame")]
    growing: Annotated[bool, about("whether frame times grow beyond chance and by more than 1%")]
    stages: Annotated[Mapping[str, StageGrowth], about("stages whose time grows too, by stage")] = {}


class MemoryTrend(Section, frozen=True, kw_only=True):
    """One kind of memory over the frames."""

    first: Annotated[int, about("after the first frame", "bytes")]
    last: Annotated[int, about("after the last frame", "bytes")]
    bytes_per_frame: Annotated[float | None, about("growth over the steady part", "bytes/frame")] = None
    leak: Annotated[bool | None, about("whether it grows in every quarter and beyond chance")] = None


class Realtime(ClockConditions, frozen=True, kw_only=True):
    """A loop over frames: its options, frame times, budget, deadlines, steadiness and memory."""

    frames: Annotated[int, about("timed frames")]
    target_fps: Annotated[float, about("frame rate that the loop should hold", "frames/s")]
    pace: Annotated[str, about("frames begin free: without waiting; realtime: when due; application: as it decides")]
    warmup_frames: Annotated[int | None, about("frames before the timed ones")] = None
    schedule: Annotated[str | None, about("sequential or overlap")] = None
    deliver: Annotated[str | None, about("where frames are delivered: host or device")] = None
    gc: Annotated[str | None, about("Python's garbage collector in the loop: frozen, on or off")] = None
    frames_per_tick: Annotated[int | None, about("frames that a pass through the pipeline delivers at once")] = None
    work: Annotated[
        Mapping[str, str | int | float | bool | None],
        about("settings of the pipeline that change what a frame computes"),
    ] = {}
    miss: Annotated[str | None, about("what a late frame is to the user")] = None
    stages: Annotated[tuple[str, ...], about("stages of a frame in their order")] = ()
    frame_ms: Annotated[Summary | None, about("frame times", "ms")] = None
    latency_ms: Annotated[Summary | None, about("from the begin of a frame to its delivery", "ms")] = None
    windows_ms: Annotated[
        tuple[float, ...], about("median frame times of up to 24 consecutive parts of the loop", "ms")
    ] = ()
    first_frame_ms: Annotated[float | None, about("latency of the first frame of a prepared session", "ms")] = None
    input_age_ms: Annotated[
        Mapping[str, Summary], about("from when a source was sampled to the delivery of the frame that shows it", "ms")
    ] = {}
    gap_ms: Annotated[Gap | None, about("time between frames", "ms")] = None
    wall_fps: Annotated[
        float | None,
        about("delivered frames over wall time without what the tool did between frames", "frames/s"),
    ] = None
    audio_rtf: Annotated[
        float | None, about("seconds of audio generated per second", "ratio", "audio real-time factor")
    ] = None
    budget: Annotated[Budget | None, about("where the time of a frame goes")] = None
    deadlines: Annotated[Mapping[str, Deadline], about("by frame rate as text")] = {}
    late: Annotated[int | None, about("late frames at the target rate", "frames")] = None
    underruns: Annotated[Mapping[str, int], about("frames that a player misses, by frames in its buffer")] = {}
    sustained_fps: Annotated[
        float | None,
        about("highest rate that is held, by the upper 95% bound of the late frames", "frames/s", "sustained FPS"),
    ] = None
    held_ms: Annotated[
        float | None,
        about(
            "shortest budget that frames hold; where 1% may be late, the upper 95% bound of p99", "ms", "p99 at most"
        ),
    ] = None
    steady: Annotated[Steady | None, about("the part after times have settled")] = None
    slope: Annotated[Slope | None, about("growth of frame times")] = None
    unsteady: Annotated[
        tuple[str, ...], about("signs that the warm-up ended before the steady state, each with what to do")
    ] = ()
    slow: Annotated[SlowFrames | None, about("slow frames and their causes")] = None
    memory: Annotated[Mapping[str, MemoryTrend], about("memory over the frames, by kind")] = {}

    @property
    def budget_ms(self) -> float:
        """Time in which a frame, or a chunk of them, must be delivered at the target rate, in ms."""
        return 1000 * (self.frames_per_tick or 1) / self.target_fps

    def too_slow_fps(self, fps: float) -> float | None:
        """Return the frames/s that an application's loop delivers if they are more than 1% below `fps`; else None."""
        if self.pace != "application" or self.frame_ms is None or self.gap_ms is None:
            return None
        rate = 1000 / (self.frame_ms.p50 + self.gap_ms.p50)
        return rate if (1 + RESOLUTION) * rate < fps else None
