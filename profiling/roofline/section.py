"""The roofline section of a record: a call's work, roofline time and GPU work, and the bound of the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import torch

from profiling.components.component import Component
from profiling.results.environment import Ceilings
from profiling.results.record import Roofline
from profiling.roofline.verdict import Facts, judge
from profiling.roofline.work import roofline_of, traffic_ms, work_of
from profiling.trace.device_work import device_work
from profiling.variants.variant import Step


def call_roofline(
    component: Component, run: Callable[[], Any], ceilings: Ceilings, wall_ms: float | None, *, fused: bool
) -> Roofline:
    """Return the section for the step `run` of `component`; `wall_ms` is its median wall time, None if not timed.

    `fused` is true if a compiler replaced the module's operators. Must be called after the timing: it calls the module
    once and, on CUDA, profiles a few calls of the step.
    """
    work = work_of(component)
    least = roofline_of(work, ceilings)
    profiled = device_work(run) if component.device.type == "cuda" else None
    section = Roofline(
        bytes={**work.bytes, "total": work.total_bytes},
        flops={**work.flops, "total": work.total_flops},
        operators=work.operators,
        traffic_bytes=work.traffic,
        memory_ms=least.memory_ms,
        compute_ms=least.compute_ms,
        roofline_ms=least.ms,
        uncounted=work.uncounted,
        device_work=profiled,
    )
    if wall_ms is None:
        return section
    gpu: Mapping[str, Any] = {} if profiled is None else msgspec.structs.asdict(profiled)
    facts = Facts(
        device="cuda" if component.device.type == "cuda" else "cpu",
        wall_ms=wall_ms,
        memory_ms=least.memory_ms,
        compute_ms=least.compute_ms,
        traffic_ms=None if fused else traffic_ms(work, ceilings),
        operators=None if fused else work.operators,
        launch_us=ceilings.launch_us,
        gap_us=ceilings.gap_us,
        replay_us=ceilings.replay_us,
        dtype=ceilings.dtype,
        disturbed=ceilings.disturbed,
        tf32=bool(torch.backends.cuda.matmul.allow_tf32),
        **gpu,
    )
    over_roofline = wall_ms / least.ms if least.ms > 0 else None
    section = msgspec.structs.replace(section, over_roofline=over_roofline, idle_share=facts.idle_share)
    verdict = judge(facts)
    if verdict is None:
        return section
    return msgspec.structs.replace(
        section,
        bound=verdict.bound,
        evidence=verdict.evidence,
        next_step=verdict.next_step,
        advice=verdict.advice,
        predicted=verdict.prediction,
    )


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
) -> Roofline:
    """Return the section of a loop over frames: the sum over its stages, and each stage under `parts`.

    `frame_ms` is the median frame time, `stage_ms` the median time of each timed stage; `fused` names the stages whose
    operators a compiler replaced. `calls` is how often a stage is called when it runs, and the share of the frames in
    which it runs; once and always for a stage without. Roofline times of stages that run in turn add up. Where stages
    overlap, one may move bytes while another computes: the frame's roofline time is then the larger of total memory
    time and total compute time, and no stage has a verdict. Copies between stages are not counted. Calls each component
    once, eagerly, and on CUDA profiles its step; every component is reset at the end.
    """
    parts = {}
    weighted: list[tuple[float, Roofline]] = []
    for name, component in components.items():
        repeat, share = calls.get(name, (1, 1.0))
        wall_ms = None if overlapping or name not in stage_ms else stage_ms[name] / repeat
        parts[name] = call_roofline(component, steps[name].run, ceilings, wall_ms, fused=name in fused)
        weighted.append((repeat * share, parts[name]))
        component.reset()
    memory_ms = sum(weight * (part.memory_ms or 0.0) for weight, part in weighted)
    compute_ms = sum(weight * (part.compute_ms or 0.0) for weight, part in weighted)
    in_turn_ms = sum(weight * (part.roofline_ms or 0.0) for weight, part in weighted)
    roofline_ms = max(memory_ms, compute_ms) if overlapping else in_turn_ms
    return Roofline(
        bytes=_sums((weight, part.bytes) for weight, part in weighted),
        flops=_sums((weight, part.flops) for weight, part in weighted),
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
