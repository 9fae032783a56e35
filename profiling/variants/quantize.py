"""Quantisation of linear layers by torchao (the extra `quant`), with its kernels for 8-bit and 4-bit weights.

A layer is quantised if its use, the number of rows in calls and its kernel allow it. Every other layer stays, and
the record says why. If none can be quantised, the cell fails: "asked for, did nothing".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from profiling.components.component import Component
from profiling.components.instantiate import is_device_failure
from profiling.components.outputs import Outputs, difference, to_host
from profiling.errors import (
    DID_NOTHING,
    InputError,
    MissingExtraError,
    check_choice,
    check_number,
    command,
    missing_package,
    reason_of,
)
from profiling.results.record import ModuleChoice
from profiling.variants.gains import sensitivity_section
from profiling.variants.recipe import Outcome, Transform
from profiling.variants.replaced_layers import counted_rows

#: Convolutions that are linear layers if their kernel has one element.
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
#: Functions that multiply by a weight, with the dimension of the channels in their input.
_ROWS = {"linear": -1, "conv1d": 1, "conv2d": 1, "conv3d": 1}
#: Calls in a row that are observed: a module may use some layers only once an earlier call has left a state.
_CALLS = 2
#: Functions that read only the shape of a weight, or its other properties.
_HARMLESS = ("__get__", "dim", "size", "numel", "is_floating_point", "stride", "is_contiguous", "data_ptr", "__hash__")


@dataclass(frozen=True)
class _Config:
    """A config of torchao: its requirements, and options that replace torchao's defaults."""

    options: Mapping[str, Any] = field(default_factory=dict)
    granularity: bool = False  # whether it has one
    capability: tuple[int, int] | None = None  # least of the GPU; None: it runs on a CPU too
    dtype: torch.dtype | None = None  # of the weights before
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
        {**_NO_GLOBALS, "int4_packing_format": "tile_packed_to_4d"}, capability=(8, 0), dtype=torch.bfloat16, dense=True
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
        """Check the options that can be checked without torchao."""
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
        missing = missing_package("torchao")
        if missing is not None:
            return missing
        needed = CONFIGS[self.config].capability
        if needed is None:
            return None
        if device.type != "cuda":
            return f"{self.config} needs a CUDA device"
        has = torch.cuda.get_device_capability(device)
        text = "of compute capability {}.{}".format
        return None if has >= needed else f"{self.config} needs a GPU {text(*needed)}; this one is {text(*has)}"

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Quantise in place all layers that can be; a module that is itself a convolution is replaced.

        Raises:
            InputError: the module has no such layer, a pattern matches none, or an option is none of torchao's.
            MissingExtraError: torchao is not installed.
            RuntimeError: calls do not multiply by a quantised weight.

        """
        quantise, layers = self._quantiser(), _layers(module, self.conv_1x1)
        if not layers:
            hint = "" if self.conv_1x1 else " With conv_1x1: true, 1×1 convolutions count as linear layers."
            raise InputError(f"Quantize: {DID_NOTHING}: {type(module).__name__} has no linear layer.{hint}")
        names = {name: _names_of(module, layer) for name, layer in layers.items()}
        for pattern in (*self.include, *self.exclude):
            if not any(fnmatchcase(name, pattern) for each in names.values() for name in each):
                some = ", ".join(list(layers)[:3]) or "it has none"
                raise InputError(f"{pattern!r} matches no linear layer of {type(module).__name__} (such as: {some}).")
        uses = _observed(module, component, {name: _weight(layer) for name, layer in layers.items()})
        quantise = _once(quantise)
        tried = [self._tried(names[name], layer, uses[name], quantise, component) for name, layer in layers.items()]
        quantised = [each for each in tried if each.linear is not None]
        if CONFIGS[self.config].dense:
            for each in quantised:
                each.called.register_forward_pre_hook(_contiguous)
        explain = self._sensitivity(module, component, quantised) if self.sensitivity and quantised else dict
        for each in quantised:
            module = each.put(module)
        read = _observed(module, component, {each.name: _weight(each.linear) for each in quantised})
        unread = next((name for name, use in read.items() if not use.calls), None)
        if unread is not None:
            raise RuntimeError(f"{DID_NOTHING}: no call multiplies by the quantised weight of {unread}")
        return Outcome(module, choices=tuple(each.choice() for each in tried), explain=explain)

    def _quantiser(self) -> Callable[[nn.Linear], None]:
        """Return the function that quantises the weight of a linear layer in place.

        Raises:
            InputError: torchao's config takes no such option, or torchao cannot be imported or lacks the config.
            MissingExtraError: torchao is not installed.

        """
        missing = missing_package("torchao")
        if missing is not None:
            raise MissingExtraError(missing)
        try:
            from torchao import quantization  # pyright: ignore[reportMissingImports]

            make = getattr(quantization, self.config)
        except Exception as error:  # it needs another torch, or a library that is missing
            update = command("-m", "pip", "install", "--upgrade", "torchao")
            raise InputError(
                f"the installed torchao cannot be used ({reason_of(error)}). To update it: {update}"
            ) from error
        options = {**CONFIGS[self.config].options, **self.options}
        if self.granularity is not None:
            options["granularity"] = getattr(quantization, self.granularity)()
        try:
            config = make(**options)
        except (TypeError, ValueError, AssertionError) as error:
            raise InputError(f"options={dict(self.options)}: torchao's {self.config}: {reason_of(error)}.") from error
        return lambda layer: quantization.quantize_(layer, config, filter_fn=lambda *_: True)

    def _tried(
        self,
        names: Sequence[str],
        layer: nn.Module,
        use: _Use,
        quantise: Callable[[nn.Linear, Tensor], None],
        component: Component,
    ) -> _Layer:
        """Try to quantise a copy of a layer; call the copy with each number of rows that the module gives the layer.

        `names` are all names of the layer in the module.
        """
        reasons = {name: self._reason_to_leave(name, layer, use, component.device) for name in names}
        found = _Layer(names[0], layer, use, reasons[names[0]])
        for name, reason in reasons.items():
            if reason is not None:
                return replace(found, left=found.left or f"is also {name}: {reason}")
        linear = _as_linear(layer)
        before = linear.weight
        try:
            quantise(linear, _weight(layer))
        except Exception as error:
            _raise_if_lost(error)
            return replace(found, left=f"torchao refuses it: {reason_of(error)}")
        if type(linear.weight.data) is type(before.data):
            return replace(found, left="torchao left it as it was")
        for rows in dict.fromkeys(use.rows):
            x = torch.ones(rows, linear.in_features, dtype=before.dtype, device=before.device)
            try:
                linear(x)
            except Exception as error:
                _raise_if_lost(error)
                return replace(found, left=f"its kernel refuses {counted_rows(rows)}: {reason_of(error)}")
        return replace(found, linear=linear)

    def _reason_to_leave(self, name: str, layer: nn.Module, use: _Use, device: torch.device) -> str | None:
        if not any(fnmatchcase(name, pattern) for pattern in self.include):
            return "not included"
        if any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return "excluded"
        weight, needs = _weight(layer), CONFIGS[self.config]
        already = f"has {type(weight.data).__name__} weights of {_name(weight.dtype)} already"
        if type(weight.data) is not Tensor:
            return already
        if (reason := _unlike_a_product(layer)) is not None:
            return reason
        if not weight.is_floating_point() or weight.itemsize == 1:
            return already
        if needs.dtype not in (None, weight.dtype):
            return f"has {_name(weight.dtype)} weights, and the kernel takes {_name(needs.dtype)}"
        if use.other is not None:
            return f"its weight is read by {use.other}, not only by its own product"
        if not use.calls:
            return "no call multiplies by its weight (unused, or read by kernels of the module's own)"
        on_gpu = device.type == "cuda"
        least = needs.rows if on_gpu else needs.cpu_rows
        if min(use.rows) < least:
            return f"called with {counted_rows(min(use.rows))}, and the kernel needs {least} or more"
        if on_gpu and any(size % needs.multiple for size in weight.shape[:2]):
            return f"inputs and outputs must be multiples of {needs.multiple}"
        return None

    def _sensitivity(
        self, module: nn.Module, component: Component, layers: Sequence[_Layer]
    ) -> Callable[[], Mapping[str, Any]]:
        """Quantise each layer alone; return a function that measures the times and makes the record's section."""
        deadline, errors = perf_counter() + self.sensitivity_seconds, {}
        expected = _outputs(module, component)
        largest_first = sorted(layers, key=lambda each: _weight(each.layer).numel(), reverse=True)
        for each in largest_first:
            if errors and perf_counter() > deadline:
                break
            original = _weight(each.layer)
            changed = each.put(module)
            error = difference(_outputs(changed, component), expected).error
            each.take_out(changed, original)
            errors[each.name] = error if math.isfinite(error) else None
        measured = [
            (each.choice(), each.use.calls, type(each.layer), each.replacement)
            for each in layers
            if each.name in errors
        ]
        return lambda: {"sensitivity": sensitivity_section(measured, errors, len(layers), component.device)}


class Pointwise(nn.Module):
    """A convolution with a kernel of one element, computed as a linear layer over the channels.

    Args:
        linear: input channels → output channels.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, input: Tensor) -> Tensor:
        """Map [n, channels, ...] to [n, channels of the output, ...]; the argument has the name of a convolution's."""
        return self.linear(input.movedim(1, -1)).movedim(-1, 1)


def _contiguous(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the positional arguments of a linear layer with contiguous activations, also once they are compiled.

    Inductor chooses the layout of what it computes, unless a view by strides follows.
    """
    dense = (each.contiguous() for each in args)
    return tuple(each.as_strided(each.shape, each.stride()) for each in dense)


@dataclass(frozen=True)
class _Use:
    """How calls of the module read a weight: number of products, their rows, and other reads."""

    calls: int = 0  # products in one call
    rows: tuple[int, ...] = ()
    other: str | None = None  # the name of a function that reads it beside products


@dataclass(frozen=True)
class _Layer:
    """A layer of the module: `linear` holds the quantised weight, or `left` says why the layer stays."""

    name: str
    layer: nn.Module
    use: _Use
    left: str | None
    linear: nn.Linear | None = None

    def choice(self) -> ModuleChoice:
        """Return the layer as it is in the record."""
        rows = (min(self.use.rows), max(self.use.rows)) if self.use.rows else None
        weight = None if self.linear is None else type(self.linear.weight.data).__name__
        shape = tuple(_weight(self.layer).shape[:2])
        return ModuleChoice(name=self.name, shape=shape, rows=rows, left=self.left, now=weight)

    @property
    def called(self) -> nn.Linear:
        """The linear layer that is called once the quantised weight is in the module."""
        assert self.linear is not None
        return self.layer if isinstance(self.layer, nn.Linear) else self.linear

    @property
    def replacement(self) -> nn.Module:
        """A separate layer with the quantised weight, which is called like the one that it replaces."""
        assert self.linear is not None
        return self.linear if isinstance(self.layer, nn.Linear) else Pointwise(self.linear)

    def put(self, module: nn.Module) -> nn.Module:
        """Put the quantised weight into the module, and return the module; a new one if it is itself a convolution."""
        assert self.linear is not None
        if isinstance(self.layer, nn.Linear):
            self.layer.weight = self.linear.weight
            return module
        return _replaced(module, self.name, self.replacement)

    def take_out(self, module: nn.Module, weight: Tensor) -> None:
        """Undo `put`; `weight` is the original one."""
        if isinstance(self.layer, nn.Linear):
            self.layer.weight = weight  # pyright: ignore[reportAttributeAccessIssue] - the parameter that it had
        elif self.name:
            _replaced(module, self.name, self.layer)


class _Reads(TorchFunctionMode):
    """A context that counts which functions read the given weights, and the rows of their products."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._weights = dict(weights)  # an id is that of a tensor only while it lives
        self._names: dict[int, list[str]] = {}  # several of a weight that layers share
        for name, weight in weights.items():
            self._names.setdefault(id(weight), []).append(name)
        self.products: dict[str, list[int]] = {name: [] for name in weights}
        self.others: dict[str, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        for place, value in (*enumerate(args), *kwargs.items()):
            for each in value if isinstance(value, list | tuple) else (value,):
                for layer in self._names.get(id(each), ()):
                    self._read(name, place, args, layer)
        return func(*args, **kwargs)

    def _read(self, func: str, place: int | str, args: Sequence[Any], name: str) -> None:
        if func in _ROWS and place in (1, "weight") and args and isinstance(args[0], Tensor):
            x = args[0]
            channels = x.shape[_ROWS[func] if x.dim() > 1 else -1]
            self.products[name].append(x.numel() // max(1, channels))
        elif func not in _HARMLESS:
            self.others[name] = func


def _observed(module: nn.Module, component: Component, weights: Mapping[str, Tensor]) -> dict[str, _Use]:
    """Call the module twice on each of its inputs; return how it reads each weight, by name."""
    every: list[_Reads] = []
    for inputs in (*component.extra_inputs, component.inputs):
        with _state_kept(component):
            for _ in range(_CALLS):
                with _Reads(weights) as reads:
                    module(**inputs)
                every.append(reads)
    uses = {}
    for name in weights:
        rows = tuple(sorted({rows for reads in every for rows in reads.products[name]}))
        other = next((reads.others[name] for reads in every if name in reads.others), None)
        uses[name] = _Use(len(every[-1].products[name]) or len(rows), rows, other)
    return uses


def _outputs(module: nn.Module, component: Component) -> Outputs:
    """Return the outputs of calls in a row."""
    with _state_kept(component):
        calls = [to_host(**{f"call_{call}": module(**component.inputs)}) for call in range(_CALLS)]
    return {path: leaf for outputs in calls for path, leaf in outputs.items()}


@contextmanager
def _state_kept(component: Component) -> Iterator[None]:
    """After the block, restore the component's state."""
    restore = component.keep_state()
    try:
        yield
    finally:
        restore()


def _layers(module: nn.Module, conv_1x1: bool) -> dict[str, nn.Module]:
    """Return the linear layers, and with `conv_1x1` the convolutions with a kernel of one element, by name."""
    kinds = (nn.Linear, *_CONVOLUTIONS) if conv_1x1 else (nn.Linear,)
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, kinds) and (isinstance(layer, nn.Linear) or set(_weight(layer).shape[2:]) == {1})
    }


def _unlike_a_product(layer: nn.Module) -> str | None:
    """Return why the layer is not a plain product with its weight, or None."""
    if type(layer) not in (nn.Linear, *_CONVOLUTIONS):
        return f"is a {type(layer).__name__}, which may use its weight in another way"
    if parametrize.is_parametrized(layer):
        return "has a parametrisation, which makes its weight anew in each call"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "has hooks, which would be lost or change its weight"
    if isinstance(layer, _CONVOLUTIONS):
        padded = layer.padding not in ("valid", "same") and any(layer.padding)
        plain = layer.groups == 1 and set(layer.stride) == {1} and not padded
        return None if plain else "is a convolution with groups, stride or padding"
    return None


def _as_linear(layer: nn.Module) -> nn.Linear:
    """Return a separate linear layer that shares the layer's weight and bias."""
    weight = _weight(layer)
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().flatten(1), requires_grad=False)
    linear.bias = layer.bias  # pyright: ignore[reportAttributeAccessIssue] - both kinds have one, or None
    return linear


def _once(quantise: Callable[[nn.Linear], None]) -> Callable[[nn.Linear, Tensor], None]:
    """Return a function that quantises a layer made of a weight, each weight once: what is shared stays shared."""
    quantised: dict[int, tuple[Tensor, Any]] = {}  # with the weight, whose id it has while it lives

    def quantise_once(layer: nn.Linear, weight: Tensor) -> None:
        if id(weight) in quantised:
            layer.weight = quantised[id(weight)][1]
        else:
            quantise(layer)
            quantised[id(weight)] = weight, layer.weight

    return quantise_once


def _names_of(module: nn.Module, layer: nn.Module) -> tuple[str, ...]:
    """Return every name of a submodule that may stand in several places."""
    return tuple(name for name, each in module.named_modules(remove_duplicate=False) if each is layer)


def _weight(layer: nn.Module | None) -> Tensor:
    weight = getattr(layer, "weight", None)
    assert isinstance(weight, Tensor)
    return weight


def _replaced(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Return the module with `layer` in all places of its submodule `name`, or `layer` where the name is empty."""
    if not name:
        return layer
    for each in _names_of(module, module.get_submodule(name)):
        parent, _, last = each.rpartition(".")
        setattr(module.get_submodule(parent), last, layer)
    return module


def _raise_if_lost(error: Exception) -> None:
    """Raise the error if the device is lost or out of memory, and not if a kernel refused its arguments."""
    if is_device_failure(error):
        raise error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
