"""Upgrades a line of schema 1 to schema 2. Every rename is in `RENAMED`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Old path → new name; `*` stands for every key of a mapping or every item of a list.
RENAMED = {
    "limits": "roofline",
    "inside": "trace_analysis",
    "roofline.floor_ms": "roofline_ms",
    "roofline.achieved_over_floor": "over_roofline",
    "roofline.parts.*.floor_ms": "roofline_ms",
    "roofline.parts.*.achieved_over_floor": "over_roofline",
    "trace_analysis.modules.*.own_ms": "self_ms",
    "realtime.garbage": "gc",
    "realtime.sound.of": "window_latents",
    "realtime.sound.snr_bar_db": "min_snr_db",
    "graphs.gain": "speedup",
}
#: Old words of `roofline.bound`; "latency-bound" is resolved by what the GPU did.
BOUNDS = {
    "launch-bound": "launch overhead",
    "memory-bound": "memory bandwidth",
    "compute-bound": "compute",
    "transfer-bound": "transfers",
    "sync-bound": "host",
    "host-bound": "host",
}
#: Metrics that schema 2 has fields for; all others were a user's own.
METRICS = ("wall_ms", "device_ms", "host_ms", "fps", "latency", "calls", "drift", "other_shapes")


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a schema 1 record as one of schema 2; what has another shape is left as it is."""
    content = {**content, "schema": 2}
    for path, name in RENAMED.items():
        *parents, old = path.split(".")
        _rename(content, parents, old, name)
    roofline = content.get("roofline")
    if isinstance(roofline, dict):
        parts = roofline.get("parts")
        for part in (roofline, *(parts.values() if isinstance(parts, dict) else ())):
            if isinstance(part, dict) and isinstance(part.get("bound"), str):
                part["bound"] = _bound(part)
    metrics = content.get("metrics")
    if isinstance(metrics, dict):
        extra = {name: value for name, value in metrics.items() if name not in METRICS}
        known = {name: value for name, value in metrics.items() if name in METRICS}
        content["metrics"] = known | ({"extra": extra} if extra else {})
    return content


def _rename(content: Any, parents: list[str], old: str, new: str) -> None:
    if parents and parents[0] == "*":
        items = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
        for item in items:
            _rename(item, parents[1:], old, new)
    elif isinstance(content, dict) and parents:
        _rename(content.get(parents[0]), parents[1:], old, new)
    elif isinstance(content, dict) and old in content:
        content[new] = content.pop(old)


def _bound(part: Mapping[str, Any]) -> str:
    bound: str = part["bound"]
    if bound != "latency-bound":
        return BOUNDS.get(bound, bound)
    work = part.get("device_work")
    short, busy = (work.get(name) if isinstance(work, dict) else None for name in ("short_ms", "busy_ms"))
    idle = part.get("idle_share")
    if isinstance(idle, int | float) and idle >= 0.25:
        return "underfilled GPU"
    if isinstance(short, int | float) and isinstance(busy, int | float) and short > busy / 2:
        return "underfilled GPU"
    return "slow kernels"
