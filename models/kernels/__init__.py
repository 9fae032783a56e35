"""Triton kernels for few rows and for convolutional decoders, each with a reference in PyTorch operations.

A module `x.py` holds the reference and chooses; `x_triton.py` holds the kernel, and is imported only where it can run.
Kernels of convolutions are in three such modules: 1×1 ones, the others, and what both share. What a kernel and its
reference share is in modules that import neither: `eight_bits.py` (arithmetic of 8-bit weights and 16-bit activations),
`forms.py` (dtypes and memory formats) and `convolution_kinds.py` (which kernel computes a convolution). Nothing here
knows a network.
"""

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch.overrides import handle_torch_function, has_torch_function

_P = ParamSpec("_P")
_T = TypeVar("_T")

HAS_TRITON = importlib.util.find_spec("triton") is not None
#: True where TRITON_INTERPRET=1 makes Triton run kernels in Python. Inline assembly is then not available.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def one_call(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a tracer record a call of `function` as one node, not the operations inside (by `TorchFunctionMode`)."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        given = (*args, *kwargs.values())
        if has_torch_function(given):
            return handle_torch_function(call, given, *args, **kwargs)
        return function(*args, **kwargs)

    return call
