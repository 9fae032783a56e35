"""Prepares the stages of a loop before the first frame: their variants, components and reference outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from models.playback import WholeFrame
from profiling.components.build import Blueprint, build
from profiling.components.component import Component
from profiling.components.reference import CHECK_SEED, CheckCalls, Reference, first_call, outputs_of, strict_float32
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError
from profiling.realtime.options import PICTURE, ROLES, SOUND, WHOLE, WORLD, LoopOptions
from profiling.variants.compile import Compile
from profiling.variants.variant import Step, Variant


@dataclass(frozen=True, kw_only=True)
class Mixed(Variant):
    """A variant for each stage, by the stage's name."""

    stages: Mapping[str, Variant]

    def unavailable(self, device: torch.device) -> str | None:
        """Return why one of the variants cannot run on `device`, or None."""
        reasons = (variant.unavailable(device) for variant in self.stages.values())
        return next((reason for reason in reasons if reason), None)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Prepare `component`, which is named like its stage, by the variant of that stage."""
        return self.stages[component.name](component, folder)


def stage_variant(variant: Variant, stage: str) -> Variant:
    """Return the variant that prepares a stage: `variant` itself unless it is mixed."""
    return variant.stages[stage] if isinstance(variant, Mixed) else variant


def refuse_shared_pools(variant: Variant, stages: Iterable[str], options: LoopOptions) -> None:
    """Refuse stages that would overwrite each other's outputs: inductor's CUDA graphs share one memory pool.

    Raises:
        InputError: stages overlap, and one of them is compiled with inductor's CUDA graphs.

    """
    for name in stages:
        chosen = stage_variant(variant, name)
        if options.schedule == "overlap" and isinstance(chosen, Compile) and chosen.has_cuda_graphs():
            raise InputError(
                f"loop.schedule=overlap: mode={chosen.mode} keeps the CUDA graphs of all stages in one pool, and on "
                "several streams they would overwrite each other. Use compile_cuda_graph, or loop.schedule=sequential."
            )


@dataclass(frozen=True)
class LoadedStages:
    """The components of the loop by stage (three networks, or the whole as one) and the reference of each."""

    components: Mapping[str, Component]
    references: Mapping[str, Reference]
    parameters: int
    weights: str
    weights_hints: Mapping[str, str]


def build_stages(specs: Mapping[str, ComponentSpec], settings: Settings) -> dict[str, Blueprint]:
    """Build the three networks in float32.

    Raises:
        InputError: one of them cannot be built, or its arguments do not fit its role.

    """
    blueprints = {role: build(specs[role], settings, torch.float32) for role in ROLES}
    for role in (PICTURE, SOUND):
        inputs = blueprints[role].component(torch.float32, settings.seed).inputs
        if len(inputs) != 1:
            raise InputError(
                f"stages.{role}={specs[role].name}: it takes {', '.join(inputs)}, but the loop passes it one latent. "
                "Name a component whose forward has one argument."
            )
    world = blueprints[WORLD].component(torch.float32, settings.seed).inputs
    if not {"mouse", "btn"} <= set(world) or world["mouse"].shape[0] != 1:
        raise InputError(
            f"stages.world={specs[WORLD].name}: the loop writes `mouse` and `btn` of one user (batch 1) and draws "
            "noise for all other inputs. See component.world_model_frame for an example."
        )
    return blueprints


def reference_outputs(blueprints: Mapping[str, Blueprint], settings: Settings, *, whole: bool) -> dict[str, CheckCalls]:
    """Return the outputs of the float32 modules, by stage, for inputs that no variant is prepared with.

    Raises:
        InputError: a module fails on its inputs, or does not accept the latents of the world model.

    """
    components = _components(blueprints, torch.float32, settings.seed, whole=whole)
    with torch.inference_mode(), strict_float32():
        outputs = {name: first_call(component, settings.seed + CHECK_SEED) for name, component in components.items()}
    if not whole:  # the call of the whole frame has checked them: it passes them on
        first = outputs[WORLD][0]
        latents = [leaf.shape for path, leaf in first.items() if path[0] == "output" and leaf.numbers is not None]
        _check_latents(blueprints, components, latents)
    return outputs


def _check_latents(
    blueprints: Mapping[str, Blueprint], components: Mapping[str, Component], latents: Sequence[tuple[int, ...]]
) -> None:
    """Compare the shapes `latents` with those that the decoders take; copying would broadcast some silently."""
    shapes = [list(shape) for shape in latents]
    if len(latents) != 2:
        raise InputError(
            f"stages.world={blueprints[WORLD].spec.name}: it returns {shapes}. It must return two latents, for picture "
            "and sound."
        )
    for role, shape in zip((PICTURE, SOUND), shapes, strict=True):
        (latent,) = components[role].inputs.values()
        if list(latent.shape) != shape:
            raise InputError(
                f"stages.{role}={blueprints[role].spec.name}: it takes {list(latent.shape)}, but the world model "
                f"returns {shape}. Name a component that is made for these latents."
            )


def load_stages(
    blueprints: Mapping[str, Blueprint],
    expected: Mapping[str, CheckCalls],
    settings: Settings,
    *,
    whole: bool,
    priorities: Mapping[str, int],
) -> LoadedStages:
    """Cast the networks to the run's dtype and return their components.

    `expected` are the outputs of `reference_outputs`, `priorities` the stream priorities by stage.
    """
    dtype = getattr(torch, settings.dtype)
    for blueprint in blueprints.values():
        blueprint.cast(dtype)
    components = {
        name: replace(component, priority=priorities.get(name, 0))
        for name, component in _components(blueprints, dtype, settings.seed, whole=whole).items()
    }
    eager = {name: outputs_of(component, settings.seed + CHECK_SEED) for name, component in components.items()}
    sources = {role: blueprint.weights for role, blueprint in blueprints.items()}
    same = len(set(sources.values())) == 1
    hints = {role: blueprint.hint for role, blueprint in blueprints.items() if blueprint.hint}
    return LoadedStages(
        components,
        {name: Reference(expected[name], eager[name]) for name in components},
        sum(component.parameters for component in components.values()),
        sources[WORLD] if same else ", ".join(f"{role}: {source}" for role, source in sources.items()),
        hints,
    )


def _components(
    blueprints: Mapping[str, Blueprint], dtype: torch.dtype, seed: int, *, whole: bool
) -> dict[str, Component]:
    components = {role: replace(blueprint.component(dtype, seed), name=role) for role, blueprint in blueprints.items()}
    if not whole:
        return components
    module = WholeFrame(*(cast(torch.nn.Module, components[role].module) for role in ROLES)).eval()
    return {WHOLE: replace(components[WORLD], name=WHOLE, module=module)}
