"""Replaces the linear layers of a module by layers of another kind, with a kernel of their own for example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from profiling.components.component import Component
from profiling.errors import DID_NOTHING, InputError, NothingChangedError, missing_package
from profiling.results.explanations import ModuleChoice
from profiling.variants.recipe import Outcome, Transform
from profiling.variants.replaced_layers import check_patterns, fallbacks


@dataclass(frozen=True, kw_only=True)
class ReplaceLinears(Transform):
    """Replace the `nn.Linear` layers of a module, in place, by what `layer` makes of them.

    Attributes:
        layer: called with a linear layer; returns the layer that takes its place, or raises ValueError with the reason
            why this one stays. What it returns may have a method `fallback`, see `replaced_layers.fallbacks`.
        include: patterns of module names (`*` matches any characters); a layer must match one of them.
        exclude: patterns of the names of layers that stay.
        capability: least compute capability (major, minor) that the new layers' Triton kernel needs.

    Raises:
        InputError: a pattern in place of a list.
        ValueError: `layer` refuses every layer, because its options are wrong.

    """

    layer: Callable[[nn.Linear], nn.Module]
    include: Sequence[str] = ("*",)
    exclude: Sequence[str] = ()
    capability: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name}={getattr(self, name)!r} must be a list of patterns.")
        self.layer(nn.Linear(64, 64, device="meta"))  # so that wrong options are refused before anything is loaded

    def unavailable(self, device: torch.device) -> str | None:
        """Return what the kernel needs and `device` lacks, or None; without a GPU they run as PyTorch operations."""
        if device.type != "cuda" or missing_package("triton") is not None:
            return None
        has = torch.cuda.get_device_capability(device)
        if self.capability is None or torch.version.hip is not None or has >= tuple(self.capability):
            return None
        text = "compute capability {}.{}".format
        return f"the layers need a GPU of {text(*self.capability)} or later; this one has {text(*has)}"

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Replace all layers that `layer` takes; return a new module if `module` is itself a linear layer.

        Raises:
            NothingChangedError: the module has no linear layer, or no new layer runs with its kernel on a GPU.
            InputError: a pattern matches no layer.

        """
        layers = {
            name: layer
            for name, layer in module.named_modules(remove_duplicate=False)  # a shared one has several names
            if isinstance(layer, nn.Linear)
        }
        if not layers:
            raise NothingChangedError(f"{DID_NOTHING}: {type(module).__name__} has no linear layer")
        check_patterns((*self.include, *self.exclude), layers, module)
        made: dict[int, nn.Module] = {}  # by the id of the layer that it replaces
        choices = []
        for name, layer in layers.items():
            new = self._reason_to_leave(name, layer) or made.get(id(layer)) or self._made_of(layer)
            left = new if isinstance(new, str) else None
            now = None if isinstance(new, str) else type(new).__name__
            shape = (layer.out_features, layer.in_features)
            choices.append(ModuleChoice(name=name, shape=shape, left=left, now=now))
            if isinstance(new, str):
                continue
            made[id(layer)] = new
            owner, _, last = name.rpartition(".")
            if name:
                setattr(module.get_submodule(owner), last, new)
            else:
                module = new
        notes, ran = fallbacks(module, component)
        if made and not ran and component.device.type == "cuda":
            raise NothingChangedError(f"{DID_NOTHING}: {'; '.join(notes)}")
        return Outcome(module, choices=tuple(choices), notes=tuple(notes))

    def _reason_to_leave(self, name: str, layer: nn.Linear) -> str | None:
        """Return why a layer stays, whatever takes its place, or None."""
        if not any(fnmatchcase(name, pattern) for pattern in self.include):
            return "not included"
        if any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return "excluded"
        if type(layer) is not nn.Linear:
            return f"is a {type(layer).__name__}, which may use its weight in another way"
        if layer._forward_hooks or layer._forward_pre_hooks:
            return "has hooks, which would be lost"
        if not layer.weight.is_floating_point() or layer.weight.itemsize == 1:
            return f"has weights in {str(layer.weight.dtype).removeprefix('torch.')} already"
        return None

    def _made_of(self, layer: nn.Linear) -> nn.Module | str:
        try:
            return self.layer(layer)
        except ValueError as reason:
            return str(reason)
