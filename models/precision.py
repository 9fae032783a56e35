"""Keeps constants in fp32, whatever dtype the rest of a model is cast to.

`module.to(torch.bfloat16)` rounds every floating-point buffer. Rotary frequencies, rotation tables and the frequencies
of sinusoidal embeddings are multiplied by large numbers before a sine is taken: with a mantissa of 8 bits the outputs
would be wrong.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


def at_least_fp32(x: Tensor) -> Tensor:
    """Return `x` in fp32, or unchanged if it is fp64."""
    return x if x.dtype == torch.float64 else x.float()


class ConstantBuffers(nn.Module, ABC):
    """A module with constants that follow its device and keep their dtype.

    A subclass defines them in `constants` and calls `register_constants` at the end of its `__init__`. When the module
    leaves the meta device (`to_empty`), the constants are computed again.
    """

    @abstractmethod
    def constants(self) -> dict[str, Tensor]:
        """Return the constants by name, computed on the CPU whatever the default device is."""

    def register_constants(self, *, persistent: bool = False) -> None:
        """Register every constant as a buffer on the default device; `persistent` ones are in the state dict."""
        constants = self.constants()
        self._constant_names = tuple(constants)
        for name, value in constants.items():
            self.register_buffer(name, value.to(torch.get_default_device()), persistent=persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before: dict[str, Any] = {name: self._buffers[name] for name in self._constant_names}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            assert new is not None
            if old.is_meta and not new.is_meta:
                self._buffers[name] = self.constants()[name].to(new.device)
            elif new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self
