"""The cell of a forward pass, from its first byte to its record: load, reference, prepare, measure, explain, trace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from profiling.components.build import Blueprint, build
from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.components.reference import (
    CHECK_SEED,
    Outputs,
    Reference,
    first_call,
    outputs_of,
    relative_l2,
    strict_float32,
    to_host,
)
from profiling.metrics.metric import Metric, Subject
from profiling.run.cell import SECTIONS, Cell, metrics_of
from profiling.trace.profiler import synchronize
from profiling.variants.variant import Step, Variant

#: A shape held beside the timed one may be this many times as far from eager as that one is, or as far as the floor.
OTHERS_FACTOR, OTHERS_FLOOR = 3.0, 1e-3


class ForwardCell(Cell):
    """A forward pass of a component under a variant."""

    def measure(self) -> None:
        """Load, compute the reference, prepare, measure, trace."""
        job, settings = self.job, self.job.settings
        variant: Variant = instantiate(job.variant_options, f"variant.{job.variant}")
        metrics = metrics_of(job)
        run_dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
        with_reference = any(metric.needs_reference for metric in metrics.values())

        def reached(phase: str) -> None:
            for metric in metrics.values():
                metric.on_phase(phase, device)

        reached("start")
        blueprint = self._load(torch.float32 if with_reference else run_dtype)
        expected = self._expected(blueprint) if with_reference else None
        if expected is not None:
            # A fresh one: a module may keep tensors of its first call, and would carry float32 into the run.
            del blueprint
            blueprint = build(job.component, settings, torch.float32)
        blueprint.cast(run_dtype)
        with torch.inference_mode():
            reference = None if expected is None else Reference(expected, self._eager(blueprint))
            reached("loaded")
            component = blueprint.component(run_dtype, settings.seed)
            self.add(parameters=component.parameters, frames_per_call=component.frames_per_call)
            reached("inputs")
            step = self.prepare(variant, component)
            try:
                reached("prepared")
                subject = Subject(component, step, reference, variant.tolerance, settings.seed)
                for name, metric in metrics.items():
                    self.take(name, metric, subject)
                self._still_right(metrics, subject)
                if with_reference:
                    self._others_right(component, step)
                self.explain(step)
                self.explain_limits(component, step)
                if settings.trace:
                    self.trace(component, step)
            finally:
                step.close()

    def _load(self, dtype: torch.dtype) -> Blueprint:
        with self.phase("load"):
            started = time.perf_counter()
            blueprint = build(self.job.component, self.job.settings, dtype)
            synchronize(blueprint.device)
            load = {"seconds": time.perf_counter() - started}
            self.add(weights=blueprint.weights, weights_hint=blueprint.hint, load=load)
            return blueprint

    def _expected(self, blueprint: Blueprint) -> Outputs:
        """Compute what every variant is held against: the outputs of the float32 module."""
        seed = self.job.settings.seed
        with self.phase("reference"), torch.inference_mode(), strict_float32():
            return first_call(blueprint.component(torch.float32, seed), seed + CHECK_SEED)

    def _eager(self, blueprint: Blueprint) -> Outputs:
        seed = self.job.settings.seed
        return outputs_of(blueprint.component(blueprint.run_dtype, seed), seed + CHECK_SEED)

    def _still_right(self, metrics: Mapping[str, Metric], subject: Subject) -> None:
        """Ask once more after the timing: a stale buffer or a spoilt pool shows late."""
        for metric in metrics.values():
            again = metric.measure(subject) if metric.needs_reference and not self.problems else None
            if again is not None and again.problem is not None:
                status, reason = again.problem
                self.problems.append((status, f"right before the timing and wrong after it: {reason}"))
                self.add(**{key: value for key, value in again.sections.items() if key in SECTIONS})

    def _others_right(self, component: Component, step: Step) -> None:
        """Hold the steps of other shapes, prepared beside this one, against eager: one may have spoilt another."""
        if len(step.extra_steps) < len(component.extra_inputs):
            self.noted.append("the variant gives no steps for the other shapes, so those were not checked")
            self.add(notes=tuple(self.noted))
            return
        limit = max(OTHERS_FLOOR, OTHERS_FACTOR * _apart(step.run, component.call))
        pairs = zip(step.extra_steps, component.extra_inputs, strict=True)
        apart = [_apart(run, partial(component.module, **given)) for run, given in pairs]
        if apart and all(map(math.isfinite, apart)):
            self.metric_sections["other_shapes"] = {"rel_l2_to_eager": max(apart), "limit": limit}
            self.add(metrics=self.metric_sections)
        if not all(error <= limit for error in apart):
            reason = f"another shape, prepared beside this one, is {max(apart):.2g} from eager, allowed {limit:.2g}"
            self.problems.append(("failed", reason))


def _apart(run: Callable[[], Any], eager: Callable[[], Any]) -> float:
    """Return the relative L2 distance of what `run` gives from what eager gives."""
    return relative_l2(to_host(run()), to_host(eager()))
