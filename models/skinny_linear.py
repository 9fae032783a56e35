"""A linear layer for few rows with weights stored in 8 bits, or as they are: it stands in for an `nn.Linear`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from models.kernels import HAS_TRITON
from models.kernels.eight_bits import MAX_ROWS, MOST_WEIGHTS, MULTIPLE, WEIGHTS, dequantise, fits, quantise
from models.kernels.skinny_linear import HALF, few_rows_linear, runs_in_kernel

#: Least compute capability that the kernel needs: 8.0 has products in bf16, 8.9 has Triton's float8.
_CAPABILITY = {"bf16": (8, 0), "int8": (8, 0), "float8_e4m3": (8, 9)}


class SkinnyLinear(nn.Module):
    """A linear layer that runs as one kernel for few rows, with weights stored in 8 bits or unchanged.

    A cast changes `dtype`, that of the activations, but not the dtypes of `stored` and `scale`. The weights have no
    gradient.

    Args:
        linear: shares its bias, and with `weights=bf16` its weight, with this layer.
        weights: one of `WEIGHTS`.
        max_rows: up to how many rows the kernel is used.
    """

    stored: Tensor
    scale: Tensor | None

    def __init__(self, linear: nn.Linear, weights: str, max_rows: int = MAX_ROWS) -> None:
        super().__init__()
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
        if runs_in_kernel(x, self.stored, self.dtype, self.max_rows):
            return None
        if not x.is_cuda or not HAS_TRITON:
            return "the kernel needs triton and a CUDA device"
        if x.dtype not in HALF:
            return f"activations are {str(x.dtype).removeprefix('torch.')}; the kernel takes only float16 and bfloat16"
        rows = x.numel() // x.shape[-1]
        most = min(self.max_rows, MAX_ROWS)
        return f"{rows} rows, and the kernel takes {most} at most" if rows > most else "the kernel refuses its form"

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


class Choice(NamedTuple):
    """What `SkinnyLinears` does with one linear layer: `left` says why it is not replaced; None: it is."""

    name: str
    shape: tuple[int, int]  # outputs, inputs
    left: str | None


@dataclass(frozen=True)
class SkinnyLinears:
    """Replaces the `nn.Linear` layers of a module, in place, by `SkinnyLinear`: a function module → module.

    A submodule that holds tensors of its own made from the layers' weights has a method `layers_replaced()`, which is
    then called: a CUDA graph that is captured afterwards must not read the tensors that a later `reset` replaces.

    Attributes:
        weights: `int8`, `float8_e4m3`, or `bf16` (another kernel, not quantised).
        include: patterns of module names (`*` matches any characters); a layer must match one of them.
        exclude: patterns of the names of layers that are not replaced.
        max_rows: most rows for which the kernel is used, at most 64; with more, PyTorch computes the product.

    Raises:
        ValueError: an unknown form of weights, or too many rows.
    """

    weights: str = "int8"
    include: Sequence[str] = ("*",)
    exclude: Sequence[str] = ()
    max_rows: int = MAX_ROWS

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights={self.weights!r} must be one of {', '.join(WEIGHTS)}")
        if not 1 <= self.max_rows <= MAX_ROWS:
            raise ValueError(f"max_rows={self.max_rows}: must be 1 to {MAX_ROWS}, the most that the kernel supports")
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a list of patterns")

    def unavailable(self, device: torch.device) -> str | None:
        """Return why the kernel cannot run on the GPU `device`, or nothing would change without a kernel; else None."""
        if device.type == "cuda" and HAS_TRITON:
            least = _CAPABILITY[self.weights]
            if torch.version.hip is None and torch.cuda.get_device_capability(device) < least:
                return f"weights={self.weights} need a GPU of compute capability {least[0]}.{least[1]} or later"
            return None
        if self.weights != "bf16":
            return None
        return "SkinnyLinears with weights=bf16 changes nothing here: its kernel needs triton and a CUDA device"

    def __call__(self, module: nn.Module) -> nn.Module:
        """Replace the layers and return the module, a new one if `module` is itself a linear layer.

        Raises:
            ValueError: no layer would be replaced, or a pattern matches none.
        """
        layers = dict(_linears(module))
        if not layers:
            raise ValueError(f"asked for, did nothing: {type(module).__name__} has no linear layer")
        for pattern in (*self.include, *self.exclude):
            if not any(fnmatchcase(name, pattern) for name in layers):
                some = ", ".join(list(layers)[:3])
                raise ValueError(f"{pattern!r} matches no linear layer of {type(module).__name__} (such as: {some})")
        choices = self.choices(module)
        if all(choice.left for choice in choices):
            why = "; ".join(dict.fromkeys(choice.left or "" for choice in choices))
            raise ValueError(f"asked for, did nothing: no layer of {type(module).__name__} is replaced: {why}")
        made: dict[int, SkinnyLinear] = {}  # by layer: a layer may have several names
        for name in [choice.name for choice in choices if choice.left is None]:
            layer = layers[name]
            if isinstance(layer, SkinnyLinear):
                continue
            made.setdefault(id(layer), SkinnyLinear(layer, self.weights, self.max_rows))
            if not name:
                return made[id(layer)]
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, made[id(layer)])
        for each in list(module.modules()):
            if callable(follow := getattr(each, "layers_replaced", None)):
                follow()
        return module

    def choices(self, module: nn.Module) -> list[Choice]:
        """Return what `__call__` does with each linear layer of `module`, or did if it was called before."""
        return [
            Choice(name, (layer.out_features, layer.in_features), self._reason_to_leave(name, layer))
            for name, layer in _linears(module)
        ]

    def _reason_to_leave(self, name: str, layer: "nn.Linear | SkinnyLinear") -> str | None:
        if not any(fnmatchcase(name, pattern) for pattern in self.include):
            return "not included"
        if any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return "excluded"
        if isinstance(layer, SkinnyLinear):
            return None if layer.weights == self.weights else f"has {layer.weights} weights already"
        if type(layer) is not nn.Linear:
            return f"is a {type(layer).__name__}, which may use its weight in another way"
        if layer._forward_hooks or layer._forward_pre_hooks:
            return "has hooks, which would be lost"
        if not layer.weight.is_floating_point() or layer.weight.itemsize == 1:
            return f"has weights in {str(layer.weight.dtype).removeprefix('torch.')} already"
        if layer.weight.numel() >= MOST_WEIGHTS:
            return "has 2^31 weights or more"
        if not fits(layer.weight):
            return f"inputs and outputs must be multiples of {MULTIPLE}"
        return None


def _linears(module: nn.Module) -> "Iterator[tuple[str, nn.Linear | SkinnyLinear]]":
    """Yield the linear layers of `module`, a shared one once for each of its names."""
    for name, layer in module.named_modules(remove_duplicate=False):
        if isinstance(layer, nn.Linear | SkinnyLinear):
            yield name, layer
