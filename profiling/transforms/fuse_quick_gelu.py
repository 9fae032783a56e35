"""QuickGELU, `x · sigmoid(c·x)`, in one kernel instead of three.

`x · sigmoid(c·x) = silu(c·x) / c`, and matrix products take a factor for nothing: the layer before gives `c·x`, the one
after divides. The factors meet the sums in the product's own precision: no weight is rounded anew, the bias alone is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from profiling.transforms.attention_pattern import unscaled
from profiling.transforms.facts import family, mutated
from profiling.transforms.linear_product import LinearLayer, linear_layer, write_product
from profiling.transforms.spelling import is_call, positional
from profiling.transforms.transform import Transform


@dataclass(frozen=True, kw_only=True)
class FuseQuickGelu(Transform):
    """Write QuickGELU between two linear layers as SiLU with factors in those, `x · sigmoid(x)` anywhere as SiLU."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Rewrite each product of something with a sigmoid of itself."""
        written = mutated(module.graph)
        return sum(
            _rewritten(module, node)
            for node in module.graph.find_nodes(op="call_function", target=torch.mul)
            if not any(family(given) & written for given in node.all_input_nodes)
        )


def _rewritten(module: fx.GraphModule, product: fx.Node) -> bool:
    found = _gate(product)
    if found is None:
        return False
    x, gate, factor = found
    if factor == 1:
        with module.graph.inserting_before(product):
            product.replace_all_uses_with(module.graph.call_function(F.silu, (x,)))
        return True
    before, after = linear_layer(module, x), _only_reader(module, product)
    if before is None or after is None or factor == 0 or len(gate.users) != 1 or len(x.users) != 2:
        return False
    scaled = _scaled(module, before, factor, bias_too=True)
    with module.graph.inserting_before(product):
        product.replace_all_uses_with(module.graph.call_function(F.silu, (scaled,)))
    # Its input is the SiLU by now.
    after = linear_layer(module, after.node)
    assert after is not None
    after.node.replace_all_uses_with(_scaled(module, after, 1 / factor, bias_too=False))
    return True


def _gate(product: fx.Node) -> tuple[fx.Node, fx.Node, float] | None:
    """Return x, the sigmoid's node and c for `x · sigmoid(c·x)`."""
    if len(product.args) != 2 or product.kwargs:
        return None
    for x, gate in (positional(product), positional(product)[::-1]):
        if is_call(gate, torch.sigmoid) and isinstance(x, fx.Node):
            inner, factor = unscaled(positional(gate)[0])
            if inner is x:
                return x, gate, factor
    return None


def _only_reader(module: fx.GraphModule, node: fx.Node) -> LinearLayer | None:
    readers: list[Any] = list(node.users)
    layer = linear_layer(module, readers[0]) if len(readers) == 1 else None
    return layer if layer is not None and layer.input is node else None


def _scaled(module: fx.GraphModule, layer: LinearLayer, factor: float, *, bias_too: bool) -> fx.Node:
    """Write the layer with `factor` on its product, and on its bias where that is wanted."""
    bias = layer.bias_or_zeros()
    return write_product(module, layer, torch.addmm, bias * factor if bias_too else bias, alpha=factor)
