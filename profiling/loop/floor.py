"""The least time that a frame can take on this device: what each network of the loop must do for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from profiling.core.components import Component
from profiling.limits.ceilings import Ceilings
from profiling.limits.section import needs_of
from profiling.limits.work import work_of


def frame_limits(
    components: Mapping[str, Component], ceilings: Ceilings, frame_ms: float | None, *, overlapping: bool
) -> dict[str, Any]:
    """Return the section `limits` of a loop whose median frame took `frame_ms`, if any did.

    `parts` holds what each of `components` must do for a frame, and the section itself the sum. The parts' floors add
    up where one comes after the other; where they overlap, one may move bytes while another computes, and the larger
    of the two sums is the floor. Copies between the stages and to the player are not in it. Runs each component once,
    eagerly, and leaves it at its reset state: for after the frames.
    """
    parts = {name: needs_of(work_of(component), ceilings) for name, component in components.items()}
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
