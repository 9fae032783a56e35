"""Prepares the stages of a loop before the first frame: their variants, components and reference outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from profiling.components.build import Blueprint
from profiling.components.component import Component
from profiling.components.outputs import OutputLog
from profiling.components.sides import Sides, Start, play_sides
from profiling.components.spec import Settings
from profiling.errors import InputError
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import Graph
from profiling.realtime.options import LoopOptions
from profiling.realtime.sessions import EAGER, play_sessions
from profiling.variants.quantize import Quantize
from profiling.variants.recipe import Recipe
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


def check_variant(variant: Variant, options: LoopOptions) -> None:
    """Check that a variant, or those of a mixed one, fit a loop.

    Raises:
        InputError: overlapping stages are compiled with inductor's CUDA graphs, which share one memory pool and would
            overwrite each other's outputs; or layers would be measured one by one, for which a loop has no table.

    """
    for chosen in variant.stages.values() if isinstance(variant, Mixed) else (variant,):
        if not isinstance(chosen, Recipe):
            continue
        own_graphs = chosen.compiler.own_graphs if chosen.compiler is not None else None
        if options.schedule == "overlap" and own_graphs is not None:
            raise InputError(
                f"loop.schedule=overlap: {own_graphs} keeps the CUDA graphs of all stages in one pool, and on "
                "several streams they would overwrite each other. Use compile+cuda_graph, or loop.schedule=sequential."
            )
        for number, transform in enumerate(chosen.transforms):
            if isinstance(transform, Quantize) and transform.sensitivity:
                raise InputError(
                    f"transforms.{number}.sensitivity=true measures the layers of one network, and a loop has no table "
                    "for them. Leave it out, and use it with python -m profiling.generic_forward."
                )


def stage_components(
    graph: Graph, blueprints: Mapping[str, Blueprint], seed: int, options: LoopOptions
) -> dict[str, Component]:
    """Return the component of each stage, which has the stage's name; the blueprints must have been cast."""
    overlapping = options.schedule == "overlap"
    return {
        name: replace(blueprint.component(seed), name=name, priority=graph.stages[name].priority if overlapping else 0)
        for name, blueprint in blueprints.items()
    }


def load_stages(
    graph: Graph,
    load: Callable[[], Mapping[str, Blueprint]],
    settings: Settings,
    options: LoopOptions,
    *,
    ticks: int,
    phase: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Sides:
    """Build the stages by `load`, and play what they are compared with: each by itself, and sessions of the whole.

    `ticks` is the length of the sources that are made.

    Raises:
        InputError: a module cannot be built or fails on its inputs, or an edge does not fit.

    """

    def made(blueprints: Mapping[str, Blueprint]) -> dict[str, Component]:
        return stage_components(graph, blueprints, settings.seed, options)

    def together(components: Mapping[str, Component], starts: Mapping[str, Start] | None, seed: int) -> OutputLog:
        calls = {name: component.call for name, component in components.items()}
        narrow = getattr(torch, settings.dtype)
        pipeline = assemble(
            graph, components, calls, EAGER, ticks=ticks, seed=settings.seed, narrow=narrow, starts=starts
        )
        return play_sessions(graph, pipeline, settings.seed + seed)

    return play_sides(load, made, torch.device(settings.device), phase=phase, together=together)
