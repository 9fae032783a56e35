"""Weight norm, folded into the weight: the norm of a constant is a constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from profiling.transforms.constants import add_constant, constant
from profiling.transforms.spelling import arguments
from profiling.transforms.transform import Transform

WEIGHT_NORM = torch._weight_norm  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True, kw_only=True)
class FoldWeightNorm(Transform):
    """Compute `g · v / ‖v‖` once; of `torch.nn.utils.parametrizations.weight_norm` and of the older hook."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each weight norm of constants."""
        replaced = 0
        for node in module.graph.find_nodes(op="call_function", target=WEIGHT_NORM):
            given = arguments(node, "v", "g", "dim")
            direction, gain = constant(module, given["v"]), constant(module, given["g"])
            if direction is None or gain is None:
                continue
            weight = WEIGHT_NORM(direction, gain, 0 if given["dim"] is None else given["dim"])
            node.replace_all_uses_with(add_constant(module, node, "weight", weight))
            replaced += 1
        return replaced
