"""The least time that a frame can take on this device, and what bounds each network of the loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from profiling.core.components import Component
from profiling.limits.ceilings import Ceilings
from profiling.limits.section import limits_of
from profiling.variants.variant import Step


def frame_limits(
    components: Mapping[str, Component],
    steps: Mapping[str, Step],
    ceilings: Ceilings,
    frame_ms: float | None,
    part_ms: Mapping[str, float],
    *,
    fused: Collection[str],
    overlapping: bool,
) -> dict[str, Any]:
    """Return the section `limits` of a loop whose median frame took `frame_ms`, if any did.

    `parts` holds what each of `components` must do for a frame and what bounds its step, whose median time is in
    `part_ms`, and the section itself the sum. The parts' floors add up where one comes after the other; where they
    overlap, one may move bytes while another computes, and the larger of the two sums is the floor; what then bounds
    each alone is not asked. Copies between the stages and to the player are not in it. Runs each component once,
    eagerly, and on CUDA its step a few times, and leaves it at its reset state: for after the frames.
    """
    parts = {}
    for name, component in components.items():
        time_ms = None if overlapping else part_ms.get(name)
        parts[name] = limits_of(component, steps[name].run, ceilings, time_ms, fused=name in fused)
        component.reset()
    memory, compute = (sum(part[term] for part in parts.values()) for term in ("memory_ms", "compute_ms"))
    floor = max(memory, compute) if overlapping else sum(part["floor_ms"] for part in parts.values())
    section: dict[str, Any] = {
        "bytes": _added(part["bytes"] for part in parts.values()),
        "flops": _added(part["flops"] for part in parts.values()),
        "memory_ms": memory,
        "compute_ms": compute,
        "floor_ms": floor,
        "parts": parts,
    }
    if frame_ms is not None and floor > 0:
        section["achieved_over_floor"] = frame_ms / floor
    return section


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for mapping in counts:
        for kind, count in mapping.items():
            total[kind] = total.get(kind, 0) + count
    return total
