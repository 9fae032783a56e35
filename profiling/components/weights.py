"""Gives a module its weights: from its factory, from a checkpoint, or random ones that are never zero."""

from __future__ import annotations

import math
import os
import zlib
from pathlib import Path

import torch
from torch import nn

from profiling.components.checkpoint import load_into
from profiling.components.instantiate import as_input_error, partial_of
from profiling.components.manifest import check_digest, load_manifest
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError

#: A parity check cannot see the effect of a parameter whose largest magnitude is below this.
DEGENERATE = 1e-4


def give_weights(module: nn.Module, spec: ComponentSpec, settings: Settings) -> tuple[str, str | None]:
    """Load or randomise the module's weights; return their source and, if random, how to get the published ones.

    Where the spec says that the module is `pretrained`, its factory loaded it, and it is not changed. If a published
    file does not fit, the error names the components that it was published for.
    """
    if spec.pretrained is not None:
        return spec.pretrained, None
    path, hint = find_weights(spec, settings)
    if path is None:
        if spec.initialise is not None:
            where = f"component.{spec.key}.initialise"
            initialise = partial_of(spec.initialise, where, given=("seed",), positional=1)
            with as_input_error(spec.initialise, where):
                initialise(module, seed=settings.seed)
        fill_degenerate(module, settings.seed)
        return "random", hint
    owners: tuple[str, ...] = ()
    for entry in load_manifest():
        # os.path and not pathlib, which raises for a path that no file system takes; `load_into` says what is wrong.
        if entry.path.is_file() and os.path.isfile(path) and entry.path.samefile(path):  # noqa: PTH113
            check_digest(entry, path)
            owners = entry.components
    load_into(module, path, part=spec.part, published_for=() if spec.key in owners else owners)
    return str(path), None


def find_weights(spec: ComponentSpec, settings: Settings) -> tuple[Path | None, str | None]:
    """Return (checkpoint to load, None), or (None, one line on how to get one).

    Raises:
        InputError: a checkpoint is required, there is none, and the factory loads no weights.

    """
    name = f"component.{spec.key}.checkpoint"
    if settings.checkpoint == "random" or spec.pretrained is not None:
        return None, None
    if spec.checkpoint is not None:
        return Path(spec.checkpoint), None
    hint = f"no checkpoint is published; to load yours: ++{name}=PATH"
    entry = next((entry for entry in load_manifest() if spec.key in entry.components), None)
    if entry is not None and settings.scale != "full":
        hint = f"the published checkpoint fits scale=full; to load yours: ++{name}=PATH"
    elif entry is not None:
        if entry.path.is_file():
            return entry.path, None
        hint = f"to download the published ones: {entry.download_command}"
    if settings.checkpoint == "required":
        raise InputError(f"checkpoint=required, but {spec.name} has none: {hint}")
    return None, hint


@torch.no_grad()
def fill_degenerate(module: nn.Module, seed: int) -> None:
    """Randomise, in place, every floating parameter that is (almost) all zero.

    With zero-initialised last layers, biases or gates a wrong variant could agree with the reference, and some devices
    compute zeros faster than real weights. Matrices get a standard deviation of fan_in ** -0.5, vectors one of 0.1.
    """
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0 or parameter.abs().max() > DEGENERATE:
            continue
        scale = math.prod(parameter.shape[1:]) ** -0.5 if parameter.ndim >= 2 else 0.1
        # Seeded by the name, so that the order of parameters has no effect.
        generator = torch.Generator(parameter.device).manual_seed((zlib.crc32(name.encode()) ^ seed) & 0xFFFFFFFF)
        parameter.normal_(std=scale, generator=generator)
