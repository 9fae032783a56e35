"""Observes operators: which tensors are computed from a call's inputs, which memory is written to, what is random."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from profiling.components.trees import stored_parts, tensors_in, written_tensors


class DependencyTracker(TorchDispatchMode):
    """Follows the operators of a block.

    `written` is the memory that was written to (as `storage_of` returns it), `random` says whether an operator draws
    random numbers. `on_dynamic_shape` is called with an operator's name when the shape of its output depends on
    values that come from `inputs`.
    """

    def __init__(self, inputs: Iterable[Tensor] = (), on_dynamic_shape: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._dependent: Any = WeakIdKeyDictionary(dict.fromkeys(inputs, True))
        self._on_dynamic_shape = on_dynamic_shape
        self.written: set[Hashable] = set()
        self.random = False

    def depends(self, value: Any) -> bool:
        """Return whether any tensor in `value` was computed from the inputs."""
        return any(tensor in self._dependent for tensor in tensors_in(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        dependent = self.depends((args, kwargs))
        if dependent and self._on_dynamic_shape and _has_dynamic_shape(func, args):
            self._on_dynamic_shape(str(func.overloadpacket.__name__))
        result = func(*args, **kwargs)
        written = list(written_tensors(func, args, kwargs))
        self.written.update(map(storage_of, written))
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        if dependent:
            self._dependent.update(dict.fromkeys([*written, *tensors_in(result)], True))
        return result


def _has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is torch.ops.aten.index:  # its only dynamic form is a mask
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags


def storage_of(tensor: Tensor) -> Hashable:
    """Return a weak reference to the tensor's memory; those of tensors that share it are equal."""
    try:
        return StorageWeakRef(stored_parts(tensor)[-1].untyped_storage())
    except (NotImplementedError, RuntimeError, IndexError):  # memory of a library's own, or none
        return WeakIdRef(tensor)
