"""Into which phases the compile seconds of a cell went, out of the metrics that torch.compile logs for each frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: The phases from the outermost in, each with the metric (microseconds) of it and all within: its own part is what the
#: next does not take. torch 2.11 and 2.13 write them.
_NESTED = (
    ("aot autograd", "aot_autograd_cumulative_compile_time_us"),
    ("inductor", "inductor_cumulative_compile_time_us"),
    ("code generation", "inductor_code_gen_cumulative_compile_time_us"),
    ("kernel compilation", "triton_compile_time_us"),
)


def phases_of(frames: Iterable[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return seconds by phase, each without the phases inside it: they add up to the seconds given.

    `frames` are metrics with the seconds of the whole. `dynamo` is what none of the others takes, `kernel compilation`
    waiting for Triton or the C++ compiler. A back end other than inductor is in `aot autograd`, and so is what a
    backward graph takes besides inductor. Phases that no frame has are left out.
    """
    found: dict[str, float] = {}
    for metrics, whole in frames:
        outer, left = "aot autograd" if _is_backward(metrics) else "dynamo", whole
        for phase, key in _NESTED:
            if metrics.get(key) is None:
                continue
            inner = min(left, float(metrics[key]) / 1e6)  # kernels that compile side by side may add up to more
            found[outer] = found.get(outer, 0.0) + left - inner
            outer, left = phase, inner
        found[outer] = found.get(outer, 0.0) + left
    return found


def _is_backward(metrics: Mapping[str, Any]) -> bool:
    return metrics.get("backward_cumulative_compile_time_us") is not None
