"""Quantisation of linear layers by torchao (the extra `quant`), with its kernels for 8-bit and 4-bit weights.

A layer is quantised if its use, the number of rows in calls and its kernel allow it. Every other layer stays, and
the record says why. If none can be quantised, the cell is skipped: "asked for, did nothing".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiling.components.component import Component
from profiling.components.instantiate import is_device_failure
from profiling.components.trees import tensors_in
from profiling.errors import (
    DID_NOTHING,
    InputError,
    NothingChangedError,
    check_choice,
    check_number,
    command,
    missing_package,
    reason_of,
)
from profiling.results.explanations import ModuleChoice
from profiling.variants.gains import CALLS_IN_A_ROW, Swap, sensitivity
from profiling.variants.recipe import Outcome, Transform
from profiling.variants.replaced_layers import channels_of, check_patterns, counted_rows

#: Layers that are products with their weight; convolutions only if their kernel has one element.
_Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class _Config:
    """A config of torchao: its requirements, and options that replace torchao's defaults."""

    options: Mapping[str, Any] = field(default_factory=dict)
    granularity: bool = False  # whether it has one
    capability: tuple[int, int] | None = None  # least of the GPU; None: it runs on a CPU too
    rows: int = 1  # least rows of the activations on a GPU
    cpu_rows: int = 1  # and on a CPU
    multiple: int = 1  # of the inputs and outputs of a layer on a GPU
    dense: bool = False  # whether the kernel takes the activations to be contiguous


#: By default torchao sets global options of inductor, and allows TF32 for float32 products.
_NO_GLOBALS = {"set_inductor_config": False}
CONFIGS: Mapping[str, _Config] = {
    # Compiled for a GPU, the product is torch._weight_int8pack_mm, which reads other activations wrongly (torch 2.11).
    "Int8WeightOnlyConfig": _Config({**_NO_GLOBALS, "version": 2}, dense=True),
    # torch._int_mm needs more than 16 rows, and sizes that are multiples of 8. Compiled for a CPU (torch 2.11, 2.13),
    # the product of activations [1, 1, k] reads other memory.
    "Int8DynamicActivationInt8WeightConfig": _Config({**_NO_GLOBALS, "version": 2}, rows=17, cpu_rows=2, multiple=8),
    "Int4WeightOnlyConfig": _Config(
        {**_NO_GLOBALS, "int4_packing_format": "tile_packed_to_4d"}, capability=(8, 0), dense=True
    ),
    "Float8WeightOnlyConfig": _Config(_NO_GLOBALS),
    "Float8DynamicActivationFloat8WeightConfig": _Config(_NO_GLOBALS, True, capability=(8, 9), multiple=16),
}
GRANULARITIES = ("PerTensor", "PerRow")


@dataclass(frozen=True, kw_only=True)
class Quantize(Transform):
    """Quantise the weights of linear layers in place with torchao.

    Attributes:
        config: a key of `CONFIGS`, a class of torchao.quantization.
        granularity: of the scales, `PerTensor` or `PerRow`, for float8 with dynamic activations only.
        options: further arguments of the config, `{group_size: 64}` for example.
        include: patterns of module names (`*` matches any characters); a layer must match one of them.
        exclude: patterns of the names of layers that stay.
        conv_1x1: also quantise convolutions with a kernel of one element, stride 1 and one group, as linear layers.
        sensitivity: also quantise each layer alone, and record the error of the output and the time saved.
        sensitivity_seconds: most seconds for that; the largest layers come first.

    Raises:
        InputError: an unknown config, or options of the wrong type.

    """

    config: str
    granularity: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    include: Sequence[str] = ("*",)
    exclude: Sequence[str] = ()
    conv_1x1: bool = False
    sensitivity: bool = False
    sensitivity_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_choice("config", self.config, CONFIGS)
        if self.granularity is not None:
            check_choice("granularity", self.granularity, GRANULARITIES)
        if (self.granularity is not None) != CONFIGS[self.config].granularity:
            needed = f"needs granularity: {' or '.join(GRANULARITIES)}" if self.granularity is None else "has none"
            raise InputError(f"granularity={self.granularity}: {self.config} {needed}.")
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name}={getattr(self, name)!r} must be a list of patterns.")
        check_number("sensitivity_seconds", self.sensitivity_seconds, above=0)

    @property
    def dequantises_in_calls(self) -> bool:
        """True if only the weights have 8 bits: each call converts them to the activations' dtype."""
        return self.config in ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig")

    def unavailable(self, device: torch.device) -> str | None:
        """Return that torchao is missing, or what the kernels need and `device` lacks, or None."""
        needed, missing = CONFIGS[self.config].capability, missing_package("torchao")
        if missing is not None or needed is None:
            return missing
        if device.type != "cuda":
            return f"{self.config} needs a CUDA device"
        has = torch.cuda.get_device_capability(device)
        text = "of compute capability {}.{}".format
        return None if has >= needed else f"{self.config} needs a GPU {text(*needed)}; this one is {text(*has)}"

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Quantise in place all layers that can be.

        Raises:
            NothingChangedError: the module has no such layer.
            InputError: a pattern matches no layer, or an option is none of torchao's.
            RuntimeError: calls do not multiply by a quantised weight.

        """
        quantise, layers = self.quantiser(), _layers(module, self.conv_1x1)
        if not layers:
            hint = "" if self.conv_1x1 else " With conv_1x1: true, 1×1 convolutions count as linear layers."
            raise NothingChangedError(f"{DID_NOTHING}: {type(module).__name__} has no linear layer.{hint}")
        check_patterns((*self.include, *self.exclude), layers, module)
        choices, swaps = [], []
        for name, rows in _rows_of(module, component, layers).items():
            layer, counts = layers[name], sorted(set(rows))
            weight = self._tried(name, layer, counts, quantise)
            is_left = isinstance(weight, str)
            choice = ModuleChoice(
                name=name,
                shape=tuple(layer.weight.shape[:2]),
                rows=(counts[0], counts[-1]) if counts else None,
                left=weight if is_left else None,
                now=None if is_left else type(weight.data).__name__,
            )
            choices.append(choice)
            if not is_left:
                calls = math.ceil(len(rows) / (CALLS_IN_A_ROW * (len(component.extra_inputs) + 1)))
                swaps.append(Swap(choice, calls, layer, partial(self._put, layer, weight)))
        explain = dict
        if self.sensitivity and swaps:
            explain = sensitivity(module, component, swaps, self.sensitivity_seconds)
        for each in swaps:
            each.put()
        for name, rows in _rows_of(module, component, {each.choice.name: each.layer for each in swaps}).items():
            if not rows or type(layers[name].weight.data) is Tensor:
                raise RuntimeError(f"{DID_NOTHING}: no call multiplies by the quantised weight of {name}")
        return Outcome(module, choices=tuple(choices), explain=explain)

    def quantiser(self) -> Callable[[nn.Linear], None]:
        """Return the function that quantises the weight of a linear layer in place.

        Raises:
            InputError: torchao cannot be imported or lacks the config, or the config takes no such option.

        """
        try:
            from torchao import quantization  # pyright: ignore[reportMissingImports]

            make = getattr(quantization, self.config)
        except Exception as error:  # it is missing, or needs another torch or a library that is missing
            update = command("-m", "pip", "install", "--upgrade", "torchao")
            raise InputError(f"torchao cannot be used ({reason_of(error)}). To update it: {update}") from error
        options = {**CONFIGS[self.config].options, **self.options}
        if self.granularity is not None:
            options["granularity"] = getattr(quantization, self.granularity)()
        try:
            config = make(**options)
        except (TypeError, ValueError, AssertionError) as error:
            raise InputError(f"options={dict(self.options)}: torchao's {self.config}: {reason_of(error)}.") from error
        return lambda layer: quantization.quantize_(layer, config, filter_fn=lambda *_: True)

    def _tried(
        self, name: str, layer: _Layer, counts: Sequence[int], quantise: Callable[[nn.Linear], None]
    ) -> nn.Parameter | str:
        """Return the quantised weight of a layer, with which its kernel took as many rows as calls have, or why not."""
        weight = layer.weight
        left = self._reason_to_leave(name, layer, counts, weight.device)
        if left is not None:
            return left
        linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=weight.dtype)
        linear.weight = nn.Parameter(weight.detach().flatten(1), requires_grad=False)
        linear.bias = layer.bias  # pyright: ignore[reportAttributeAccessIssue] - None where the layer has none
        refused = "torchao refuses it"
        try:
            quantise(linear)
            if type(linear.weight.data) is Tensor:
                return "torchao left it as it was"
            for rows in counts:
                refused = f"its kernel refuses {counted_rows(rows)}"
                linear(torch.ones(rows, linear.in_features, dtype=weight.dtype, device=weight.device))
        except Exception as error:
            if is_device_failure(error):
                raise
            return f"{refused}: {reason_of(error)}"
        return linear.weight

    def _reason_to_leave(self, name: str, layer: _Layer, counts: Sequence[int], device: torch.device) -> str | None:
        weight, needs, on_gpu = layer.weight, CONFIGS[self.config], device.type == "cuda"
        least = needs.rows if on_gpu else needs.cpu_rows
        if not any(fnmatchcase(name, pattern) for pattern in self.include):
            return "not included"
        if any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return "excluded"
        if type(layer) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d):
            return f"is a {type(layer).__name__}, which may use its weight in another way"
        if type(weight.data) is not Tensor or not weight.is_floating_point() or weight.itemsize == 1:
            return f"has {type(weight.data).__name__} weights of {weight.dtype} already"
        if layer._forward_hooks or layer._forward_pre_hooks:
            return "has hooks, which may change its weight"
        if not isinstance(layer, nn.Linear):
            padded = layer.padding not in ("valid", "same") and any(layer.padding)
            if layer.groups > 1 or set(layer.stride) != {1} or padded:
                return "is a convolution with groups, stride or padding"
        if not counts:
            return "no call reaches it (unused, or its weight is read by kernels of the module's own)"
        if counts[0] < least:
            return f"called with {counted_rows(counts[0])}, and the kernel needs {least} or more"
        if on_gpu and any(size % needs.multiple for size in weight.shape[:2]):
            return f"inputs and outputs must be multiples of {needs.multiple}"
        return None

    def _put(self, layer: Any, weight: nn.Parameter) -> Callable[[], None]:
        """Put the quantised weight into the layer, and return what undoes it.

        A convolution becomes `Pointwise` in place, so that it stays wherever the module holds it.
        """
        before, kind = layer.weight, type(layer)
        layer.weight, layer.__class__ = weight, kind if kind is nn.Linear else Pointwise
        dense = CONFIGS[self.config].dense
        hook = layer.register_forward_pre_hook(_contiguous, with_kwargs=True) if dense else None

        def undo() -> None:
            layer.weight, layer.__class__ = before, kind
            if hook is not None:
                hook.remove()

        return undo


class Pointwise(nn.Module):
    """What a convolution with a kernel of one element becomes in place: a product over the channels."""

    weight: Tensor  # [output channels, input channels]
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """Map [n, channels, ...] to [n, channels of the output, ...]; the argument has the name of a convolution's."""
        channels = channels_of(self)
        return F.linear(input.movedim(channels, -1), self.weight, self.bias).movedim(-1, channels)


def _contiguous(layer: nn.Module, args: Any, inputs: Any) -> tuple[Any, Any]:
    """Return the arguments of a layer with the activations contiguous row by row, also once they are compiled.

    Inductor chooses the layout of what it computes, unless a view by strides follows.
    """
    channels = channels_of(layer)

    def dense(x: Tensor) -> Tensor:
        rows = x.movedim(channels, -1).contiguous()
        return rows.as_strided(rows.shape, rows.stride()).movedim(-1, channels)

    return tuple(dense(each) for each in args), {name: dense(each) for name, each in inputs.items()}


def _rows_of(module: nn.Module, component: Component, layers: Mapping[str, _Layer]) -> dict[str, list[int]]:
    """Call the module twice on each of its inputs; return the rows of each call of a layer, by its name."""
    rows: dict[str, list[int]] = {name: [] for name in layers}

    def note(name: str, layer: nn.Module, args: Any, inputs: Any) -> None:
        (x,) = tensors_in((args, inputs))
        rows[name].append(x.numel() // max(1, x.shape[channels_of(layer)]))

    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(partial(note, name), with_kwargs=True).remove)
        for inputs in (*component.extra_inputs, component.inputs):
            with ExitStack() as after:
                after.callback(component.keep_state())
                for _ in range(CALLS_IN_A_ROW):
                    module(**inputs)
    return rows


def _layers(module: nn.Module, conv_1x1: bool) -> dict[str, _Layer]:
    """Return the linear layers, and with `conv_1x1` the convolutions with a kernel of one element, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
        or (conv_1x1 and isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and set(layer.kernel_size) == {1})
    }
