"""Components of modules that a test plants, and the check of a step that it plants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fixed_component import Net
from torch import nn

from profiling.components.agreement import Rules, Verdict, check
from profiling.components.component import Component
from profiling.components.reference import Reference, eager_reference
from profiling.components.trajectory import learn

CPU = torch.device("cpu")
Make = Callable[[torch.Generator], dict[str, Any]]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Make:
    """Return a factory of one input `x` of normally distributed numbers."""
    return lambda generator: {"x": torch.randn(*shape, generator=generator).to(dtype)}


def component_of(module: nn.Module | Callable[..., Any], make: Make | None = None, **fields: Any) -> Component:
    """Return a component of a module, or of a function of `x`, on a CPU."""
    made, make = module if isinstance(module, nn.Module) else Net(lambda self, x: module(x)), make or normal(4, 8)
    named = {"dtype": torch.float32, "frames_per_call": 1, "weights": "random", **fields}
    inputs = make(torch.Generator().manual_seed(0))
    return Component(name="net", module=made, inputs=inputs, make_inputs=make, device=CPU, **named)


def reference_of(near: Component, exact: Component | None = None) -> Reference:
    """Return the reference for steps of `near`: the calls of `exact`, or its own eager ones."""
    with torch.inference_mode():
        reference = eager_reference(near)
        return reference if exact is None else Reference(learn(exact), reference.eager, "float32", reference.repeat)


def verdict_of(
    near: Component,
    run: Callable[[Component], Callable[[], Any]] = lambda component: component.call,
    exact: Component | None = None,
    rules: Rules | None = None,
) -> Verdict:
    """Return the verdict on the step that `run` makes of a component, against `exact` or its own eager calls."""
    reference = reference_of(near, exact)
    with torch.inference_mode():
        return check(near, run(near), reference, rules or Rules())[0]
