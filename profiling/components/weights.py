"""A module's weights: from its own factory, from a checkpoint, or random and then never degenerate."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from models.initialisation import randomise_parameter
from profiling.components.checkpoint_file import load_into
from profiling.components.instantiate import partial_of
from profiling.components.manifest import load_manifest, verify
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError

#: A tensor whose largest magnitude is below this contributes nothing that a parity check could see.
DEGENERATE = 1e-4


def give_weights(module: nn.Module, spec: ComponentSpec, settings: Settings) -> tuple[str, str | None]:
    """Load or randomise the module's weights; return where they came from, and how to get them where they are random.

    A module whose factory loaded its weights says so in its attribute `weights_source`, and is left alone. A module
    may have a method `published_shapes()`: component name -> function that returns the state-dict names and shapes of
    that size of the network. A checkpoint of another size is then named in the error.
    """
    source = getattr(module, "weights_source", None)
    if source is not None:
        return str(source), None
    path, hint = find_weights(spec, settings)
    if path is None:
        randomise(module, spec, settings.seed)
        return "random", hint
    if entry := load_manifest().of_file(path):
        verify(entry)
    published_shapes = getattr(module, "published_shapes", dict)()
    others = {name: shapes for name, shapes in published_shapes.items() if name != spec.key}
    load_into(module, path, part=spec.part, others=others)
    return str(path), None


def randomise(module: nn.Module, spec: ComponentSpec, seed: int) -> None:
    """Give the module random weights: by its YAML's `initialise`, else its own, and none of them degenerate."""
    if spec.initialise is not None:
        partial_of(spec.initialise, f"component.{spec.key}.initialise")(module, seed=seed)
    fill_degenerate(module, seed)


def find_weights(spec: ComponentSpec, settings: Settings) -> tuple[Path | None, str | None]:
    """Return (checkpoint to load, None), or (None, hint how to get one).

    Raises:
        InputError: a checkpoint is required and none is there.

    """
    name = f"component.{spec.key}.checkpoint"
    if settings.checkpoint == "random":
        return None, None
    if spec.checkpoint is not None:
        return Path(spec.checkpoint), None
    hint = f"no checkpoint is published for it; {name}=PATH loads yours"
    entry = next((entry for entry in load_manifest().entries if spec.key in entry.components), None)
    if entry is not None and settings.scale != "full":
        hint = f"the published checkpoint fits scale=full; {name}=PATH loads yours"
    elif entry is not None:
        if entry.file.is_file():
            return entry.file, None
        hint = f"to download the published ones: {entry.download_command}"
    if settings.checkpoint == "required":
        raise InputError(f"checkpoint=required, but {spec.name} has none: {hint}")
    return None, hint


@torch.no_grad()
def fill_degenerate(module: nn.Module, seed: int) -> tuple[str, ...]:
    """Randomise, in place, every floating parameter that is (almost) all zero, and return their names.

    Zero-initialised last layers, biases and gates would let a wrong variant agree with the reference, and zeros run
    faster on some devices than real weights do. Matrices get a standard deviation of fan_in ** -0.5, vectors 0.1.
    """
    filled = []
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0 or parameter.abs().max() > DEGENERATE:
            continue
        randomise_parameter(parameter, name, seed)
        filled.append(name)
    return tuple(filled)
