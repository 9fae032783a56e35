"""The roofline section of a record: a call's work, roofline time and GPU work, and the bound of the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import torch
from msgspec.structs import replace

from profiling.components.component import Component
from profiling.machine.tf32 import tf32_allowed
from profiling.results.environment import Ceilings
from profiling.results.explanations import ModuleTime, Roofline, TraceAnalysis
from profiling.roofline.evidence import Conditions, Evidence
from profiling.roofline.rules import judge
from profiling.roofline.work import memory_and_compute_ms, work_of
from profiling.trace.analysis import kernel_classes, kernels_by_name, operators_by_name
from profiling.trace.attribution import KernelAttribution
from profiling.trace.device_work import profiled, summarize
from profiling.trace.events import Timeline, traced_calls
from profiling.trace.kernel_classes import class_of
from profiling.variants.inductor import missing_toolchain
from profiling.variants.variant import Step

#: Kernels or operators of a call that its section keeps.
LONGEST = 24
#: Least share of a module that is kept.
LEAST_SHARE = 0.01
#: Calls that are profiled.
_CALLS = 3


def call_roofline(
    component: Component,
    run: Callable[[], Any],
    ceilings: Ceilings,
    wall_ms: float | None,
    *,
    fused: bool,
    trace: Timeline | None = None,
    traced: TraceAnalysis | None = None,
) -> Roofline:
    """Return the section for the step `run` of `component`; `wall_ms` is its median wall time, None if not timed.

    `fused` is true if a compiler replaced the module's operators. `trace` is one of the step on a GPU, and `traced` its
    analysis, without which the rates of its kernels are not known. Must be called after the timing: it calls the module
    once, and without a trace profiles a few calls of the step.
    """
    work = work_of(component)
    memory_ms, compute_ms = memory_and_compute_ms(work, ceilings)
    on_gpu = component.device.type == "cuda"
    multiprocessors = torch.cuda.get_device_properties(component.device).multi_processor_count if on_gpu else None
    trace = profiled(run, _CALLS, cuda=on_gpu) if trace is None else trace
    if not on_gpu:
        kernels = operators_by_name(trace)
    elif traced is not None:
        kernels = traced.kernels
    else:
        calls = [
            [KernelAttribution(item, class_of(item, None), bytes=item.bytes) for item in each.work]
            for each in traced_calls(trace)
        ]
        kernels = kernels_by_name(calls)
    section = replace(
        work,
        memory_ms=memory_ms,
        compute_ms=compute_ms,
        roofline_ms=max(memory_ms, compute_ms),
        device_work=summarize(trace, multiprocessors) if on_gpu else None,
        kernels=kernels[:LONGEST],
        classes=kernel_classes(kernels),
        findings=() if traced is None else traced.findings,
        modules=() if traced is None else longest_modules(traced.modules),
        unattributed_ms=None if traced is None else traced.unattributed_ms,
    )
    if wall_ms is None:
        return section
    here = Conditions(
        device="cuda" if on_gpu else "cpu",
        fused=fused,
        tf32=tf32_allowed(),
        compiles=can_compile(component.device),
        multiprocessors=multiprocessors,
    )
    return judge(section, Evidence(section, wall_ms, ceilings, here))


def longest_modules(modules: Sequence[ModuleTime]) -> tuple[ModuleTime, ...]:
    """Return the modules that take `LEAST_SHARE` of the whole or more; what is below them counts as their own."""
    kept = {each.path: each for each in modules if (each.share or 0.0) >= LEAST_SHARE}
    own_ms = {path: each.ms for path, each in kept.items()}
    for path, each in kept.items():
        above = path
        while above:
            above = above.rpartition(".")[0]
            if above in kept:
                own_ms[above] -= each.ms
                break
    return tuple(replace(each, self_ms=max(0.0, own_ms[path])) for path, each in kept.items())


def can_compile(device: torch.device) -> bool:
    """Return whether torch.compile finds what generates code for `device`; does not import the compiler."""
    if device.type == "cuda":
        return find_spec("triton") is not None
    return missing_toolchain() is None


def frame_roofline(
    components: Mapping[str, Component],
    steps: Mapping[str, Step],
    ceilings: Ceilings,
    frame_ms: float | None,
    stage_ms: Mapping[str, float],
    *,
    fused: Collection[str],
    overlapping: bool,
    calls: Mapping[str, tuple[int, float]] = MappingProxyType({}),
    analyse: Callable[[str], tuple[Timeline | None, TraceAnalysis | None]] = lambda stage: (None, None),
) -> Roofline:
    """Return the section of a loop over frames: the sum over its stages, and each stage under `parts`.

    `frame_ms` and `stage_ms` are median times; `fused` names the stages whose operators a compiler replaced. `calls` is
    how often a stage is called when it runs, and the share of the frames in which it runs (default: once, in all).
    `analyse` returns a trace of a stage's step and its analysis; None: it was not traced.

    Roofline times of stages that run in turn add up. Where stages overlap, one may move bytes while another computes:
    the frame's roofline time is then the larger of total memory time and total compute time, and no stage has a bound.
    Copies between stages are not counted. Calls each component once, eagerly, profiles its step, and resets it.
    """
    parts = {}
    weighted: list[tuple[float, Roofline]] = []
    for name, component in components.items():
        repeat, share = calls.get(name, (1, 1.0))
        wall_ms = None if overlapping or name not in stage_ms else stage_ms[name] / repeat
        run, (trace, traced) = steps[name].repeat, analyse(name)
        found = call_roofline(component, run, ceilings, wall_ms, fused=name in fused, trace=trace, traced=traced)
        parts[name] = replace(found, modules=(), unattributed_ms=None)  # a record has them of the whole call only
        weighted.append((repeat * share, parts[name]))
        component.reset()
    memory_ms = sum(weight * (part.memory_ms or 0.0) for weight, part in weighted)
    compute_ms = sum(weight * (part.compute_ms or 0.0) for weight, part in weighted)
    in_turn_ms = sum(weight * (part.roofline_ms or 0.0) for weight, part in weighted)
    roofline_ms = max(memory_ms, compute_ms) if overlapping else in_turn_ms
    return Roofline(
        bytes=_sums((weight, part.bytes) for weight, part in weighted),
        flops=_sums((weight, part.flops) for weight, part in weighted),
        flops_by_dtype=_sums((weight, part.flops_by_dtype) for weight, part in weighted),
        memory_ms=memory_ms,
        compute_ms=compute_ms,
        roofline_ms=roofline_ms,
        over_roofline=None if frame_ms is None or roofline_ms <= 0 else frame_ms / roofline_ms,
        parts=parts,
    )


def _sums(counts: Iterable[tuple[float, Mapping[str, int]]]) -> dict[str, int]:
    """Return the weighted sums by kind; a stage that runs in every n-th frame counts 1/n."""
    total: Counter[str] = Counter()
    for weight, each in counts:
        total.update({kind: round(weight * number) for kind, number in each.items()})
    return dict(total)
