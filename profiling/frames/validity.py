"""What must not happen in timed frames: compiling, and capturing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiling.frames.series import Series


def compiled_or_captured(series: Series, events: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what was compiled or captured in the timed frames, and when first, or None."""
    told = []
    names = ("compiles", "compile"), ("captures", "CUDA graph captured"), ("graphs_recorded", "CUDA graph captured")
    for name, word in names:
        frames = [int(frame) for frame in (series[name] > 0).nonzero()[0]] if name in series else []
        if frames:
            ids = ", ".join(event["id"] for event in events) if name == "compiles" else ""
            told.append(f"{word} in {len(frames)} frames, first in {frames[0]}" + f" ({ids})" * bool(ids))
    return "; ".join(told) or None
