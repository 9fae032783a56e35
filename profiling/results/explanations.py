"""Sections of a record that explain its times: CUDA graphs, compile log, kernels, roofline, trace, launch costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec

from profiling.results.field import Section, about
from profiling.results.measured import Interval, MemoryKinds

Bound = Literal["launch overhead", "memory bandwidth", "compute", "underfilled GPU", "host", "transfers"]
FindingKind = Literal[
    "reduction", "layout conversion", "cast", "bias or activation", "grouped convolution", "1x1 convolution",
    "convolution", "split-K", "memset", "few rows", "product", "attention", "elementwise",
]  # fmt: skip
KernelBound = Literal["memory bandwidth", "L2 bandwidth", "compute", "neither"]


class BeforeAfter(Section, frozen=True, kw_only=True):
    """The same number without and with an optimisation."""

    before: Annotated[float | None, about("without it")] = None
    after: Annotated[float | None, about("with it")] = None


class Graphs(Section, frozen=True, kw_only=True):
    """CUDA graphs that the variant captured itself."""

    held: Annotated[int | None, about("graphs in the cache")] = None
    capture_seconds: Annotated[float | None, about("static inputs, capture and instantiation", "s")] = None
    pool_bytes: Annotated[int | None, about("reserved by the pool that the graphs share", "bytes")] = None
    memory: Annotated[Mapping[str, MemoryKinds], about("memory at each phase of the last capture, by phase")] = {}


class ModuleChoice(Section, frozen=True, kw_only=True):
    """A layer that a transform could replace, and what it did with it."""

    name: Annotated[str, about("its path in the module")]
    shape: Annotated[tuple[int, ...], about("outputs, inputs")]
    rows: Annotated[tuple[int, int] | None, about("smallest and largest number of input rows in a call")] = None
    left: Annotated[str | None, about("why it was left as it was; absent: it was replaced")] = None
    now: Annotated[str | None, about("type of the weight, or of the layer, that replaced it")] = None


class Choices(Section, frozen=True, kw_only=True):
    """The layers that a transform replaced, and those that it left, by reason."""

    replaced: Annotated[int, about("layers that it replaced")]
    now: Annotated[Mapping[str, int], about("replaced layers by the type of their weight, or of the layer")] = {}
    left: Annotated[Mapping[str, int], about("number of layers left, by reason")] = {}
    layers: Annotated[tuple[ModuleChoice, ...], about("up to 200 layers, those left first")] = ()


class Package(Section, frozen=True, kw_only=True):
    """A file that an ahead-of-time compiler wrote, and that was loaded and measured."""

    file: Annotated[str, about("path relative to the run folder")]
    bytes: Annotated[int, about("size of the file", "bytes", "size")]
    export_s: Annotated[float, about("torch.export", "s")]
    compile_s: Annotated[
        float, about("compiling and writing the file; if `cached`, getting it; and hashing the weights", "s")
    ]
    load_s: Annotated[float, about("loading the file, in the process that made it", "s")]
    dynamic: Annotated[
        tuple[str, ...], about("dynamic axes, as INPUT.AXIS; sizes from the smallest to the largest input")
    ] = ()
    cached: Annotated[bool, about("made earlier in the run, from the same program, weights and options")] = False


class ShapeCompile(Section, frozen=True, kw_only=True):
    """The first call of a compiled module on inputs of one shape, made after the calls of the shapes before it."""

    inputs: Annotated[str, about("what differs from the other shapes: `x float32 [4, 8]`", title="new shape")]
    seconds: Annotated[float, about("until the call returned, compiling included", "s", "first call")]
    graphs: Annotated[int, about("FX graphs compiled; 0: code compiled for an earlier shape was used")] = 0
    recompiles: Annotated[int, about("compiles of a function that was compiled before")] = 0


class RecipeStep(Section, frozen=True, kw_only=True):
    """A step of a recipe: a transform of the module, its compiler, or its capture."""

    kind: Annotated[Literal["transform", "compiler", "capture"], about("what it is", title="step")]
    name: Annotated[str, about("of a transform its step, where it has a name; else its class or function")]
    stage: Annotated[str | None, about("realtime: the stage that it prepared")] = None
    seconds: Annotated[float, about("until the device was idle", "s", "took")]
    changed: Annotated[
        int | None, about("number of places or modules changed, or graphs compiled or captured; absent: not counted")
    ] = None
    choices: Annotated[Choices | None, about("layers that a transform replaced and left")] = None
    packages: Annotated[tuple[Package, ...] | None, about("files that it wrote and loaded")] = None
    shapes: Annotated[
        tuple[ShapeCompile, ...] | None, about("its first calls in their order, where the inputs have several shapes")
    ] = None
    notes: Annotated[tuple[str, ...], about("remarks, one line each")] = ()


class LayerSensitivity(Section, frozen=True, kw_only=True):
    """A layer, quantised alone."""

    name: Annotated[str, about("its path in the module", title="layer")]
    shape: Annotated[tuple[int, ...], about("outputs, inputs")]
    rel_l2: Annotated[
        float | None,
        about("relative L2 change of the module's output; absent: not finite", "relative", "rel. L2 error"),
    ] = None
    ms: Annotated[BeforeAfter, about("time of its products in a call, unquantised and quantised", "ms", "products")]


class Sensitivity(Section, frozen=True, kw_only=True):
    """The error that each layer causes if it alone is quantised, and the time that leaving it unquantised costs."""

    layers: Annotated[tuple[LayerSensitivity, ...], about("the measured layers, largest error first")]
    quantised: Annotated[int, about("number of quantised layers; small ones may be missing in `layers` (time limit)")]
    timed: Annotated[str, about("how the times were obtained")]


class FxPass(Section, frozen=True, kw_only=True):
    """A torch.fx pass of a variant without a compiler, in the order of application."""

    name: Annotated[str, about("name of the pass", title="pass")]
    replaced: Annotated[int | None, about("places that it rewrote; absent where it does not count them")] = None
    rel_l2: Annotated[float | None, about("relative L2 change of the output", "relative", "rel. L2 error")] = None
    replay_ms: Annotated[BeforeAfter | None, about("device time of a replay before and after the pass", "ms")] = None
    unmeasured: Annotated[str | None, about("why there are no replay times", title="not measured because")] = None


class CompileEvent(Section, frozen=True, kw_only=True):
    """A place in the code at which the compiler gave up (a graph break, a failure) or began again (a recompile)."""

    reason: Annotated[str, about("Dynamo's reason; of a recompile the guard that failed; of a failure its first line")]
    file: Annotated[str | None, about("file of the user's code")] = None
    line: Annotated[int | None, about("line in that file")] = None
    compile_id: Annotated[str | None, about("Dynamo's compile id; absent for a graph break")] = None
    kind: Annotated[str | None, about("of a failure: type of the error")] = None


class CompileLog(Section, frozen=True, kw_only=True):
    """The log of torch.compile (TORCH_TRACE, parsed by tlparse)."""

    index: Annotated[str, about("the HTML report, relative to the run folder", title="report")]
    graph_breaks: Annotated[tuple[CompileEvent, ...], about("graph breaks, each place once")] = ()
    recompiles: Annotated[tuple[CompileEvent, ...], about("functions that were compiled again")] = ()
    failures: Annotated[tuple[CompileEvent, ...], about("functions that did not compile")] = ()
    cudagraph_skips: Annotated[tuple[str, ...], about("why inductor did not capture a graph")] = ()


class TraceFiles(Section, frozen=True, kw_only=True):
    """The files of a profiler trace; `trace_analysis` is what it says."""

    trace: Annotated[str, about("Chrome trace, relative to the run folder")]
    operators: Annotated[
        str | None, about("table of operators, relative to the run folder", title="operator table")
    ] = None
    seconds: Annotated[float | None, about("duration of profiling and of its analysis", "s")] = None


class MemorySnapshot(Section, frozen=True, kw_only=True):
    """Torch's memory snapshot of loading, preparing and a few calls, made after everything was measured."""

    file: Annotated[
        str, about("path relative to the run folder; pytorch.org/memory_viz opens it", title="memory snapshot")
    ]
    seconds: Annotated[float | None, about("duration of loading, preparing and calling once more", "s")] = None
    ended_by: Annotated[str | None, about("what ended it early, an allocation that failed for example")] = None


#: Longest short kernel, in microseconds: most of its time is start-up and one access to memory.
SHORT_US = 5.0


class DeviceWork(Section, frozen=True, kw_only=True):
    """The GPU's work in a call."""

    kernels: Annotated[float, about("kernels, copies and fills a call", "count")]
    launches: Annotated[float, about("launches by the host a call; a graph replay is one", "count")]
    busy_ms: Annotated[float, about("time in which at least one of them ran", "ms")]
    median_us: Annotated[float, about("median duration of a kernel", "us", "median kernel")]
    short_ms: Annotated[float, about("part of busy_ms in which only kernels of at most 5 us ran", "ms")]
    transfer_ms: Annotated[float, about("copies between host and device", "ms")]
    waits: Annotated[float, about("waits of the host for the device, a call", "count")]
    underfilled_ms: Annotated[
        float | None,
        about("part of busy_ms in which only kernels ran of at most 5 us, or of few blocks and at most 20 us", "ms"),
    ] = None


class NextStep(Section, frozen=True, kw_only=True):
    """Something to try: a variant of this tool, or a change of the kernels."""

    words: Annotated[str, about("in a few words")]
    advice: Annotated[str, about("as a sentence")]
    variant: Annotated[str | None, about("the variant to run; absent where the step is none", title="of")] = None
    wall_ms: Annotated[float | None, about("wall time that it should reach", "ms", "predicted")] = None


#: The classes of kernels in the order of a report, and what they are called in words.
KERNEL_CLASSES: Mapping[str, str] = {
    **{"gemm": "GEMM", "conv": "convolution", "attention": "attention", "pointwise": "pointwise"},
    **{"reduction": "norms, reductions", "copy": "copies", "other": "other"},
}


class KernelClass(Section, frozen=True, kw_only=True):
    """Kernels of one class: gemm, conv, attention, pointwise, reduction, copy, other."""

    kind: Annotated[str, about("class of the kernels", title="class")] = msgspec.field(name="class")
    ms: Annotated[float, about("duration a call", "ms", "total")]
    share: Annotated[float | None, about("share of all kernel time", "0 to 1", title="share of kernel time")] = None
    count: Annotated[float | None, about("kernels a call", "count")] = None


class Kernel(KernelClass, frozen=True, kw_only=True):
    """All launches of one kernel, by name."""

    name: Annotated[str, about("name of the kernel, at most 200 characters", title="kernel")]
    mean_us: Annotated[float | None, about("mean duration of a launch", "us")] = None
    typical_us: Annotated[float | None, about("the same, each launch weighted by its duration", "us")] = None
    gbps: Annotated[float | None, about("bytes of its operators over its duration", "GB/s", "")] = None
    tflops: Annotated[float | None, about("FLOPs of its operators over its duration", "TFLOP/s", "")] = None
    dtype: Annotated[str | None, about("dtype of the operands of its FLOPs; absent: not known, or several")] = None
    blocks: Annotated[float | None, about("mean thread blocks of a launch", "count")] = None
    occupancy: Annotated[float | None, about("occupancy that CUPTI estimates from the launch", "0 to 1")] = None


class KernelFinding(Section, frozen=True, kw_only=True):
    """Kernels of a call that could take less time, or be left out, and what that could save."""

    kind: Annotated[FindingKind, about("what is wrong with them")]
    what: Annotated[str, about("the kernels in words: reductions (group norm), for example", title="kernels")]
    ms: Annotated[float, about("duration a call", "ms", "time")]
    saves_ms: Annotated[float, about("duration beyond the ceilings'; all of it where they can be left out", "ms")]
    share: Annotated[float | None, about("share of all kernel time", "0 to 1", title="share of kernel time")] = None
    count: Annotated[float | None, about("kernels a call", "count")] = None
    gbps: Annotated[float | None, about("bytes of its operators over its duration", "GB/s", "")] = None
    tflops: Annotated[float | None, about("FLOPs of its operators over its duration", "TFLOP/s", "")] = None
    of_ceiling: Annotated[float | None, about("time at the nearer ceiling over the duration", "0 to 1")] = None
    blocks: Annotated[float | None, about("mean thread blocks of a launch", "count")] = None
    kernels: Annotated[tuple[str, ...], about("names of the longest of them")] = ()


class ModuleTime(Section, frozen=True, kw_only=True):
    """A submodule and its time a call."""

    path: Annotated[str, about("dotted path; empty for the component itself", title="module")]
    ms: Annotated[float, about("duration of the module and all below it", "ms", "total")]
    share: Annotated[float | None, about("share of the whole", "0 to 1")] = None
    count: Annotated[float | None, about("kernels a call; on a CPU forward calls", "count")] = None
    self_ms: Annotated[float | None, about("duration without the modules below it", "ms")] = None


class RooflinePart(Section, frozen=True, kw_only=True):
    """The least work of a call, the GPU's measured work, and what bounds the call."""

    bytes: Annotated[Mapping[str, int], about("bytes that must cross the memory bus, by kind, and total", "bytes")] = {}
    flops: Annotated[Mapping[str, int], about("FLOPs by class of operator, and total")] = {}
    flops_by_dtype: Annotated[Mapping[str, int], about("the same FLOPs by dtype of the operands")] = {}
    operators: Annotated[int | None, about("operators of an eager call")] = None
    traffic_bytes: Annotated[int | None, about("read and written by the operators of an eager call", "bytes")] = None
    memory_ms: Annotated[float | None, about("time of the bytes at the bandwidth ceiling", "ms")] = None
    compute_ms: Annotated[float | None, about("time of the FLOPs at the FLOP ceiling", "ms")] = None
    roofline_ms: Annotated[float | None, about("the larger of memory_ms and compute_ms", "ms")] = None
    over_roofline: Annotated[float | None, about("median wall time over roofline_ms", "ratio")] = None
    uncounted: Annotated[tuple[str, ...], about("operators whose FLOPs have no formula")] = ()
    device_work: Annotated[DeviceWork | None, about("the GPU's work in a call")] = None
    idle_share: Annotated[float | None, about("share of wall time in which the GPU was idle", "0 to 1", "GPU idle")] = (
        None
    )
    bound: Annotated[
        str | None,
        about(
            f"what bounds the call: {', '.join(get_args(Bound))}; where none of these, the kernels, or operators, that "
            "take most of it, with their share",
            title="bound by",
        ),
    ] = None
    evidence: Annotated[tuple[str, ...], about("why, the decisive observation first")] = ()
    steps: Annotated[tuple[NextStep, ...], about("what to try, best first")] = ()
    classes: Annotated[tuple[KernelClass, ...], about("time of kernels, on a CPU of operators, by class")] = ()
    kernels: Annotated[tuple[Kernel, ...], about("longest kernels of a call; on a CPU: operators, self time")] = ()
    findings: Annotated[tuple[KernelFinding, ...], about("kernels that could take less, the largest saving first")] = ()


class Roofline(RooflinePart, frozen=True, kw_only=True):
    """The roofline of a cell; of a loop: the sum over its stages, and each stage."""

    parts: Annotated[Mapping[str, RooflinePart], about("realtime: by stage")] = {}
    modules: Annotated[tuple[ModuleTime, ...], about("submodules that take 1% of the kernels' time or more")] = ()
    unattributed_ms: Annotated[float | None, about("time that belongs to no submodule for certain", "ms")] = None


class Idle(Section, frozen=True, kw_only=True):
    """Idle time of the GPU inside a call by its cause."""

    host_ms: Annotated[
        float, about("idle because the host had not launched the next kernel", "ms", "idle, waiting for the host")
    ]
    between_ms: Annotated[
        float,
        about("idle between kernels that were queued, or between nodes of a graph", "ms", "idle, between kernels"),
    ]


class HostWait(Section, frozen=True, kw_only=True):
    """Waits of the host for the device, or copies between them, by the line of code that made them."""

    what: Annotated[str, about("the runtime call, or the direction of the copy")]
    count: Annotated[float, about("number of them a call", "count")]
    ms: Annotated[float, about("duration a call: host time of waits, device time of copies", "ms", "time")]
    bytes: Annotated[float | None, about("copied a call", "bytes", "copied")] = None
    line: Annotated[str | None, about("file:line")] = None
    code: Annotated[str | None, about("the source line")] = None


class TraceAnalysis(Section, frozen=True, kw_only=True):
    """The profiler trace of one call: busy and idle time, kernels, submodules, waits and copies."""

    calls: Annotated[int | None, about("calls, or frames, over which times are averaged", title="calls traced")] = None
    span_ms: Annotated[float | None, about("from the first GPU work to the end of the last", "ms")] = None
    busy_ms: Annotated[float | None, about("time in which the GPU worked", "ms")] = None
    idle: Annotated[Idle | None, about("idle time by cause")] = None
    kernel_ms: Annotated[float | None, about("summed duration of all GPU work", "ms")] = None
    count: Annotated[float | None, about("kernels, copies and fills a call", "count", "kernels, copies, fills")] = None
    classes: Annotated[tuple[KernelClass, ...], about("by class, longest first")] = ()
    kernels: Annotated[tuple[Kernel, ...], about("by name, longest first; on a CPU: operators, self time")] = ()
    findings: Annotated[tuple[KernelFinding, ...], about("kernels that could take less, the largest saving first")] = ()
    waits: Annotated[tuple[HostWait, ...], about("waits of the host, longest first")] = ()
    copies: Annotated[tuple[HostWait, ...], about("copies between host and device, longest first")] = ()
    modules: Annotated[tuple[ModuleTime, ...], about("submodules in the order of the tree")] = ()
    unattributed_ms: Annotated[float | None, about("time that belongs to no submodule for certain", "ms")] = None
    modules_from: Annotated[str | None, about("source of the attribution to submodules, or why there is none")] = None


class CountedKernel(Section, frozen=True, kw_only=True):
    """Hardware counters of a kernel, by name: means over the launches of each measured grid and block.

    Rates are weighted by the time of these launches in a call; durations and bytes by their number.
    """

    name: Annotated[str, about("name of the kernel, at most 200 characters", title="kernel")]
    ms: Annotated[float, about("duration a call, from the trace", "ms", "total")]
    share: Annotated[float | None, about("share of all kernel time", "0 to 1", title="share of kernel time")] = None
    launches: Annotated[int, about("launches that were measured; 0: none of its launches was met")] = 0
    covered: Annotated[float | None, about("share of its time in launches of a measured grid and block", "0 to 1")] = (
        None
    )
    counted_us: Annotated[
        float | None, about("mean duration of the measured launches, under ncu", "us", "mean under ncu")
    ] = None
    mean_us: Annotated[float | None, about("mean duration of the same launches in the trace", "us")] = None
    dram: Annotated[float | None, about("DRAM throughput, share of its peak", "0 to 1", "DRAM")] = None
    dram_bytes: Annotated[float | None, about("read from and written to DRAM by a launch", "bytes")] = None
    l2: Annotated[float | None, about("L2 throughput, share of its peak", "0 to 1", "L2")] = None
    l2_bytes: Annotated[
        float | None, about("requested of L2 by a launch: also what it reads again, and all of each sector", "bytes")
    ] = None
    tensor: Annotated[
        float | None, about("cycles in which tensor pipes were active, share of all", "0 to 1", "tensor pipes")
    ] = None
    fma: Annotated[
        float | None, about("cycles in which FMA pipes (FP32, FP16) were active, share of all", "0 to 1", "FMA pipes")
    ] = None
    sm: Annotated[float | None, about("throughput of the multiprocessors, share of its peak", "0 to 1", "SM")] = None
    occupancy: Annotated[float | None, about("achieved occupancy: active warps over the most that fit", "0 to 1")] = (
        None
    )
    bound_by_counters: Annotated[KernelBound | None, about("what bounds it by these counters")] = None
    bound_by_trace: Annotated[
        KernelBound | None,
        about("what bounds it by its bytes, FLOPs and duration; neither: below both ceilings, for reasons not visible"),
    ] = None


class HardwareCounters(Section, frozen=True, kw_only=True):
    """Hardware counters of the longest kernels of a call, which ncu measured in a process of its own."""

    file: Annotated[str, about("what ncu wrote, CSV, relative to the run folder")]
    kernels: Annotated[tuple[CountedKernel, ...], about("by name, longest first")] = ()
    seconds: Annotated[float | None, about("duration of loading, preparing and measuring", "s")] = None
    passes: Annotated[float | None, about("mean number of times that ncu ran a launch, to read all counters")] = None


class Estimate(Section, frozen=True, kw_only=True):
    """A median over rounds; its unit is in the name of the field it is in."""

    p50: Annotated[float, about("median over rounds")]
    n: Annotated[int | None, about("rounds")] = None
    ci95: Annotated[Interval | None, about("95% interval of the median")] = None


class LaunchCosts(Section, frozen=True, kw_only=True):
    """Host and device time of a launch, for one chain of operators; on a CPU: time of dispatching an operator."""

    elements: Annotated[int | None, about("elements of the smallest elementwise operator")] = None
    rows: Annotated[int | None, about("rows of the linear's input")] = None
    width: Annotated[int | None, about("width of the smallest linear")] = None
    host_us_per_launch: Annotated[Estimate | None, about("host time of a launch", "us", "host, a launch")] = None
    gpu_us_per_launch: Annotated[
        Estimate | None, about("device time of a launch while the queue is full", "us", "GPU, a launch")
    ] = None
    starvation_elements: Annotated[
        Estimate | None, about("below this size an eager loop leaves the GPU idle", "elements", "GPU idles below:")
    ] = None
    starvation_width: Annotated[
        Estimate | None, about("the same for a linear: its width", "columns", "GPU idles below:")
    ] = None
    starvation_us: Annotated[
        Estimate | None, about("duration of an operator of that size", "us", "GPU idles below:")
    ] = None
    starvation_note: Annotated[str | None, about("why there is no such size")] = None
    graph_us_per_node: Annotated[
        Estimate | None, about("device time of a node of a CUDA graph", "us", "GPU, a graph node")
    ] = None
    graph_launch_host_us: Annotated[
        Estimate | None, about("host time of a replay, without its nodes", "us", "host, a replay")
    ] = None
    graph_host_us_per_node: Annotated[
        Estimate | None, about("host time of a replay by node", "us", "host, a graph node")
    ] = None
    graph_launch_device_us: Annotated[
        Estimate | None, about("device time of a replay, without its nodes", "us", "GPU, a replay")
    ] = None
    dispatch_us_per_operator: Annotated[
        Estimate | None, about("CPU: time of the smallest operator", "us", "dispatch of an operator")
    ] = None
    dispatch_bound_elements: Annotated[
        Estimate | None,
        about("CPU: size at which the work takes as long as the dispatch", "elements", "work as long as dispatch:"),
    ] = None
    dispatch_bound_width: Annotated[
        Estimate | None, about("CPU: width of a linear at that size", "columns", "work as long as dispatch:")
    ] = None
    dispatch_bound_note: Annotated[str | None, about("CPU: why there is no such size")] = None


class LaunchCalibration(LaunchCosts, frozen=True, kw_only=True):
    """Launch costs of this device: of the smallest elementwise operator, and under `linear` of a linear."""

    device: Annotated[str, about("the device that was measured")]
    dtype: Annotated[str, about("dtype of the operators")]
    rounds: Annotated[int, about("rounds")]
    linear: Annotated[LaunchCosts | None, about("the same for a linear layer")] = None


class OperatorCost(Section, frozen=True, kw_only=True):
    """Microseconds of an operator at one size."""

    chain: Annotated[str, about("kind of operator: elementwise or linear")]
    elements: Annotated[int | None, about("its size", "elements")] = None
    width: Annotated[int | None, about("its size", "columns")] = None
    host_us: Annotated[Estimate | None, about("host time", "us")] = None
    gpu_us: Annotated[Estimate | None, about("device time while the queue is full", "us")] = None
    pace_us: Annotated[Estimate | None, about("device time in an eager loop", "us")] = None


class LaunchOverhead(Section, frozen=True, kw_only=True):
    """The result of the target launch_overhead."""

    launch_calibration: Annotated[LaunchCalibration, about("the headline numbers")]
    operators: Annotated[tuple[OperatorCost, ...], about("an operator's cost at each size")] = ()
