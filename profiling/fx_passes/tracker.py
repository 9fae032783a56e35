"""Observes operators: which tensors are computed from a call's inputs, which memory is written to, what is random."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.effects import storage_of
from profiling.components.trees import tensors_in, written_tensors


class DependencyTracker(TorchDispatchMode):
    """Follows the operators of a block.

    `written` are the addresses of memory that was written to, `random` says whether an operator draws random numbers.
    `on_dynamic_shape` is called with an operator's name when the shape of its output depends on values that come from
    `inputs`.
    """

    def __init__(self, inputs: Iterable[Tensor] = (), on_dynamic_shape: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._dependent: Any = WeakIdKeyDictionary(dict.fromkeys(inputs, True))
        self._on_dynamic_shape = on_dynamic_shape
        self.written: set[int] = set()
        self.random = False

    def depends(self, value: Any) -> bool:
        """Return whether any tensor in `value` was computed from the inputs."""
        return any(tensor in self._dependent for tensor in tensors_in(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # in inference mode an operator that calls others arrives whole: dropout, a norm with statistics
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        is_dependent = self.depends((args, kwargs))
        if is_dependent and self._on_dynamic_shape and _has_dynamic_shape(func, args):
            self._on_dynamic_shape(str(func.overloadpacket.__name__))
        result = func(*args, **kwargs)
        written = list(written_tensors(func, args, kwargs))
        self.written.update(map(storage_of, written))
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        if is_dependent:
            self._dependent.update(dict.fromkeys([*written, *tensors_in(result)], True))
        return result


def _has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is torch.ops.aten.index:  # its only dynamic form is a mask
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags
