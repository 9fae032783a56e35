"""The cell of a forward pass: load, compute the reference, prepare, measure, explain, trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from profiling.components.build import Blueprint, build
from profiling.components.casting import parameter_dtypes
from profiling.components.component import Component
from profiling.components.outputs import Outputs, difference, to_host
from profiling.components.reference import Reference, compute_reference, free_memory, has_room_beside
from profiling.components.trajectory import SECONDS, Played, learn, played
from profiling.metrics.metric import Metric, Subject
from profiling.results.measured import Load, OtherShapes, State
from profiling.results.record import merge_metric
from profiling.run.cell import Cell, measured_by, metrics_of
from profiling.trace.counters import Recompiles
from profiling.trace.profiler import synchronize
from profiling.variants.variant import Step

#: Limit of the relative L2 to eager at other shapes: the factor times that at the timed shape, at least the floor.
OTHER_SHAPES_FACTOR, OTHER_SHAPES_FLOOR = 3.0, 1e-3


@dataclass
class ForwardCell(Cell):
    """A forward pass of a component under a variant."""

    _checksums: list[float] | None = field(default=None, init=False)  # of the first build

    def measure(self) -> None:
        """Run the phases in order, with the eager reference computed before the variant is prepared."""
        job, settings = self.job, self.job.settings
        variant = self.variant()
        metrics = metrics_of(job)
        device = torch.device(settings.device)
        with_reference = any(metric.needs_reference for metric in metrics.values())

        def reached(phase: str) -> None:
            for metric in metrics.values():
                metric.on_phase(phase, device)

        reached("start")

        def built() -> Component:
            component = self._load()["module"].cast("run").component(settings.seed)
            reached("loaded")
            return component

        with torch.inference_mode():
            component, reference = self._sides(built, with_reference)
            self.add(
                parameters=component.parameters,
                parameter_dtypes=parameter_dtypes(component.module),
                cast=job.component.cast,
                frames_per_call=component.frames_per_call,
            )
            component.refill(settings.seed)
            component.reset()
            self._describe_state(component, reference)
            # Before a variant can change the module in place.
            expected_by = {name: metric.expected(component, settings.seed) for name, metric in metrics.items()}
            every = (component.inputs, *component.extra_inputs) if with_reference and component.extra_inputs else ()
            eager = _outputs(component, [partial(component.module, **inputs) for inputs in every])
            component.reset()
            reached("inputs")
            step = self.prepare(variant, component)
            try:
                reached("prepared")
                subject = Subject(component, step, reference, variant.tolerance, settings.seed, self.take_turns)
                recompiled = Recompiles()
                for name, metric in metrics.items():
                    self.run_metric(name, metric, replace(subject, expected=expected_by[name], around=recompiled))
                    if (reason := recompiled.reason) is not None and ("invalid", reason) not in self.problems:
                        self.problems.append(("invalid", reason))
                self._check_after_timing(metrics, subject)
                if with_reference:
                    self._check_other_shapes(component, step, eager)
                self.explain(step)
                self.explain_roofline(component, step)
                if settings.trace:
                    self.trace(component, step)
            finally:
                self.close(step)

    def components(self) -> Mapping[str, Component]:
        """Build the component as a run calls it."""
        settings = self.job.settings
        with self.phase("load"):
            blueprint = build(self.job.component, settings).cast("run")
            for note in blueprint.notes:
                self.note(note)
            component = blueprint.component(settings.seed)
        return {component.name: component}

    def _sides(self, build: Callable[[], Component], with_reference: bool) -> tuple[Component, Reference | None]:
        """Play the trajectory eagerly, which shows what calls change, and as the fp32 reference from the same S0.

        Return the component, which is built again where the reference had no room beside it: nothing else may hold it.
        """
        with torch.inference_mode(False):
            component = build()
        with self.phase("eager"):
            eager = learn(component)
            component.reset()
            if not with_reference:
                return component, None
            start = {path: _copied(value) for path, value in component.kept.values().items()}
        settings, calls, warm_calls = self.job.settings, eager.calls, component.kept.warm_calls
        effects, missing = component.kept.effects, list[str]()

        def expected(blueprints: Mapping[str, Blueprint]) -> Played:
            """Return the outputs of the eager module in the form of the reference, that of every variant."""
            with self.phase("reference"):
                other = replace(blueprints["module"].component(settings.seed), warm_calls=warm_calls)
                other.start()
                other.kept.effects = effects
                missing.extend(other.kept.load(start) if policy != "none" else ())
                try:
                    return played(other, other.call, calls, reset=False, most_s=3 * SECONDS)
                except Exception as error:
                    other.raise_explained(error)

        policy = component.policy
        if has_room_beside(component.module, component.device):
            computed = compute_reference(self._load, expected)
        else:
            del component
            free_memory()
            computed = compute_reference(self._load, expected)
            with torch.inference_mode(False):
                component = build()
            eager = learn(component)
            component.reset()
        component.place.calls = min(eager.calls, computed.value.calls)
        repeat = played(component, component.call, component.place.calls, seed=1)
        reference = Reference(computed.value, eager, computed.form, repeat, effects)
        if computed.reason is not None:
            self.note(f"parity against {reference.name(component.dtype)}: {computed.reason}")
        if missing:
            self.note(f"the reference has no state {', '.join(missing[:3])}, and began with its own")
        return component, reference

    def _describe_state(self, component: Component, reference: Reference | None) -> None:
        """Record what calls change, and note what disturbs a measurement."""
        kept, wanted = component.kept, self.job.component.state_options.calls
        section = State(
            policy=kept.policy,
            tensors=len(kept.changed or ()),
            bytes=kept.bytes,
            on_host=kept.on_host,
            warm_calls=kept.warm_calls,
            calls=component.place.calls,
            restore_us=kept.restore_us(),
            effects=tuple(kept.effects.lines()),
            not_restored=kept.not_restored,
        )
        self.add(state=section)
        if component.place.calls < wanted:
            self.note(
                f"{component.place.calls} calls in a row are compared and timed, not {wanted}: a later one fails (a "
                "cache that is full?), or they are slow or return much; component.NAME.state.calls sets the number"
            )
        for path, why in kept.not_restored.items():
            self.note(f"{path} is not restored before each measurement: {why}")
        nondeterminism = None if reference is None else reference.nondeterminism(component.dtype)
        if nondeterminism is not None:
            self.note(nondeterminism)

    def _load(self) -> dict[str, Blueprint]:
        """Build the module, for the reference and again for the run: it may keep tensors of its first call."""
        with self.phase("load"):
            started = perf_counter()
            blueprint = build(self.job.component, self.job.settings)
            synchronize(blueprint.device)
            if self._checksums is None:
                load = Load(seconds=perf_counter() - started)
                self.add(weights=blueprint.weights, weights_hint=blueprint.hint, load=load)
                self._checksums = blueprint.checksums()
                for note in blueprint.notes:
                    self.note(note)
            blueprint.check_same(self._checksums)
            return {"module": blueprint}

    def _check_after_timing(self, metrics: Mapping[str, Metric], subject: Subject) -> None:
        """Check parity again after the timing, to detect a stale buffer or an overwritten graph pool."""
        for metric in metrics.values():
            again = measured_by(metric, subject) if metric.needs_reference and not self.problems else None
            if again is not None and again.problem is not None:
                status, reason = again.problem
                self.problems.append((status, f"correct before the timing, wrong after it: {reason}"))
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
            self.problems.append(("failed", f"beside other prepared shapes, unlike eager's: {fault}"))
            return
        worst, limit = max(each.error for each in others), max(OTHER_SHAPES_FLOOR, OTHER_SHAPES_FACTOR * timed.error)
        self.metrics, _ = merge_metric(self.metrics, {"other_shapes": OtherShapes(rel_l2_to_eager=worst, limit=limit)})
        self.add(metrics=self.metrics)
        if worst > limit:
            reason = f"relative L2 to eager of another prepared shape is {worst:.2g}, limit {limit:.2g}"
            self.problems.append(("failed", reason))


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _outputs(component: Component, calls: Iterable[Callable[[], Any]]) -> list[Outputs]:
    """Return the output of each call, from the initial state."""
    outputs = []
    for call in calls:
        component.reset()
        outputs.append(to_host(output=call()))
    return outputs
