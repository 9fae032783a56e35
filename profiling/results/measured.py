"""Measurements in a record: times, memory, parity, preparation, speedup, training, rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from profiling.results.field import Duration, Section, about

#: Low and high end of a 95% interval.
Interval = tuple[float, float]

#: Least number of independent values (samples, windows) whose median has a 95% interval: the true median lies between
#: the least and the largest of n with probability 1 - 2 x 0.5^n, which is 97% for six and 94% for five.
LEAST_VALUES = 6
#: Two times within this share of each other are the same.
RESOLUTION = 0.01
#: Largest share of calls or frames (0 to 1) that may be late where a rate is held, unless `late` sets another.
LATE = 0.01
#: Pairs of placements that a prior counts as, at most.
PRIOR_PAIRS = 8.0
#: Least number of samples of a percentile: with fewer, none lies beyond it, and it is the longest under another name.
LEAST_FOR = {"p90": 10, "p95": 20, "p99": 100}


class Summary(Section, frozen=True, kw_only=True):
    """Statistics of one clock over all samples; no sample is dropped. The unit is in the name of the field it is in."""

    n: Annotated[int, about("number of samples", title="samples")]
    mean: Annotated[float, about("arithmetic mean", "ms")]
    std: Annotated[float | None, about("standard deviation (ddof 1), absent for a single sample", "ms")] = None
    min: Annotated[Duration, about("shortest sample", "ms")]
    p50: Annotated[float, about("median", "ms")]
    p90: Annotated[float, about("90th percentile", "ms")]
    p95: Annotated[float, about("95th percentile", "ms")]
    p99: Annotated[float, about("99th percentile", "ms")]
    max: Annotated[float, about("longest sample", "ms")]
    ci95: Annotated[Interval | None, about("95% interval of the typical sample, around the median", "ms")] = None
    samples: Annotated[tuple[float, ...], about("all samples in the order in which they were taken", "ms")] = ()
    stopped_by: Annotated[
        str | None, about("what ended sampling: interval, decided (see turns), iterations or time")
    ] = None

    @property
    def tail(self) -> tuple[str, float]:
        """What the slow calls take, in ms: ("p99", …) where the samples carry it, else the longest: ("max", …)."""
        p99 = self.percentile("p99")
        return ("max", self.max) if p99 is None else ("p99", p99)

    def percentile(self, name: Literal["p90", "p95", "p99"]) -> float | None:
        """Return that percentile in ms; None where there are too few samples for one."""
        return getattr(self, name) if self.n >= LEAST_FOR[name] else None


class Deadline(Section, frozen=True, kw_only=True):
    """A frame rate that calls or frames were compared with. The judge says of these counts whether it is held."""

    fps: Annotated[float, about("frame rate", "frames/s", "FPS")]
    budget_ms: Annotated[float, about("time for the frames of a call, or of a chunk: 1000 / fps for each", "ms")]
    misses: Annotated[int, about("late calls or frames")]
    alone: Annotated[int | None, about("of these, late even without what others took of each")] = None
    bursts: Annotated[int, about("groups of late calls or frames, with at most one in time between two")]
    longest_stall_ms: Annotated[float, about("largest delay beyond the budget", "ms")]


class FrameRate(Section, frozen=True, kw_only=True):
    """Frames a second, from the wall clock."""

    mean: Annotated[float, about("frame rate at the mean wall time", "frames/s")]
    min: Annotated[float, about("frame rate of the slowest call", "frames/s")]
    max: Annotated[float, about("frame rate of the fastest call", "frames/s")]


class Interference(Section, frozen=True, kw_only=True):
    """The share of the timed window that others took: other processes, and other guests of the machine."""

    cpu_lost_share: Annotated[
        float | None, about("share of the time for which others kept it from a CPU: run-queue wait and steal", "0 to 1")
    ] = None
    gpu_lost_share: Annotated[
        float | None, about("share of the time in which other processes used the GPU, as the driver says", "0 to 1")
    ] = None


class ClockConditions(Interference, frozen=True, kw_only=True):
    """Conditions of the timed window: what others took of it, and the clocks of the GPU with what limited them."""

    limited_share: Annotated[
        Mapping[str, float] | None,
        about("share of the window in which the driver held the clocks down, by reason; absent below 1 s", "0 to 1"),
    ] = None
    sm_clock_median_mhz: Annotated[float | None, about("median of the SM clocks read in the window", "MHz")] = None


class LatencyConditions(ClockConditions, frozen=True, kw_only=True):
    """Conditions of the timed window: they explain the samples and do not judge them."""

    cold: Annotated[bool, about("whether the last-level cache was evicted before each sample")]
    warmup_seconds: Annotated[float, about("duration of the warm-up", "s")]
    settled: Annotated[bool, about("whether times had settled and nothing compiled when the warm-up ended")]
    pinned_cores: Annotated[tuple[int, ...], about("cores to which the process was pinned")] = ()


class SlowFrame(Section, frozen=True, kw_only=True):
    """A slow frame or call, and its causes."""

    frame: Annotated[int, about("its number, from 0", title="number")]
    ms: Annotated[float, about("its time", "ms", "time")]
    causes: Annotated[tuple[str, ...], about("what explains at least half of its time beyond the usual one")] = ()
    cause_ms: Annotated[Mapping[str, float], about("time that each cause took in it", "ms")] = {}


class SlowFrames(Section, frozen=True, kw_only=True):
    """Frames or calls above a threshold, and their causes. The usual time is the median, of a loop the steady one."""

    threshold_ms: Annotated[
        float, about("those above it are slow; in a loop that never settles, if 20% above their neighbours, too", "ms")
    ]
    count: Annotated[int, about("number of slow ones")]
    causes: Annotated[Mapping[str, int], about("slow ones by cause; each may have several")] = {}
    cause_ms: Annotated[
        Mapping[str, float], about("time of all slow ones beyond the usual one, by what explains it", "ms")
    ] = {}
    frames: Annotated[tuple[SlowFrame, ...], about("the slowest 50, slowest first")] = ()


class CallsPoint(Section, frozen=True, kw_only=True):
    """The duration of a number of calls in a row."""

    calls: Annotated[int, about("number of calls")]
    seconds: Annotated[Duration, about("duration of all of them, preparation excluded", "s")]
    measured: Annotated[bool, about("false: extrapolated from the time of a call in the longest row measured")]


class Calls(Interference, frozen=True, kw_only=True):
    """Total time of 1, 10, 100, … calls in a row, waiting once at the end, and what others took of that time."""

    points: Annotated[tuple[CallsPoint, ...], about("a row for each number of calls, ascending")]
    seconds_per_call: Annotated[Duration, about("time of a call in the longest row measured", "s")]


class Drift(Section, frozen=True, kw_only=True):
    """Distance from eager, in the run's own dtype, call by call: a stateful network adds up rounding errors."""

    rel_l2: Annotated[tuple[float, ...], about("relative L2 error of each call")]
    max: Annotated[float, about("largest relative L2 error of any call", "relative", "rel. L2 of calls in a row")]


class Metrics(Section, frozen=True, kw_only=True):
    """Results of the metrics of a run; those of user-defined metrics are in `extra`."""

    wall_ms: Annotated[Summary | None, about("call plus wait for its output", "ms")] = None
    device_ms: Annotated[Summary | None, about("time on the GPU by CUDA events, launch gaps included", "ms")] = None
    host_ms: Annotated[Summary | None, about("until the call returns", "ms")] = None
    fps: Annotated[FrameRate | None, about("frame rate, from wall_ms", "frames/s")] = None
    rates: Annotated[tuple[Deadline, ...], about("calls that are late at common frame rates, the lowest first")] = ()
    latency: Annotated[LatencyConditions | None, about("conditions of the timed window")] = None
    slow_calls: Annotated[SlowFrames | None, about("slow calls of wall_ms and their causes")] = None
    by_call_ms: Annotated[
        Mapping[str, float], about("medians of the first, middle and last call of a trajectory, if they differ", "ms")
    ] = {}
    calls: Annotated[Calls | None, about("total time of many calls in a row")] = None
    drift: Annotated[Drift | None, about("error against eager over many calls")] = None
    extra: Annotated[Mapping[str, Any], about("results of user-defined metrics, by name")] = {}


class MemoryKinds(Section, frozen=True, kw_only=True):
    """Bytes of each kind that were held at one moment."""

    allocated: Annotated[int | None, about("live tensors in PyTorch's caching allocator", "bytes")] = None
    reserved: Annotated[int | None, about("reserved from the driver by PyTorch's caching allocator", "bytes")] = None
    device_used: Annotated[int | None, about("used on the whole device, by any process", "bytes")] = None
    host_rss: Annotated[int | None, about("resident set size of the process", "bytes", "host RSS")] = None


class Memory(Section, frozen=True, kw_only=True):
    """Memory by kind: at each phase of the cell, and the peaks of steady calls."""

    phases: Annotated[Mapping[str, MemoryKinds], about("memory at the end of each phase, by phase")] = {}
    peak_allocated: Annotated[int | None, about("peak of allocated in steady calls", "bytes")] = None
    peak_held: Annotated[
        int | None, about("peak_allocated plus free blocks of CUDA-graph pools, which nothing else can use", "bytes")
    ] = None
    graph_pool: Annotated[int | None, about("size of all private pools of CUDA graphs", "bytes")] = None
    peak_host_rss: Annotated[int | None, about("peak resident set size in steady calls", "bytes")] = None
    prepare_peak_allocated: Annotated[int | None, about("peak of allocated while preparing", "bytes")] = None


#: The reference of a forward pass where memory allows it: the module cast to float32.
FP32_EAGER = "fp32 eager"


class State(Section, frozen=True, kw_only=True):
    """What calls change in the module and in the containers of its inputs, and how it is restored."""

    policy: Annotated[str, about("snapshot, reset (by the module's own method) or none")]
    tensors: Annotated[int, about("tensors that a call changes")] = 0
    bytes: Annotated[int, about("copies that are kept to restore them", "bytes")] = 0
    on_host: Annotated[bool, about("whether copies of tensors on the device are in host memory")] = False
    warm_calls: Annotated[int | None, about("eager calls after whose state measurements begin")] = None
    calls: Annotated[int | None, about("calls of a trajectory, after which that state is put back")] = None
    effects: Annotated[tuple[str, ...], about("what calls change, a line for each kind of effect")] = ()
    not_restored: Annotated[Mapping[str, str], about("why something cannot be restored, by its path")] = {}


class OutputError(Section, frozen=True, kw_only=True):
    """The error of a tensor or number of the output. A number that is not finite is absent."""

    path: Annotated[str, about("where it is in the output, as Python code: output['latent'][0]; or in the inputs")]
    dtype: Annotated[str, about("its dtype")]
    shape: Annotated[tuple[int, ...] | None, about("its shape, absent where parts have different shapes")] = None
    passed: Annotated[bool, about("whether the error is within the tolerance, or its integers are those of eager")]
    rel_l2: Annotated[float | None, about("relative L2 error")] = None
    differing: Annotated[float | None, about("integer or bool: fraction of elements that differ", "0 to 1")] = None
    tolerance: Annotated[float | None, about("largest rel_l2 or differing that is accepted")] = None
    max_abs: Annotated[float | None, about("largest absolute difference", "the output's unit")] = None
    local: Annotated[
        float | None, about("RMS error of its worst part (a slice, a tile, 768 samples) over the RMS of the whole")
    ] = None
    local_tolerance: Annotated[float | None, about("largest `local` that is accepted")] = None


class ParityCheck(Section, frozen=True, kw_only=True):
    """A comparison with the reference. A number that is not finite is absent.

    A forward pass is compared with fp32 eager, a training with the same steps done eagerly.
    """

    reference: Annotated[str, about("the reference that the outputs were compared with")]
    passed: Annotated[bool, about("whether the error is within the tolerance")]
    calls: Annotated[int | None, about("calls in a row, each on inputs of its own, whose outputs were judged")] = None
    wrong_from: Annotated[int | None, about("the first call whose outputs are wrong, from 1")] = None
    rel_l2: Annotated[float | None, about("relative L2 error of the outputs; of a training: of its weights")] = None
    eager_rel_l2: Annotated[float | None, about("relative L2 error of eager in the run's dtype")] = None
    tolerance: Annotated[float | None, about("largest rel_l2 that is accepted")] = None
    repeat_rel_l2: Annotated[
        float | None, about("difference of two eager calls from the same inputs and state; absent where equal")
    ] = None
    rounding_rel_l2: Annotated[
        float | None,
        about("difference of eager from itself after a rounding error in each operator; where that sets the tolerance"),
    ] = None
    max_abs: Annotated[float | None, about("largest absolute difference", "the output's unit")] = None
    outputs: Annotated[
        tuple[OutputError, ...], about("errors of single outputs and of inputs that were changed, the worst 16 first")
    ] = ()
    psnr_db: Annotated[float | None, about("peak signal-to-noise ratio of images, worst output", "dB")] = None
    snr_db: Annotated[float | None, about("signal-to-noise ratio of other outputs, worst output", "dB")] = None
    cosine: Annotated[float | None, about("cosine of the angle to the reference, worst output", "-1 to 1")] = None
    statistics_rel_l2: Annotated[float | None, about("training: relative L2 error of running statistics")] = None
    chaotic: Annotated[bool | None, about("training: eager diverges from itself after a rounding error")] = None
    weights_judged: Annotated[bool | None, about("training: false where only losses can be judged")] = None
    loss_error: Annotated[float | None, about("training: largest relative error of a loss")] = None
    loss_tolerance: Annotated[float | None, about("training: largest loss_error that is accepted")] = None


class Parity(ParityCheck, frozen=True, kw_only=True):
    """The comparison that judges the cell: the worst stage of a loop, the deterministic run of a training."""

    stages: Annotated[Mapping[str, ParityCheck], about("realtime: the comparison of each stage")] = {}
    timed: Annotated[ParityCheck | None, about("training: the comparison of the run that was timed")] = None


class Prepare(Section, frozen=True, kw_only=True):
    """Preparing the variant: compiling, warming up and capturing, before any sample."""

    seconds: Annotated[
        Duration,
        about(
            "from the start until the step is ready; the compiler is imported before (`starts` includes that)",
            "s",
            title="in this run",
        ),
    ]
    beside: Annotated[
        int, about("other processes that prepared at the same time, at most; it takes less time without them")
    ] = 0
    warmup_inputs: Annotated[int | None, about("calls on the `warmup_inputs` of the YAML, before any sample")] = None
    warmup_inputs_s: Annotated[Duration | None, about("duration of these calls", "s")] = None
    compiles: Annotated[int | None, about("frames that Dynamo compiled, failures and cache hits included")] = None
    recompiles: Annotated[int | None, about("compiles of a function that was compiled before")] = None
    graphs: Annotated[int | None, about("FX graphs that were given to a back end")] = None
    graph_breaks: Annotated[int | None, about("graph breaks")] = None
    cudagraph_captures: Annotated[
        int | None, about("captures by inductor's CUDA-graph trees", title="graphs captured by inductor")
    ] = None
    cudagraph_skips: Annotated[
        int | None, about("captures that inductor gave up", title="graphs skipped by inductor")
    ] = None
    cache_hits: Annotated[int | None, about("graphs, and packages compiled ahead of time, from a cache on disk")] = None
    cache: Annotated[
        str | None,
        about(
            "cold: compiled from an empty cache; from VARIANT: from the cache that this variant of the same run left, "
            "which has the same compiler; absent: inductor's own cache, or nothing was compiled"
        ),
    ] = None
    phases: Annotated[
        Mapping[str, float],
        about(
            "parts of `seconds`: transforms, dynamo (tracing), inductor (back end and its compilers), autotune "
            "(timing kernels to choose one), capture; of an ahead-of-time compiler export, package (compiling and "
            "writing it) and load package; the rest is calls and waiting",
            "s",
        ),
    ] = {}
    cold_s: Annotated[
        Duration | None,
        about(
            "seconds from an empty cache, estimated if it was filled: with the inductor, autotune and package phases "
            "of the cell that filled it",
            "s",
        ),
    ] = None

    @property
    def is_warm(self) -> bool:
        """Whether the compiler loaded code from a cache."""
        return bool(self.cache_hits) if self.cache is None else self.cache != "cold"

    @property
    def is_cold_unknown(self) -> bool:
        """Whether the compiler loaded code from a cache, and nothing says what preparing takes from an empty one."""
        return self.is_warm and self.cold_s is None

    @property
    def from_cold(self) -> float:
        """Seconds from an empty cache if known, else those measured: the time to compare between cells."""
        return self.seconds if self.cold_s is None else self.cold_s


class Start(Section, frozen=True, kw_only=True):
    """The start of a process until its first output: one call of each network of the cell."""

    seconds: Annotated[Duration, about("from the start of the process until the first output", "s", "first output")]
    phases: Annotated[
        Mapping[str, float],
        about(
            "parts of it: import (Python, torch, the variant, its compiler), load (build, weights), artifacts (loading "
            "those of the compiler), transforms, dynamo, inductor, autotune, export, package, load package, capture, "
            "call (of the prepared step)",
            "s",
        ),
    ]
    graphs: Annotated[int, about("FX graphs that were given to a back end")] = 0
    cache_hits: Annotated[int, about("graphs that the compiler found in its cache", title="found in a cache")] = 0

    @property
    def unaccounted(self) -> float:
        """Seconds outside all phases."""
        return max(0.0, self.seconds - sum(self.phases.values()))


class Starts(Section, frozen=True, kw_only=True):
    """starts=true: seconds of an application until its first output, each in a fresh process."""

    cold: Annotated[Start, about("with an empty compiler cache")]
    warm: Annotated[Start | None, about("with the cache that the cold start left; absent: nothing was compiled")] = None
    portable: Annotated[
        Start | None, about("with an empty cache, into which it loads the artifacts that the cold start saved")
    ] = None
    artifact_bytes: Annotated[int | None, about("size of these artifacts of torch.compiler", "bytes")] = None


class Speedup(Section, frozen=True, kw_only=True):
    """The ratio of wall times, baseline over this cell; only where both are correct.

    Of cells that took turns: the mean ratio of the medians of neighbouring windows. Else the ratio of their medians.
    """

    vs: Annotated[str, about("the variant that this one is compared with")]
    wall: Annotated[float, about("ratio of wall times; above 1 is faster", "ratio")]
    break_even_calls: Annotated[int | None, about("calls after which the longer preparation has paid off")] = None


class TrainingStepRow(Section, frozen=True, kw_only=True):
    """A logged training step."""

    step: Annotated[int, about("number of the step, from 0")]
    loss: Annotated[float | None, about("loss; absent where it is not finite")] = None
    data_ms: Annotated[Duration | None, about("wait for the batch", "ms", "waiting for data")] = None
    step_ms: Annotated[Duration | None, about("duration of the step", "ms")] = None


class Training(Section, frozen=True, kw_only=True):
    """The logs of the same training steps, under the variant and eagerly."""

    log: Annotated[tuple[TrainingStepRow, ...], about("steps under the variant")]
    eager_log: Annotated[tuple[TrainingStepRow, ...], about("the same steps done eagerly")] = ()

    @property
    def eager_losses(self) -> dict[int, float | None]:
        """The loss of each logged eager step, by its number."""
        return {row.step: row.loss for row in self.eager_log}


class RoundSummary(Section, frozen=True, kw_only=True):
    """Statistics of one clock in one round."""

    n: Annotated[int, about("number of samples")]
    p50: Annotated[float, about("median", "ms")]


class Round(Section, frozen=True, kw_only=True):
    """One round of a cell that was repeated in turns with others."""

    wall_ms: Annotated[RoundSummary | None, about("call plus wait", "ms")] = None
    frame_ms: Annotated[RoundSummary | None, about("realtime: frame times", "ms")] = None


class Window(Interference, frozen=True, kw_only=True):
    """One window in which a cell was timed, alone, while the other cells of its component waited."""

    block: Annotated[int, about("number of the block; each cell has one window in a block, in alternating order")]
    start_s: Annotated[float, about("start of the window, since the component's first cell was started", "s")]
    n: Annotated[int, about("samples of this window in wall_ms, device_ms and host_ms, after those of earlier windows")]
    p50: Annotated[float, about("median wall time of a call in the window", "ms")]
    min: Annotated[float | None, about("shortest wall time of a call in the window", "ms")] = None


class Control(Section, frozen=True, kw_only=True):
    """The windows of a second process with the same cell: it shows how much equal code differs between processes."""

    windows: Annotated[tuple[Window, ...], about("in turns with all other cells; its samples are not kept")]


class Spread(Section, frozen=True):
    """How much the times of equal code differ between two processes."""

    std: Annotated[float, about("relative standard deviation between processes", "0 to 1")]
    freedom: Annotated[float, about("degrees of freedom of that number")]
    learned: Annotated[int, about("pairs of processes of this device that taught it; 0: a default")] = 0
    kind: Annotated[
        str | None, about("kind of cells that it holds for: captured, device-bound, host-bound, CPU, or CPU and pinned")
    ] = None

    def taught(self, pairs: Sequence[tuple[float, float]]) -> Spread:
        """Return this spread, corrected by pairs of placements of equal code.

        A pair is (difference of the logarithms of the two times, variance of that by noise). What was known before
        counts as `PRIOR_PAIRS` pairs at most.
        """
        if not pairs:
            return self
        prior = min(self.freedom, PRIOR_PAIRS)
        found = sum(max(0.0, difference**2 - variance) / 2 for difference, variance in pairs)
        freedom = prior + len(pairs)
        std = math.sqrt((prior * self.std**2 + found) / freedom)
        return Spread(std, freedom, self.learned + len(pairs), self.kind)


class Turns(Section, frozen=True, kw_only=True):
    """How a cell was timed in turns with the other variants of its component, which were prepared at the same time."""

    began: Annotated[str, about("when the component's first cell was started (UTC); equal for cells that took turns")]
    beside: Annotated[tuple[str, ...], about("variants that were prepared at the same time, and held memory")]
    windows: Annotated[tuple[Window, ...], about("its windows in the order in which they were taken")]
    stopped_by: Annotated[
        str | None, about("what ended the turns: decided (more windows would tell no more), iterations or time")
    ] = None
    controls: Annotated[tuple[Control, ...], about("further processes of this cell")] = ()
    spread: Annotated[Spread | None, about("difference of equal code between processes")] = None
    rate_looks: Annotated[int, about("looks at whether it holds a frame rate: more calls follow an undecided one")] = 1


class SweepPoint(Section, frozen=True, kw_only=True):
    """The value of a shape sweep at which a cell was measured."""

    component: Annotated[str, about("the component that is swept")]
    axis: Annotated[str, about("the input's axis or option that is swept")]
    value: Annotated[int | str, about("its value; 'all': one cell prepared for all values")]
