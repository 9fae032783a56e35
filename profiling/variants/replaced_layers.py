"""Layers that a transform replaced: their record, whether their own kernels run, and which of them fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from profiling.components.component import Component
from profiling.components.instantiate import is_device_failure
from profiling.errors import InputError, SkippedError, reason_of
from profiling.results.explanations import Choices, ModuleChoice

#: Most layers in the record of a transform's choices, and most reasons in the message that it changed none.
_LAYERS, _REASONS = 200, 3


def check_patterns(patterns: Iterable[str], names: Collection[str], module: nn.Module) -> None:
    """Raise an InputError for a pattern that matches none of the `names` of the module's linear layers."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(list(names)[:3])
            raise InputError(f"{pattern!r} matches no linear layer of {type(module).__name__} (such as: {some}).")


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
def naming_what_fails(
    module: nn.Module, component: Component, replaced: Sequence[ModuleChoice], *, compiled: bool
) -> Iterator[None]:
    """Raise an error of the block with the name of the replaced layer that fails.

    One of each kind is called alone, under torch.compile if `compiled`, on inputs like those of the component.

    Raises:
        RuntimeError: the block failed, and so does a replaced layer alone.

    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError | SkippedError) or is_device_failure(error):
            raise
        layers = dict(module.named_modules())
        kinds = {(each.shape, each.rows, each.now): each for each in replaced if each.name in layers}
        for choice, rows in ((each, rows) for each in kinds.values() for rows in sorted({*(each.rows or ())})):
            layer = layers[choice.name]
            try:
                alone = torch.compile(layer, dynamic=False) if compiled else layer
                alone(input_of(layer, rows, choice.shape[1], component.device, component.dtype))
            except Exception as found:
                name = f"{choice.name or 'the module'} {list(choice.shape)}, {choice.now}, {counted_rows(rows)}"
                raise RuntimeError(f"the layer {name} fails: {reason_of(_first_cause(found))}") from error
        raise


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
