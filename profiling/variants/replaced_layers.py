"""Layers that a transform replaced: their record, whether their own kernels run, and which of them fails."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from profiling.components.component import Component
from profiling.components.instantiate import is_device_failure
from profiling.errors import InputError, SkippedError, causes, reason_of
from profiling.results.record import Choices, ModuleChoice

#: Most layers in the record of a transform's choices, and most reasons in the message that it changed none.
_LAYERS, _REASONS = 200, 3
#: After so many seconds no further layer is compiled alone to name the one on which the compiler has failed.
_NAMING_SECONDS = 60.0


def choices_of(choices: Iterable[Any], module: nn.Module) -> Iterator[ModuleChoice]:
    """Yield a record entry for each object that `choices(module)` of a transform returned (name, shape, `left`)."""
    for each in choices:
        now = None if each.left is not None else type(module.get_submodule(each.name)).__name__
        yield ModuleChoice(name=each.name, shape=tuple(each.shape), left=each.left, now=now)


def choices_section(choices: Sequence[ModuleChoice]) -> Choices:
    """Return the record's section on the layers that a transform replaced or left."""
    left = Counter(each.left for each in choices if each.left is not None)
    now = Counter(each.now for each in choices if each.now is not None)
    rows = sorted(choices, key=lambda each: each.left is None)
    return Choices(replaced=len(choices) - left.total(), now=now, left=left, layers=tuple(rows[:_LAYERS]))


def why_nothing(choices: Sequence[ModuleChoice]) -> str:
    """Return one line with the most common reasons why layers stay, each with its first layer."""
    texts = []
    for reason, count in Counter(each.left for each in choices).most_common(_REASONS):
        first = next(each for each in choices if each.left == reason)
        more = f" and {count - 1} more" if count > 1 else ""
        texts.append(f"{first.name or 'the module'} {list(first.shape)}{more}: {reason}")
    return "; ".join(texts)


def fallbacks(module: nn.Module, component: Component) -> tuple[list[str], bool]:
    """Call the module, and ask each layer that has a method `fallback` whether its own kernel runs in that call.

    Returns:
        A remark for each reason for which one does not, and False if all were called and none does.

    """
    layers = [each for each in module.modules() if callable(getattr(each, "fallback", None))]
    if not layers:
        return [], True
    reasons: dict[int, str | None] = {}  # by the id of a layer that was called

    def note(layer: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        reasons[id(layer)] = reasons.get(id(layer)) or layer.fallback(*args, **inputs)

    hooks = [each.register_forward_pre_hook(note, with_kwargs=True) for each in layers]
    restore = component.keep_state()
    try:
        module(**component.inputs)
    finally:
        restore()
        for hook in hooks:
            hook.remove()
    notes = [
        f"{count} of {len(reasons)} replaced layers run without their kernel: {reason}"
        for reason, count in Counter(filter(None, reasons.values())).items()
    ]
    # One that is not called may be part of a fused kernel.
    return notes, len(reasons) < len(layers) or None in reasons.values()


@contextmanager
def naming_what_cannot_be_compiled(
    module: nn.Module,
    component: Component,
    replaced: Sequence[ModuleChoice],
    compile_alone: Callable[[nn.Module, Mapping[str, Tensor]], object],
) -> Iterator[None]:
    """Name the layer, of those that transforms `replaced` in `module`, on which a compiler fails in the block.

    It compiles those alone, one of each kind, for inputs of the dtype and device of `component`.

    Raises:
        RuntimeError: the compiler failed, and fails on a replaced layer alone.

    """
    try:
        yield
    except Exception as error:
        if _concerns_no_layer(error):
            raise
        deadline = perf_counter() + _NAMING_SECONDS
        kinds: dict[Hashable, ModuleChoice] = {}
        layers = dict(module.named_modules())
        for each in replaced:
            if each.name in layers:
                kinds.setdefault((each.shape, each.rows, each.now), each)
        for choice, rows in ((each, rows) for each in kinds.values() for rows in sorted({*(each.rows or ())})):
            if perf_counter() > deadline:
                break
            alone = layers[choice.name]
            try:
                compile_alone(
                    alone, {"input": input_of(alone, rows, choice.shape[1], component.device, component.dtype)}
                )
            except Exception as found:
                layer = f"{choice.name or 'the module'} {list(choice.shape)}, {choice.now}, {counted_rows(rows)}"
                raise RuntimeError(f"cannot compile {layer}: {reason_of(_first_cause(found))}") from error
        raise


@contextmanager
def naming_what_fails(modules: Sequence[nn.Module], replaced: Sequence[ModuleChoice]) -> Iterator[None]:
    """Name the replaced layer that was called when the block failed.

    Raises:
        RuntimeError: the block failed in a replaced layer.

    """
    try:
        yield
    except Exception as error:
        if _concerns_no_layer(error):
            raise
        names = {each.name: each for each in replaced}
        named = (item for module in modules for item in module.named_modules())
        layers = {id(layer): names[name] for name, layer in named if name in names}
        running = None
        for cause in causes(error):
            for frame, _ in traceback.walk_tb(cause.__traceback__):
                running = layers.get(id(frame.f_locals.get("self")), running)
        if running is None:
            raise
        layer = f"{running.name or 'the module'} {list(running.shape)}, {running.now}"
        raise RuntimeError(f"the layer {layer} fails: {reason_of(error)}") from error


def _concerns_no_layer(error: Exception) -> bool:
    return isinstance(error, InputError | SkippedError) or is_device_failure(error)


def _first_cause(error: BaseException) -> BaseException:
    """Return what an error of torch's compiler was made of."""
    while type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        inner = error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    return error


def counted_rows(rows: int) -> str:
    """Return `1 row` or `17 rows`."""
    return "1 row" if rows == 1 else f"{rows} rows"


def channels_of(layer: nn.Module) -> int:
    """Return the dimension of the channels in the input of a linear layer (-1) or of a convolution (-2 to -4)."""
    return -1 - len(getattr(layer, "kernel_size", ()))


def input_of(layer: nn.Module, rows: int, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return random numbers to call a layer alone: [rows, channels], or [1, channels, rows, 1...] of a convolution."""
    axes = -1 - channels_of(layer)
    shape = (1, channels, rows, *[1] * (axes - 1)) if axes else (rows, channels)
    return torch.randn(shape, device=device, dtype=dtype)
