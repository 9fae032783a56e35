"""Eager PyTorch, as the model's author wrote it: what everything else is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from profiling.components.component import Component
from profiling.variants.variant import EagerStep, Step, Variant


@dataclass(frozen=True, kw_only=True)
class Baseline(Variant):
    """Call the module."""

    def __call__(self, component: Component, folder: Path) -> Step:
        """Return a step that calls the module on the component's inputs."""
        extra_steps = tuple(partial(component.module, **given) for given in component.extra_inputs)
        for call in (*extra_steps, component.call):
            call()
        run = component.call
        return Step(run=run, extra_steps=extra_steps, eager_step=EagerStep(run, component.module))
