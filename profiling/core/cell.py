"""One cell from its first byte to its record: load, reference, prepare, measure, trace.

Runs in the cell's own process (or in the caller's, with isolation=none). What has been measured when something breaks
stays in the record.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from profiling.core.building import Blueprint, build
from profiling.core.components import Component
from profiling.core.config import instantiate
from profiling.core.job import Job
from profiling.core.records import Record, Status
from profiling.core.reference import CHECK_SEED, Outputs, Reference, first_call, outputs_of, strict_float32, to_host
from profiling.errors import InputError, MissingExtraError
from profiling.metrics.metric import Metric, Subject
from profiling.metrics.parity import relative_l2
from profiling.tracing.counters import snapshot
from profiling.tracing.profiler import synchronize, trace_step
from profiling.tracing.spans import span
from profiling.variants.variant import Step, Variant

Emit = Callable[[Mapping[str, Any]], None]

_SECTIONS = {item.name for item in fields(Record)}


@dataclass
class Cell(ABC):
    """A cell in progress. What it finds goes out through `emit` at once, so that a crash later costs nothing."""

    job: Job
    emit: Emit
    metric_sections: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[Status, str]] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run the cell and emit how it ended, whatever happens short of the process dying."""
        try:
            with span(self.job.component.name), span(self.job.variant):
                self.measure()
        except MissingExtraError as error:
            self._end("skipped", str(error))
            return
        except Exception as error:
            traceback.print_exc()
            self._end("failed", reason_of(error), bad_input=isinstance(error, InputError))
            return
        # A wrong result is worse news than a disturbed measurement, so it is the one that is told.
        status, reason = min(self.problems, key=lambda problem: problem[0]) if self.problems else ("ok", None)
        self._end(status, reason)

    def add(self, **sections: Any) -> None:
        """Send sections of the record.

        Raises:
            ValueError: one of them holds something that JSON cannot, NaN or a tensor for example.

        """
        json.dumps(sections, allow_nan=False)
        self.emit({"event": "sections", "sections": sections})

    def _end(self, status: Status, reason: str | None, *, bad_input: bool = False) -> None:
        self.emit({"event": "end", "status": status, "reason": reason, "bad_input": bad_input})

    @abstractmethod
    def measure(self) -> None:
        """Do what the target is there for, adding sections as they are found; raising ends the cell as failed."""

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Tell the phase to whoever watches, and name it in NVTX and profiler ranges."""
        self.emit({"event": "phase", "phase": phase})
        with span(phase):
            yield

    def prepare(self, variant: Variant, component: Component) -> Step:
        """Prepare the step and say what that took."""
        with self.phase("prepare"):
            before, started = snapshot(), time.perf_counter()
            step = variant(component, Path(self.job.run) / "kernels" / self.job.name)
            synchronize(component.device)
            seconds = time.perf_counter() - started
            step.run()
            synchronize(component.device)
            first_output = time.perf_counter() - started
            compiled = snapshot().since(before)
            self.add(prepare={"seconds": seconds, "first_call_s": first_output, **asdict(compiled)})
            return step

    def take(self, name: str, metric: Metric, subject: Subject) -> None:
        """Let a metric measure, and keep what it says for and against."""
        with self.phase(name):
            measured = metric.measure(subject)
        if measured.problem is not None:
            self.problems.append(measured.problem)
        sections = {key: value for key, value in measured.sections.items() if key in _SECTIONS}
        self.metric_sections |= {key: value for key, value in measured.sections.items() if key not in _SECTIONS}
        try:
            self.add(**sections, metrics=self.metric_sections)
        except (TypeError, ValueError) as error:
            raise ValueError(f"metric {name} returned what a record cannot hold: {error}") from error

    def explain(self, step: Step) -> None:
        """Ask the variant for what only it knows."""
        with self.phase("explain"):
            self._unless_it_fails("the variant could not explain itself", lambda: self.add(**step.explain()))

    def trace(self, component: Component, step: Step) -> None:
        """Profile the step into the run folder."""
        self.emit({"event": "phase", "phase": "trace"})  # its range is opened by the tracing itself

        def profile() -> None:
            result = trace_step(
                step.run,
                component=component.name,
                variant=self.job.variant,
                folder=Path(self.job.run) / "traces",
                device=component.device,
                stacks=self.job.settings.stacks,
            )
            self.add(trace=asdict(result))

        self._unless_it_fails("the profiler trace failed", profile)

    def _unless_it_fails(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the numbers stand: losing what explains them must not lose them
            traceback.print_exc()
            self.noted.append(f"{what}: {reason_of(error)}")
            self.add(notes=tuple(self.noted))


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
                self.add(**{key: value for key, value in again.sections.items() if key in _SECTIONS})

    def _others_right(self, component: Component, step: Step) -> None:
        """Hold the steps of other shapes, prepared beside this one, against eager: one may have spoilt another."""
        if len(step.others) < len(component.also):
            self.noted.append("the variant gives no steps for the other shapes, so those were not checked")
            self.add(notes=tuple(self.noted))
            return
        limit = max(OTHERS_FLOOR, OTHERS_FACTOR * _apart(step.run, component.call))
        pairs = zip(step.others, component.also, strict=True)
        apart = [_apart(run, partial(component.module, **given)) for run, given in pairs]
        if apart and all(map(math.isfinite, apart)):
            self.metric_sections["other_shapes"] = {"rel_l2_to_eager": max(apart), "limit": limit}
            self.add(metrics=self.metric_sections)
        if not all(error <= limit for error in apart):
            reason = f"another shape, prepared beside this one, is {max(apart):.2g} from eager, allowed {limit:.2g}"
            self.problems.append(("failed", reason))


#: A shape held beside the timed one may be this many times as far from eager as that one is, or as far as the floor.
OTHERS_FACTOR, OTHERS_FLOOR = 3.0, 1e-3


def _apart(run: Callable[[], Any], eager: Callable[[], Any]) -> float:
    """Return the relative L2 distance of what `run` gives from what eager gives."""
    return relative_l2(to_host(run()), to_host(eager()))


def metrics_of(job: Job) -> dict[str, Metric]:
    """Return the job's metrics by name, parity before time: those that need the reference come first."""
    made: dict[str, Metric] = {name: instantiate(node, f"metric.{name}") for name, node in job.metrics.items()}
    return dict(sorted(made.items(), key=lambda item: not item[1].needs_reference))


def reason_of(error: Exception) -> str:
    """Return one line that says what happened; an InputError says it itself."""
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    return lines[0] if isinstance(error, InputError) else f"{type(error).__name__}: {lines[0]}"
