"""The networks of the loop, loaded, and what each must give: the float32 reference before the run's own dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch

from models.playback import WholeFrame
from profiling.core.building import Blueprint, build
from profiling.core.components import Component
from profiling.core.job import ComponentSpec, Settings
from profiling.core.reference import CHECK_SEED, Outputs, Reference, first_call, outputs_of, strict_float32
from profiling.errors import InputError
from profiling.loop.assemble import PICTURE, SOUND, WHOLE, WORLD

ROLES = (WORLD, PICTURE, SOUND)


@dataclass(frozen=True)
class Parts:
    """What is prepared and played: the three networks, or the whole as one; and the reference of each."""

    components: Mapping[str, Component]
    references: Mapping[str, Reference]
    parameters: int
    weights: str
    hint: str | None


def blueprints_of(specs: Mapping[str, ComponentSpec], settings: Settings) -> dict[str, Blueprint]:
    """Build the three networks in float32.

    Raises:
        InputError: one of them cannot be built, or is not made for a loop.

    """
    found = {role: build(specs[role], settings, torch.float32) for role in ROLES}
    for role in (PICTURE, SOUND):
        inputs = found[role].component(torch.float32, settings.seed).inputs
        if len(inputs) != 1:
            raise InputError(
                f"stages.{role}={specs[role].name}: it takes {', '.join(inputs)}, and the loop hands it one latent. "
                "Name a component whose forward has one argument."
            )
    world = found[WORLD].component(torch.float32, settings.seed).inputs
    if not {"mouse", "btn"} <= set(world) or world["mouse"].shape[0] != 1:
        raise InputError(
            f"stages.world={specs[WORLD].name}: the loop feeds `mouse` and `btn` of one player (batch 1) and draws "
            "noise for all other inputs. component.world_model_frame shows how."
        )
    return found


def expected_of(blueprints: Mapping[str, Blueprint], settings: Settings, *, whole: bool) -> dict[str, Outputs]:
    """Return what the float32 modules make of inputs that no variant is prepared with.

    Raises:
        InputError: a module fails on its inputs, or does not take what the world model makes.

    """
    found = _components(blueprints, torch.float32, settings.seed, whole=whole)
    with torch.inference_mode(), strict_float32():
        expected = {name: first_call(component, settings.seed + CHECK_SEED) for name, component in found.items()}
    if not whole:  # as one they have just handed over
        _check_hand_over(blueprints, found, list(expected[WORLD].values()))
    return expected


def _check_hand_over(
    blueprints: Mapping[str, Blueprint], components: Mapping[str, Component], made: list[torch.Tensor]
) -> None:
    """Check that each decoder takes what the world model `made`: copying would stretch some shapes silently."""
    shapes = [list(tensor.shape) for tensor in made]
    if len(made) != 2:
        raise InputError(
            f"stages.world={blueprints[WORLD].spec.name}: it makes {shapes}, and not a latent of each kind."
        )
    for role, shape in zip((PICTURE, SOUND), shapes, strict=True):
        (latent,) = components[role].inputs.values()
        if list(latent.shape) != shape:
            raise InputError(
                f"stages.{role}={blueprints[role].spec.name}: it takes {list(latent.shape)}, and the world model hands "
                f"it {shape}. Name a component that is made for these latents."
            )


def parts_of(
    blueprints: Mapping[str, Blueprint],
    expected: Mapping[str, Outputs],
    settings: Settings,
    *,
    whole: bool,
    priorities: Mapping[str, int],
) -> Parts:
    """Cast the networks to the run's dtype and return them with their references, and with stream `priorities`."""
    dtype = getattr(torch, settings.dtype)
    for blueprint in blueprints.values():
        blueprint.cast(dtype)
    made = _components(blueprints, dtype, settings.seed, whole=whole)
    components = {name: replace(part, priority=priorities.get(name, 0)) for name, part in made.items()}
    eager = {name: outputs_of(component, settings.seed + CHECK_SEED) for name, component in components.items()}
    sources = {role: blueprint.weights for role, blueprint in blueprints.items()}
    same = len(set(sources.values())) == 1
    hints = [blueprint.hint for blueprint in blueprints.values() if blueprint.hint]
    return Parts(
        components,
        {name: Reference(expected[name], eager[name]) for name in components},
        sum(component.parameters for component in components.values()),
        sources[WORLD] if same else ", ".join(f"{role}: {source}" for role, source in sources.items()),
        "; ".join(dict.fromkeys(hints)) or None,
    )


def _components(
    blueprints: Mapping[str, Blueprint], dtype: torch.dtype, seed: int, *, whole: bool
) -> dict[str, Component]:
    found = {role: replace(blueprint.component(dtype, seed), name=role) for role, blueprint in blueprints.items()}
    if not whole:
        return found
    module = WholeFrame(*(cast(torch.nn.Module, found[role].module) for role in ROLES)).eval()
    return {WHOLE: replace(found[WORLD], name=WHOLE, module=module)}
