"""Another way to execute for each stage of a loop: each by the variant that suits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from profiling.core.components import Component
from profiling.errors import InputError
from profiling.variants.variant import Step, Variant


@dataclass(frozen=True, kw_only=True)
class Mixed(Variant):
    """A variant by the name of the component that it prepares.

    Raises:
        InputError: one of them is no variant.

    """

    stages: Mapping[str, Variant]

    def __post_init__(self) -> None:
        """Refuse what would fail at its stage only."""
        for stage, variant in self.stages.items():
            if not isinstance(variant, Variant):
                raise InputError(f"stages.{stage} is a {type(variant).__name__}, not a variant. Name a variant's YAML.")

    def unavailable(self, device: torch.device) -> str | None:
        """Return what any of them lacks."""
        reasons = (variant.unavailable(device) for variant in self.stages.values())
        return next((reason for reason in reasons if reason), None)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Prepare `component` by its own variant.

        Raises:
            InputError: there is none for it.

        """
        return stage_variant(self, component.name)(component, folder)


def stage_variant(variant: Variant, stage: str) -> Variant:
    """Return the variant that prepares a stage: `variant` itself unless it is a mixture.

    Raises:
        InputError: a mixture without that stage.

    """
    if not isinstance(variant, Mixed):
        return variant
    if stage not in variant.stages:
        raise InputError(f"no variant is given for the stage {stage}. There are: {', '.join(variant.stages)}")
    return variant.stages[stage]
