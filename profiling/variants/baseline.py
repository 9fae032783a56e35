"""Eager PyTorch, as the model's author wrote it: the baseline of all speedups."""

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
        run = component.call
        extra_steps = tuple(partial(component.module, **inputs) for inputs in component.extra_inputs)
        for call in (*extra_steps, run):
            call()
        return Step(run=run, extra_steps=extra_steps, eager_step=EagerStep(run, component.module))
