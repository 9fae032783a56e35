"""The reference of the parity check: fp32 eager outputs on inputs that no variant is prepared with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from profiling.components.component import Component
from profiling.components.trees import named_tensors, tensors_in
from profiling.errors import InputError

#: Added to the run's seed for the inputs of the check, so that they differ from those a variant is prepared with.
CHECK_SEED = 7919

Outputs = dict[str, Tensor]  # the tensors of an output, by path


@dataclass(frozen=True)
class Reference:
    """Outputs to compare with. They are in host memory, so that they take none on the device during the timing."""

    outputs: Outputs  # of the fp32 eager module, float32
    eager: Outputs  # of the eager module in the run's dtype


def first_call(component: Component, seed: int) -> Outputs:
    """Return the outputs of the component's first eager call, on the inputs of `seed`.

    Raises:
        InputError: the module itself fails on its inputs.
        torch.OutOfMemoryError, torch.AcceleratorError: unchanged, since the device failed and not the module.

    """
    try:
        return outputs_of(component, seed)
    except (InputError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:
        inputs = ", ".join(
            f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            for name, tensor in component.inputs.items()
        )
        raise InputError(
            f"component {component.name}: {type(component.module).__name__}.forward raised "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'} "
            f"(inputs: {inputs}). Correct component.{component.key}.inputs or the module."
        ) from error


def outputs_of(component: Component, seed: int) -> Outputs:
    """Run the component eagerly from its initial state on the inputs of `seed`; return the outputs in host memory.

    Raises:
        InputError: the output holds no tensor, so there is nothing to compare.

    """
    component.reset()
    component.refill(seed)
    output = component.call()
    if not tensors_in(output):
        raise InputError(
            f"component {component.name}: forward returned {type(output).__name__}, which holds no tensor. Return a "
            "tensor, or a dict, tuple, list or dataclass of tensors."
        )
    return to_host(output)


def to_host(output: object) -> Outputs:
    """Copy every tensor of `output` to host memory, floating-point ones as float32."""
    return {
        path: tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        for path, tensor in named_tensors(output)
    }


@contextmanager
def strict_float32() -> Iterator[None]:
    """Disable TF32 for float32 matrix products and convolutions inside the block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def relative_l2(output: Any, reference: Any) -> float:
    """Return ‖output − reference‖ / ‖reference‖ of the worst tensor, computed in float64.

    The result is inf if structure or shapes differ, or if a value is NaN.
    """
    actual, expected = dict(named_tensors(output)), dict(named_tensors(reference))
    if actual.keys() != expected.keys():
        return math.inf
    return max((_relative_l2(actual[path], tensor) for path, tensor in expected.items()), default=0.0)


def _relative_l2(output: Tensor, reference: Tensor) -> float:
    if output.shape != reference.shape:
        return math.inf
    wide = reference.double()
    distance, norm = float((output.double() - wide).norm()), float(wide.norm())
    ratio = distance / norm if norm > 0 else (0.0 if distance == 0 else math.inf)
    return math.inf if math.isnan(ratio) else ratio
