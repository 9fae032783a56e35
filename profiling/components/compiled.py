"""Modules that their user has compiled, whole or in part: what is inside is measured, and variants compile it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn


def inside(module: Any) -> Any:
    """Return the module that was passed to `torch.compile`, or the argument itself if it is none of its results."""
    wrapper = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", ())
    while isinstance(module, wrapper):
        module = module._orig_mod
    return module


def compiled_parts(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parts that `torch.compile` returned or that `compile()` compiled; "" is the whole."""
    parts = {
        ".".join(each for each in name.split(".") if each != "_orig_mod"): None
        for name, part in module.named_modules(remove_duplicate=False)
        if inside(part) is not part or getattr(part, "_compiled_call_impl", None) is not None
    }
    return tuple(parts)


def take_inside(module: nn.Module) -> Callable[[], None]:
    """Put the modules inside in the place of all compiled parts, in place; return what undoes it.

    The module itself must be none that `torch.compile` returned.
    """
    calls, wrappers = list[tuple[nn.Module, Any]](), list[tuple[nn.Module, str, Any]]()
    for part in [*module.modules()]:
        if getattr(part, "_compiled_call_impl", None) is not None:
            calls.append((part, vars(part).pop("_compiled_call_impl")))
        for name, child in part._modules.items():
            if inside(child) is not child:
                part._modules[name] = inside(child)
                wrappers.append((part, name, child))

    def restore() -> None:
        for part, call in calls:
            vars(part)["_compiled_call_impl"] = call
        for part, name, child in wrappers:
            if part._modules.get(name) is inside(child):  # no transform has replaced it
                part._modules[name] = child

    return restore


def compiled_note(parts: Sequence[str]) -> str:
    """Return the note on parts that were compiled."""
    named = ", ".join(name or "the module" for name in parts[:3]) + f" and {len(parts) - 3} more" * (len(parts) > 3)
    was = "was" if len(parts) == 1 else "were"
    return f"{named} {was} compiled already (torch.compile): what is inside is measured, and variants compile it"
