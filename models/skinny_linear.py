"""A linear layer for few rows with weights stored in 8 bits, or as they are: it stands in for an `nn.Linear`."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from models.kernels.eight_bits import MAX_ROWS, MOST_WEIGHTS, MULTIPLE, WEIGHTS, dequantise, fits, quantise
from models.kernels.skinny_linear import few_rows_linear, misfit
from models.params import require


class SkinnyLinear(nn.Module):
    """A linear layer that runs as one kernel for few rows, with weights stored in 8 bits or unchanged.

    A cast changes `dtype`, that of the activations, but not the dtypes of `stored` and `scale`. The weights have no
    gradient.

    Args:
        linear: shares its bias, and with `weights=bf16` its weight, with this layer.
        weights: `int8`, `float8_e4m3`, or `bf16` (another kernel, not quantised).
        max_rows: most rows for which the kernel is used, at most 64; with more, PyTorch computes the product.

    Raises:
        ValueError: a value is out of range, or the kernel takes no layer of this size.
    """

    stored: Tensor
    scale: Tensor | None

    def __init__(self, linear: nn.Linear, weights: str, max_rows: int = MAX_ROWS) -> None:
        super().__init__()
        require(weights in WEIGHTS, f"weights={weights!r} must be one of {', '.join(WEIGHTS)}")
        require(1 <= max_rows <= MAX_ROWS, f"max_rows={max_rows}: must be 1 to {MAX_ROWS}, what the kernel supports")
        require(linear.weight.numel() < MOST_WEIGHTS, "has 2^31 weights or more")
        require(fits(linear.weight), f"inputs and outputs must be multiples of {MULTIPLE}")
        self.out_features, self.in_features = linear.weight.shape
        self.weights, self.max_rows, self.dtype = weights, max_rows, linear.weight.dtype
        self.bias = linear.bias
        self.training = linear.training
        if weights == "bf16":
            self.stored, self.scale = linear.weight, None
            return
        stored, scale = quantise(linear.weight, weights)
        # Buffers: libraries ask the first floating parameter for the dtype of the activations, which is not float8.
        self.register_buffer("stored", stored)
        self.register_buffer("scale", scale)

    @property
    def weight(self) -> Tensor:
        """The weights [n, k] in the dtype of the activations, for code that reads `weight` of an `nn.Linear`."""
        return self.stored if self.scale is None else dequantise(self.stored, self.scale, self.dtype)

    def fallback(self, x: Tensor) -> str | None:
        """Return why PyTorch and not the kernel computes the product with `x` [..., in_features]; None: it does."""
        return misfit(x, x.device, self.stored, self.dtype, self.max_rows)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return few_rows_linear(x, self.stored, self.bias, self.scale, self.dtype, self.max_rows)

    def extra_repr(self) -> str:
        """Return the sizes and the form of the weights, for `print(module)`."""
        return f"in_features={self.in_features}, out_features={self.out_features}, weights={self.weights}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if self.scale is None:
            super()._apply(fn, recurse)
            self.dtype = self.stored.dtype
            return self
        before = {"stored": self.stored, "scale": self.scale}
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.stored.device)).dtype
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self.get_buffer(name)
            if new.dtype != old.dtype:
                setattr(self, name, old.to(new.device))
        return self


def operands(layer: nn.Module) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return (weight, bias, scale) of an `nn.Linear` or a `SkinnyLinear` as the kernels take them."""
    if isinstance(layer, SkinnyLinear):
        return layer.stored, layer.bias, layer.scale
    assert isinstance(layer, nn.Linear)
    return layer.weight, layer.bias, None
