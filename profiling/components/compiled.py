"""Modules that their user has compiled, whole or in part: what is inside is measured, and variants compile it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from profiling.components.snapshot import MISSING


def inside(module: Any) -> Any:
    """Return the module that was passed to `torch.compile`, or the argument itself if it is none of its results."""
    wrapper = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", ())
    while isinstance(module, wrapper):
        module = module._orig_mod
    return module


def compiled_parts(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules and methods that `torch.compile` has compiled; "" is the whole."""
    parts = dict[str, None]()
    for path, part in module.named_modules(remove_duplicate=False):
        names = [each for each in path.split(".") if each not in ("", "_orig_mod")]
        if inside(part) is not part or getattr(part, "_compiled_call_impl", None) is not None:
            parts[".".join(names)] = None
        parts |= dict.fromkeys(".".join([*names, method]) for method, _ in _methods(part))
    return tuple(parts)


def _methods(part: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, what was compiled) of the compiled functions among a module's attributes and its class's."""
    if inside(part) is not part:
        return
    bases = type(part).__mro__[: type(part).__mro__.index(nn.Module)]
    for name in dict.fromkeys(key for space in (part, *bases) for key in vars(space)):
        function = vars(part)[name] if name in vars(part) else getattr(type(part), name, None)
        within = getattr(function, "_torchdynamo_orig_callable", None) if isinstance(function, FunctionType) else None
        if within is not None and name != "_compiled_call_impl" and not hasattr(function, "_torchdynamo_disable"):
            # A method of the module, or of the one that it was copied from?
            is_method = isinstance(getattr(within, "__self__", None), type(part)) or name not in vars(part)
            yield name, MethodType(getattr(within, "__func__", within), part) if is_method else within


def take_inside(module: nn.Module) -> Callable[[], None]:
    """Put the modules inside in the place of all compiled parts, in place; return what undoes it.

    The module itself must be none that `torch.compile` returned.
    """
    calls, wrappers = list[tuple[nn.Module, dict[str, Any]]](), list[tuple[nn.Module, str, Any]]()
    for part in [*module.modules()]:
        methods: dict[str, Any] = dict(_methods(part))
        if getattr(part, "_compiled_call_impl", None) is not None:
            methods["_compiled_call_impl"] = None
        if methods:
            calls.append((part, {name: vars(part).get(name, MISSING) for name in methods}))
            vars(part).update(methods)
        for name, child in part._modules.items():
            if inside(child) is not child:
                part._modules[name] = inside(child)
                wrappers.append((part, name, child))

    def restore() -> None:
        for part, methods in calls:
            for name, method in methods.items():
                vars(part).pop(name)
                vars(part).update({name: method} if method is not MISSING else {})
        for part, name, child in wrappers:
            if part._modules.get(name) is inside(child):  # no transform has replaced it
                part._modules[name] = child

    return restore


def compiled_note(parts: Sequence[str]) -> str:
    """Return the note on parts that were compiled."""
    named = ", ".join(name or "the module" for name in parts[:3]) + f" and {len(parts) - 3} more" * (len(parts) > 3)
    was = "was" if len(parts) == 1 else "were"
    return f"{named} {was} compiled already (torch.compile): what is inside is measured, and variants compile it"
