"""The base class of all targets' cells: phases, preparation of a variant, metrics, explanations, final status.

A cell runs in its own process, or with isolation=none in the caller's. Each section of the record is sent as soon as it
is measured, so that a later crash does not lose it.
"""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.errors import InputError, MissingExtraError
from profiling.metrics.metric import Metric, Subject
from profiling.results.record import Metrics, Prepare, Status, encode_sections, merge_metric
from profiling.roofline.section import call_roofline
from profiling.run.environment import ceilings_in
from profiling.run.job import Job
from profiling.run.trace_passes import TracePasses
from profiling.trace.counters import snapshot
from profiling.trace.profiler import synchronize, trace_step
from profiling.trace.spans import span
from profiling.variants.variant import Step, Variant

Emit = Callable[[Mapping[str, Any]], None]


@dataclass
class Cell(ABC):
    """A cell in progress: one component under one variant."""

    job: Job
    emit: Emit  # sends an event to the process that runs the cells
    metrics: Metrics = field(default_factory=Metrics)  # measured so far
    problems: list[tuple[Status, str]] = field(default_factory=list)  # (status, reason) that metrics reported
    notes: list[str] = field(default_factory=list)
    compiled: bool = False  # whether a compiler replaced operators of the module

    @classmethod
    def computes_in(cls, dtype: str, **_procedure: Any) -> str:
        """Return the dtype of matrix products in a run of this `dtype`, in which the ceilings are measured."""
        return dtype

    def run(self) -> None:
        """Run the cell and send its status, also where it raises an exception."""
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
        # "failed" (a wrong result) is reported before "invalid" (a disturbed measurement).
        status, reason = min(self.problems, key=lambda problem: problem[0]) if self.problems else ("ok", None)
        self._end(status, reason)

    def _end(self, status: Status, reason: str | None, *, bad_input: bool = False) -> None:
        self.emit({"event": "end", "status": status, "reason": reason, "bad_input": bad_input})

    @abstractmethod
    def measure(self) -> None:
        """Do the target's work and send each section once it is measured; an exception ends the cell as failed."""

    def add(self, **sections: Any) -> None:
        """Send sections of the record: structs of `profiling.results.record`, or mappings of the same shape.

        Raises:
            ValueError: a section does not fit its type, or holds a number that is not finite.

        """
        self.emit({"event": "sections", "sections": encode_sections(**sections)})

    def note(self, line: str) -> None:
        """Add a remark of one line to the record."""
        self.notes.append(line)
        self.add(notes=tuple(self.notes))

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Show the phase in the progress display, and run the block in an NVTX and profiler range of that name."""
        self.emit({"event": "phase", "phase": phase})
        with span(phase):
            yield

    @contextmanager
    def best_effort(self, action: str) -> Iterator[None]:
        """Run a block that explains the numbers; if it raises, add the note "`action` failed: …" to the record."""
        try:
            yield
        except Exception as error:  # measured times are valid without an explanation
            traceback.print_exc()
            self.note(f"{action} failed: {reason_of(error)}")

    def prepare(self, variant: Variant, component: Component) -> Step:
        """Prepare the step (compile, capture, …) and record the duration, between two moments of an idle device."""
        with self.phase("prepare"):
            before, started = snapshot(), time.perf_counter()
            step = variant(component, Path(self.job.run) / "kernels" / self.job.name)
            synchronize(component.device)
            seconds = time.perf_counter() - started
            step.run()
            synchronize(component.device)
            first_call_s = time.perf_counter() - started
            counters = snapshot().since(before)
            self.add(prepare=Prepare(seconds=seconds, first_call_s=first_call_s, **asdict(counters)))
            self.compiled = counters.graphs > 0
            return step

    def run_metric(self, name: str, metric: Metric, subject: Subject) -> None:
        """Run a metric, send its results and keep the problem that it reports, if any.

        Raises:
            ValueError: the results do not fit into a record.

        """
        with self.phase(name):
            measured = metric.measure(subject)
        if measured.problem is not None:
            self.problems.append(measured.problem)
        try:
            self.metrics, sections = merge_metric(self.metrics, measured.sections)
            self.add(**sections, metrics=self.metrics)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the results of metric {name} do not fit into a record: {error}") from error

    def explain(self, step: Step) -> None:
        """Send the sections that `explain()` of the variant returns."""
        with self.phase("explain"), self.best_effort("explain() of the variant"):
            self.add(**step.explain())

    def explain_roofline(self, component: Component, step: Step) -> None:
        """Send the roofline section: a call's roofline time and bound. Send nothing in a run without ceilings."""
        if self.job.settings.ceilings != "auto":
            return
        with self.phase("roofline"), self.best_effort("the roofline"):
            ceilings = ceilings_in(Path(self.job.run))
            if ceilings is not None:
                wall = self.metrics.wall_ms
                wall_ms = None if wall is None else wall.p50
                self.add(roofline=call_roofline(component, step.run, ceilings, wall_ms, fused=self.compiled))

    def trace(self, component: Component, step: Step) -> None:
        """Write a profiler trace of the step into the run folder, and send its analysis."""
        self.emit({"event": "phase", "phase": "trace"})  # trace_step opens the range itself
        with self.best_effort("the profiler trace"):
            started = time.perf_counter()
            files = trace_step(
                step.run,
                component=component.name,
                variant=self.job.variant,
                folder=Path(self.job.run) / "traces",
                device=component.device,
                stacks=self.job.settings.stacks,
            )
            self.add(trace=files)
            with self.best_effort("reading the profiler trace"):
                passes = TracePasses(component, self.job.variant, step, Path.cwd(), self.best_effort)
                analysis = passes.analyze(Path(self.job.run) / files.trace)
                if analysis is not None:
                    self.add(trace_analysis=analysis)
            self.add(trace=replace(files, seconds=time.perf_counter() - started))


def metrics_of(job: Job) -> dict[str, Metric]:
    """Return the job's metrics by name, in running order: those that need the reference (parity), then the others."""
    metrics: dict[str, Metric] = {name: instantiate(node, f"metric.{name}") for name, node in job.metrics.items()}
    return dict(sorted(metrics.items(), key=lambda item: not item[1].needs_reference))


def reason_of(error: Exception) -> str:
    """Return one line that describes an exception; for an InputError its message, unchanged."""
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    return lines[0] if isinstance(error, InputError) else f"{type(error).__name__}: {lines[0]}"
