"""The record's section `limits`: what the call must do, its floor, what the GPU did, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from profiling.components.component import Component
from profiling.machine.ceilings import Ceilings
from profiling.roofline.verdict import Facts, Verdict, judge
from profiling.roofline.work import Work, floor_of, traffic_ms, work_of
from profiling.trace.device_work import DeviceWork, device_work


def limits_of(
    component: Component, run: Callable[[], Any], ceilings: Ceilings, wall_ms: float | None, *, fused: bool
) -> dict[str, Any]:
    """Return the section for the step `run` of `component`, whose median wall time was `wall_ms`, if it was timed.

    `fused` says that the step does not run the module's own operators one by one. Runs the module once, and on CUDA the
    step a few times under the profiler: for after the timing.
    """
    work = work_of(component)
    floor = floor_of(work, ceilings)
    section = needs_of(work, ceilings)
    seen = device_work(run) if component.device.type == "cuda" else None
    if seen is not None:
        section["device_work"] = asdict(seen)
    if wall_ms is None:
        return section
    if floor.ms > 0:
        section["achieved_over_floor"] = wall_ms / floor.ms
    facts = Facts(
        device="cuda" if component.device.type == "cuda" else "cpu",
        wall_ms=wall_ms,
        memory_ms=floor.memory_ms,
        compute_ms=floor.compute_ms,
        traffic_ms=None if fused else traffic_ms(work, ceilings),
        operators=None if fused else work.operators,
        launch_us=ceilings.launch_us,
        gap_us=ceilings.gap_us,
        replay_us=ceilings.replay_us,
        dtype=ceilings.dtype,
        disturbed=ceilings.disturbed,
        tf32=bool(torch.backends.cuda.matmul.allow_tf32),
        **_seen(seen),
    )
    if facts.idle_share is not None:
        section["idle_share"] = facts.idle_share
    verdict = judge(facts)
    return section if verdict is None else section | _told(verdict)


def needs_of(work: Work, ceilings: Ceilings) -> dict[str, Any]:
    """Return what a call must do at least, whatever executes it: bytes by kind, FLOPs by class, and the times of both.

    `operators` and `traffic_bytes` are the eager call's.
    """
    floor = floor_of(work, ceilings)
    section: dict[str, Any] = {
        "bytes": {**work.bytes, "total": work.total_bytes},
        "flops": {**work.flops, "total": work.total_flops},
        "operators": work.operators,
        "traffic_bytes": work.traffic,
        "memory_ms": floor.memory_ms,
        "compute_ms": floor.compute_ms,
        "floor_ms": floor.ms,
    }
    return section | ({"uncounted": work.foreign} if work.foreign else {})


def _seen(work: DeviceWork | None) -> Mapping[str, Any]:
    return {} if work is None else asdict(work)


def _told(verdict: Verdict) -> dict[str, Any]:
    told: dict[str, Any] = {"bound": verdict.bound, "evidence": verdict.evidence, "advice": verdict.advice}
    if verdict.predicted_ms is not None:
        told["predicted"] = {"variant": verdict.predicts, "wall_ms": verdict.predicted_ms}
    return told
