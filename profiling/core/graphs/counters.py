"""What an engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphCounters:
    """Totals since the engine was made; `held` graphs are in its cache now.

    `warmup_seconds` are those of the calls before a capture, compiling included where they compile; `capture_seconds`
    what else a new signature costs: static inputs, capture and instantiation.
    `pool_bytes` is what the pool that its graphs share has reserved on the device.
    """

    recorded: int = 0
    replayed: int = 0
    evicted: int = 0
    held: int = 0
    warmup_seconds: float = 0.0
    capture_seconds: float = 0.0
    pool_bytes: int = 0
