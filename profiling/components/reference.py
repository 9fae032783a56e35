"""The reference of the parity check: fp32 eager outputs on inputs that no variant is prepared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from profiling.components.component import Component
from profiling.components.instantiate import is_device_failure
from profiling.components.outputs import Outputs, readable, to_host
from profiling.components.trees import dotted, form_of, keyed_leaves
from profiling.errors import InputError

#: Added to the run's seed for the inputs of the check, so that they differ from those a variant is prepared with.
CHECK_SEED = 7919

#: A step that is right once, or that leaves a wrong state or wrong inputs behind, is wrong in the second call.
CHECK_CALLS = 2

#: Most inputs that an error describes.
DESCRIBED = 12

CheckCalls = tuple[Outputs, ...]  # what each call of the check returned, and its inputs after it


@dataclass(frozen=True)
class Reference:
    """Outputs of each call of the check, in host memory, so that they take none on the device during the timing."""

    outputs: CheckCalls  # of the fp32 eager module
    eager: CheckCalls  # of the eager module in the run's dtype


def first_call(component: Component, seed: int) -> CheckCalls:
    """Return what `outputs_of` does, for a module that is called for the first time.

    Raises:
        InputError: the module itself fails on its inputs.
        Exception: a failure of the device, unchanged, since the module may be right.

    """
    try:
        return outputs_of(component, seed)
    except InputError:
        raise
    except Exception as error:
        if is_device_failure(error):
            raise
        leaves = [f"{dotted(keys)} {form_of(leaf)}" for keys, leaf in keyed_leaves(component.inputs)]
        inputs = ", ".join(leaves[:DESCRIBED]) + (f" and {len(leaves) - DESCRIBED} more" * (len(leaves) > DESCRIBED))
        raise InputError(
            f"component {component.name}: {type(component.module).__name__}.forward raised "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'} "
            f"(inputs: {inputs}). Correct component.{component.key}.inputs or the module."
        ) from error


def outputs_of(component: Component, seed: int) -> CheckCalls:
    """Run the component eagerly, as `check_calls` does; return the outputs of each call.

    Raises:
        InputError: the output holds no number, so there is nothing to compare, or holds what cannot be compared.

    """
    calls = check_calls(component, component.call, seed)
    output = {path: leaf for path, leaf in calls[0].items() if path[0] == "output"}
    where = f"component {component.name}: forward returned"
    for path, leaf in output.items():
        if leaf.problem is not None:
            what = leaf.form if path == ("output",) else f"{readable(path)} ({leaf.form})"
            raise InputError(f"{where} {what}, which cannot be compared: {leaf.problem}.")
    tensors = [leaf.numbers for leaf in output.values() if leaf.dtype and leaf.numbers is not None]
    if not any(tensor.numel() for tensor in tensors):
        content = "only empty tensors" if tensors else f"{output['output',].form}, which holds no tensor"
        raise InputError(
            f"{where} {content}, so there is nothing to compare. Return a tensor, or a dict, tuple, list or dataclass "
            "of tensors."
        )
    return calls


def check_calls(component: Component, run: Callable[[], Any], seed: int) -> CheckCalls:
    """Call `run` `CHECK_CALLS` times from the initial state, each time on the inputs of `seed`.

    Return for each call its output and the inputs as the call left them.
    """
    component.reset()
    calls = []
    for _ in range(CHECK_CALLS):
        component.refill(seed)
        calls.append(to_host(output=run(), inputs=component.inputs))
    return tuple(calls)


@contextmanager
def strict_float32() -> Iterator[None]:
    """Disable TF32 for float32 matrix products and convolutions inside the block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
