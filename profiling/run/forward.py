"""The cell of a forward pass: load, compute the reference, prepare, measure, explain, trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from profiling.components.agreement import UNDECIDED
from profiling.components.build import Blueprint, build
from profiling.components.component import Component
from profiling.components.outputs import Outputs, difference, to_host
from profiling.components.sides import Sides, play_sides
from profiling.components.trajectory import learn
from profiling.metrics.metric import Metric, Subject
from profiling.results.measured import State
from profiling.results.record import merge_metric
from profiling.run.cell import Cell, measured_by, metrics_of, observe
from profiling.trace.counters import Recompiles
from profiling.variants.variant import Step

#: Limit of the relative L2 to eager at other shapes: the factor times that at the timed shape, at least the floor.
OTHER_SHAPES_FACTOR, OTHER_SHAPES_FLOOR = 3.0, 1e-3
#: Name of the only module among the sides of a forward pass.
MODULE = "module"


@dataclass
class ForwardCell(Cell):
    """A forward pass of a component under a variant."""

    def measure(self) -> None:
        """Run the phases in order, with the eager reference computed before the variant is prepared."""
        job, settings = self.job, self.job.settings
        variant = self.variant()
        metrics = metrics_of(job)
        reached = partial(observe, metrics, torch.device(settings.device))
        reached("start")
        with torch.inference_mode():
            with_reference = any(metric.needs_reference for metric in metrics.values())
            sides = self._sides(partial(reached, "loaded"), with_reference=with_reference)
            component, reference = sides.components[MODULE], sides.references.get(MODULE)
            self.describe(sides.components, frames_per_call=component.frames_per_call, cast=job.component.cast)
            component.refill(settings.seed)
            component.reset()
            self._describe_state(component)
            self.note_state(sides)
            del sides
            # Before a variant can change the module in place.
            expected_by = {name: metric.expected(component, settings.seed) for name, metric in metrics.items()}
            every = (
                (component.inputs, *component.extra_inputs) if reference is not None and component.extra_inputs else ()
            )
            eager = _outputs(component, [partial(component.module, **inputs) for inputs in every])
            component.reset()
            reached("inputs")
            with ExitStack() as stack:
                step = self.prepare(variant, {MODULE: component}, stack)[MODULE]
                reached("prepared")
                subject = Subject(component, step, reference, variant.tolerance, settings.seed, self.take_turns)
                recompiled = Recompiles()
                for name, metric in metrics.items():
                    self.run_metric(name, metric, replace(subject, expected=expected_by[name], around=recompiled))
                    if (reason := recompiled.reason) is not None and ("invalid", reason) not in self.problems:
                        self.problems.append(("invalid", reason))
                trace = self.explain(component, step)
                self._check_after_timing(metrics, subject)
                if reference is not None:
                    self._check_other_shapes(component, step, eager)
                self.explain_time(component, step, trace)

    def components(self) -> Mapping[str, Component]:
        """Build the component as a run calls it."""
        settings = self.job.settings
        with self.phase("load"):
            blueprint = build(self.job.component, settings).cast("run")
            for note in blueprint.notes:
                self.note(note)
            component = blueprint.component(settings.seed)
        return {component.name: component}

    def _sides(self, on_built: Callable[[], None], *, with_reference: bool) -> Sides:
        """Play the component eagerly, which shows what calls change, and as the fp32 reference from the same S0."""
        settings, load = self.job.settings, partial(self.load, {MODULE: self.job.component})

        def made(blueprints: Mapping[str, Blueprint]) -> dict[str, Component]:
            return {name: blueprint.component(settings.seed) for name, blueprint in blueprints.items()}

        if with_reference:
            device = torch.device(settings.device)
            return play_sides(load, made, device, phase=self.phase, on_built=on_built)
        with torch.inference_mode(False):
            components = made({name: blueprint.cast("run") for name, blueprint in load().items()})
        on_built()
        with self.phase("eager"):
            for component in components.values():
                learn(component)
        return Sides(components)

    def _describe_state(self, component: Component) -> None:
        """Record what calls change, and how many in a row are compared and timed."""
        kept, wanted = component.kept, self.job.component.state_options.calls
        section = State(
            policy=kept.policy,
            tensors=len(kept.changed or ()),
            bytes=kept.bytes,
            on_host=kept.on_host,
            warm_calls=kept.warm_calls,
            calls=component.place.calls,
            effects=tuple(kept.effects.lines()),
            not_restored=kept.not_restored,
        )
        self.add(state=section)
        if component.place.calls < wanted:
            self.note(
                f"{component.place.calls} calls in a row are compared and timed, not {wanted}: a later one fails (a "
                "cache that is full?), or they are slow or return much; component.NAME.state.calls sets the number"
            )

    def _check_after_timing(self, metrics: Mapping[str, Metric], subject: Subject) -> None:
        """Check parity again after the timing, to detect a stale buffer or an overwritten graph pool.

        Where eager's outputs are then wrong, too, the timing has changed what the module computes, not the variant.
        """
        for metric in metrics.values():
            again = measured_by(metric, subject) if metric.needs_reference and not self.problems else None
            if again is not None and again.problem is not None:
                status, reason = again.problem
                eager = replace(subject, step=Step(run=subject.component.call))
                if UNDECIDED in reason:
                    reason = f"after the timing: {reason}"
                elif measured_by(metric, eager).problem is not None:
                    reason = (
                        f"{UNDECIDED}the outputs of eager are wrong after the timing, too ({_OUT_OF_REACH}): {reason}"
                    )
                else:
                    reason = f"correct before the timing, wrong after it: {reason}"
                self.problems.append((status, reason))
                self.add(**merge_metric(self.metrics, again.sections)[1])

    def _check_other_shapes(self, component: Component, step: Step, eager: Sequence[Outputs]) -> None:
        """Compare the steps of the other shapes with eager, because preparing one shape may break another.

        `eager` are its outputs at the timed shape and the others, before the variant was prepared.
        """
        if len(step.extra_steps) < len(component.extra_inputs):
            self.note("the variant returns no steps for the other shapes, so those were not checked")
            return
        if not component.extra_inputs:
            return
        outputs = _outputs(component, (step.run, *step.extra_steps))
        timed, *others = [difference(*pair) for pair in zip(outputs, eager, strict=True)]
        if (fault := next((each.fault for each in (timed, *others) if each.fault), None)) is not None:
            self.problems.append(("failed", f"after other shapes were prepared, unlike eager's: {fault}"))
            return
        worst, limit = max(each.error for each in others), max(OTHER_SHAPES_FLOOR, OTHER_SHAPES_FACTOR * timed.error)
        if worst > limit:
            reason = f"relative L2 to eager of another prepared shape is {worst:.2g}, limit {limit:.2g}"
            self.problems.append(("failed", reason))


#: Why outputs of eager may differ after the calls that are timed.
_OUT_OF_REACH = "does it keep a number in a global, a closure or its class? Keep it in the module"


def _outputs(component: Component, calls: Iterable[Callable[[], Any]]) -> list[Outputs]:
    """Return the output of each call, from the initial state."""
    outputs = []
    for call in calls:
        component.reset()
        outputs.append(to_host(output=call()))
    return outputs
