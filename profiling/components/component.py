"""A component: one network under test, freshly built and loaded, with inputs that every step reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from profiling.components.trees import named_tensors
from profiling.errors import InputError, did_you_mean

#: Makes a fresh set of inputs: generator → {argument name: tensor}.
MakeInputs = Callable[[torch.Generator], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Component:
    """A network under test.

    `inputs` are the caller's tensors: a step reads them at every call, and `refill` changes them in place, which is
    how the parity check shows a step inputs it was not prepared with.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, torch.Tensor]
    make_inputs: MakeInputs
    device: torch.device
    dtype: torch.dtype
    frames_per_call: int
    weights: str  # "random", or where they came from
    kind: str | None = None  # "image" | "audio" | None: which error measure people expect besides the L2 one
    extra_inputs: tuple[Mapping[str, torch.Tensor], ...] = ()  # further shapes that a step is prepared for as well
    priority: int = 0  # of the streams its kernels are captured on: where components share the GPU the lower go first

    @property
    def key(self) -> str:
        """The component's name in the config, which the points of its sweep share."""
        return self.name.partition("@")[0]

    @property
    def parameters(self) -> int:
        """How many parameters are trained (buffers and constants are not counted)."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)

    def state(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that a call may change and that preparing a variant must leave as they were.

        All buffers, unless the module says in `state_tensors()` which ones those are.
        """
        own: Any = getattr(self.module, "state_tensors", None)
        return tuple(own() if own is not None else self.module.buffers())

    def call(self) -> Any:
        """Run the module on the inputs, eagerly."""
        return self.module(**self.inputs)

    def refill(self, seed: int) -> None:
        """Overwrite the inputs in place with those of `seed`; their addresses stay."""
        for name, fresh in self.make_inputs(torch.Generator(self.device).manual_seed(seed)).items():
            self.inputs[name].copy_(fresh)

    def reset(self) -> None:
        """Put a stateful network back to its start, in place; nothing to do for one without a `reset` method."""
        reset = getattr(self.module, "reset", None)
        if callable(reset):
            reset()


def check_arguments(module: nn.Module, inputs: Mapping[str, Any], component: str) -> None:
    """Check that the input names are arguments of the module's `forward`.

    Raises:
        InputError: an input that forward does not take, or an argument without an input, naming it.

    """
    signature = inspect.signature(module.forward)
    wanted = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
    for name in inputs:
        if name not in wanted and not takes_any:
            raise InputError(
                f"component.{component}.inputs.{name}: {type(module).__name__}.forward{signature} takes no argument "
                f"{name!r}.{did_you_mean(name, wanted)} Rename it in the component's YAML."
            )
    for name, parameter in wanted.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in inputs:
            raise InputError(
                f"component.{component}.inputs: {type(module).__name__}.forward{signature} needs {name!r}. "
                f"Add component.{component}.inputs.{name} with a shape."
            )


def check_output(output: Any, component: str) -> None:
    """Check that there is something to compare and to time.

    Raises:
        InputError: no tensor in the output.

    """
    if next(named_tensors(output), None) is None:
        raise InputError(
            f"component {component}: forward returned {type(output).__name__}, which holds no tensor. Return a tensor, "
            "or a dict, tuple, list or dataclass of tensors."
        )


def describe_inputs(inputs: Mapping[str, torch.Tensor]) -> str:
    """Return 'x float32 [1, 3, 8], t int64 [1]', for messages about inputs that do not fit."""
    return ", ".join(f"{n} {str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for n, t in inputs.items())
