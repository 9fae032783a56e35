"""How far an output is from another, whatever its structure."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from profiling.core.trees import named_tensors


def relative_l2(output: Any, reference: Any) -> float:
    """Return ‖output − reference‖ / ‖reference‖ of the worst tensor, in float64; inf where their forms differ."""
    found, expected = dict(named_tensors(output)), dict(named_tensors(reference))
    if found.keys() != expected.keys():
        return math.inf
    return max((_relative_l2(found[path], tensor) for path, tensor in expected.items()), default=0.0)


def _relative_l2(output: Tensor, reference: Tensor) -> float:
    if output.shape != reference.shape:
        return math.inf
    wide = reference.double()
    distance, norm = float((output.double() - wide).norm()), float(wide.norm())
    ratio = distance / norm if norm > 0 else (0.0 if distance == 0 else math.inf)
    return math.inf if math.isnan(ratio) else ratio
