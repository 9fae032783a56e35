"""Variants of the stages of a loop: one for all of them, or a mix; and what of them does not fit a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.realtime.plan import LoopOptions
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
