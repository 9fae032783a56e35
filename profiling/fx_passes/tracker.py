"""Observes operators: which tensors are computed from a call's inputs, which memory is written to, what is random."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.effects import Watch
from profiling.components.trees import tensors_in, written_tensors


class DependencyTracker(Watch):
    """Follows the operators of a block, beside what they write to (`written`).

    `random` says whether one draws random numbers. `on_dynamic_shape` is called with an operator's name when the shape
    of its output depends on values that come from `inputs`.
    """

    def __init__(self, inputs: Iterable[Tensor] = (), on_dynamic_shape: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._dependent: Any = WeakIdKeyDictionary(dict.fromkeys(inputs, True))
        self._on_dynamic_shape = on_dynamic_shape
        self.random = False

    def depends(self, value: Any) -> bool:
        """Return whether any tensor in `value` was computed from the inputs."""
        return any(tensor in self._dependent for tensor in tensors_in(value))

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Note what an operator did that ran."""
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        if not self.depends((args, kwargs)):
            return
        if self._on_dynamic_shape and _has_dynamic_shape(func, args):
            self._on_dynamic_shape(str(func.overloadpacket.__name__))
        for tensor in (*written_tensors(func, args, kwargs), *tensors_in(result)):
            self._dependent[tensor] = True


def _has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is torch.ops.aten.index:  # its only dynamic form is a mask
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags
