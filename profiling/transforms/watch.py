"""What the functions of torch hide: which tensors an operator writes to, and whether the inputs reach its output.

The tracer sees calls of torch's public functions. Two things it cannot see there: in-place writes (`out=`,
`x[i] = y`, a function with `inplace=True`), and tensors made by code that calls no public function (an extension). Both
are plain one level down, where every operator passes with its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from profiling.core.trees import named_tensors
from profiling.core.writes import written_tensors


def leaves(value: Any) -> list[Tensor]:
    """Return the tensors in `value`, which may be nested, in a fixed order."""
    return [tensor for _, tensor in named_tensors(value)]


def storage_of(tensor: Tensor) -> int:
    """Return a number that two living tensors share when they share their memory; wrappers without memory get 0."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0


class Watch(TorchDispatchMode):
    """Follows the values of `inputs` through every operator, and collects the memory that is written to.

    `on_dynamic_shape` is called when the shape of an output depends on values that come from the inputs.
    """

    def __init__(self, inputs: Iterable[Tensor], on_dynamic_shape: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._reached: Any = WeakIdKeyDictionary(dict.fromkeys(inputs, True))
        self._on_dynamic_shape = on_dynamic_shape
        self.written: set[int] = set()

    def reached(self, value: Any) -> bool:
        """Say whether any tensor in `value` was computed from the inputs."""
        return any(tensor in self._reached for tensor in leaves(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reached = self.reached((args, kwargs))
        if reached and self._on_dynamic_shape and _has_dynamic_shape(func, args):
            self._on_dynamic_shape(str(func.overloadpacket.__name__))
        result = func(*args, **kwargs)
        for written in written_tensors(func, args, kwargs):
            self.written.add(storage_of(written))
            if reached:
                self._reached[written] = True
        if reached:
            for tensor in leaves(result):
                self._reached[tensor] = True
        return result


def _has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is torch.ops.aten.index:  # whose only dynamic form is a mask
        return any(index.dtype in (torch.bool, torch.uint8) for index in leaves(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags
