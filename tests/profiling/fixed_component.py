"""A component that always has the same inputs, and a module of a function: for tests of what is prepared for a call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from profiling.cli.groups import named_recipes
from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.run.job import as_recipe
from profiling.variants.recipe import Recipe


def fixed_component(module: nn.Module, *shapes: Tensor, **inputs: Any) -> Component:
    """Return a component with these inputs, or with an input `x` in several shapes, of which the first is its own."""
    first, *extra = [{"x": x} for x in shapes] or [inputs]
    tensor = next(iter(first.values()))
    net = Component("net", module.eval(), first, lambda _: first, tensor.device, tensor.dtype, 1, "random")
    return replace(net, extra_inputs=tuple(extra))


def shipped_recipe(expression: str) -> Recipe:
    """Return the recipe that a run makes of an expression of steps of `conf/step`."""
    (node,) = named_recipes([expression]).values()
    return instantiate(as_recipe(node), f"variant.{expression}")


class Net(nn.Module):
    """A module whose forward is a function of it and its inputs; `parts` are submodules, weights and buffers."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, **inputs: Any) -> Any:
        return self.function(self, **inputs)
