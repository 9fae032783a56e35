"""A component of a module that always has the same inputs, for tests of what is prepared for a call."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from profiling.components.component import Component


def fixed_component(module: nn.Module, *shapes: Tensor, **inputs: Any) -> Component:
    """Return a component with these inputs, or with an input `x` in several shapes, of which the first is its own."""
    first, *extra = [{"x": x} for x in shapes] or [inputs]
    tensor = next(iter(first.values()))
    net = Component("net", module.eval(), first, lambda _: first, tensor.device, tensor.dtype, 1, "random")
    return replace(net, extra_inputs=tuple(extra))
