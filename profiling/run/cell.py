"""What every cell does, whatever its target: phases, preparing a variant, metrics, and how it ends.

Runs in the cell's own process (or in the caller's, with isolation=none). What has been measured when something breaks
stays in the record.
"""

from __future__ import annotations

import json
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.errors import InputError, MissingExtraError
from profiling.metrics.metric import Metric, Subject
from profiling.results.records import Record, Status
from profiling.roofline.section import limits_of
from profiling.run.environment import ceilings_in
from profiling.run.job import Job
from profiling.run.trace_passes import Look
from profiling.trace.counters import snapshot
from profiling.trace.profiler import synchronize, trace_step
from profiling.trace.spans import span
from profiling.variants.variant import Step, Variant

Emit = Callable[[Mapping[str, Any]], None]

#: The record's own sections; what else a metric returns goes under `metrics`.
SECTIONS = {item.name for item in fields(Record)}


@dataclass
class Cell(ABC):
    """A cell in progress. What it finds goes out through `emit` at once, so that a crash later costs nothing."""

    job: Job
    emit: Emit
    metric_sections: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[Status, str]] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    fused: bool = False  # whether a compiler made the step's operators into others

    @classmethod
    def computes_in(cls, dtype: str, **_procedure: Any) -> str:
        """Return the dtype of the products of a cell whose run is in `dtype`: what the ceilings are measured in."""
        return dtype

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
            self.fused = compiled.graphs > 0
            return step

    def take(self, name: str, metric: Metric, subject: Subject) -> None:
        """Let a metric measure, and keep what it says for and against."""
        with self.phase(name):
            measured = metric.measure(subject)
        if measured.problem is not None:
            self.problems.append(measured.problem)
        sections = {key: value for key, value in measured.sections.items() if key in SECTIONS}
        self.metric_sections |= {key: value for key, value in measured.sections.items() if key not in SECTIONS}
        try:
            self.add(**sections, metrics=self.metric_sections)
        except (TypeError, ValueError) as error:
            raise ValueError(f"metric {name} returned what a record cannot hold: {error}") from error

    def explain(self, step: Step) -> None:
        """Ask the variant for what only it knows."""
        with self.phase("explain"):
            self.unless_it_fails("the variant could not explain itself", lambda: self.add(**step.explain()))

    def explain_limits(self, component: Component, step: Step) -> None:
        """Say what a call must do at least, and what bounds it; nothing in a run without ceilings."""
        if self.job.settings.ceilings != "auto":
            return

        def explain() -> None:
            ceilings = ceilings_in(Path(self.job.run))
            if ceilings is not None:
                wall = self.metric_sections.get("wall_ms", {}).get("p50")
                self.add(limits=limits_of(component, step.run, ceilings, wall, fused=self.fused))

        with self.phase("limits"):
            self.unless_it_fails("its limits could not be told", explain)

    def trace(self, component: Component, step: Step) -> None:
        """Profile the step into the run folder, and say what the profile shows of one call."""
        self.emit({"event": "phase", "phase": "trace"})  # its range is opened by the tracing itself

        def profile() -> None:
            started = time.perf_counter()
            result = trace_step(
                step.run,
                component=component.name,
                variant=self.job.variant,
                folder=Path(self.job.run) / "traces",
                device=component.device,
                stacks=self.job.settings.stacks,
            )
            self.add(trace=asdict(result))
            file = Path(self.job.run) / result.trace
            self.unless_it_fails("its trace could not be read", lambda: self._look_inside(component, step, file))
            self.add(trace={**asdict(result), "seconds": time.perf_counter() - started})

        self.unless_it_fails("the profiler trace failed", profile)

    def _look_inside(self, component: Component, step: Step, trace: Path) -> None:
        found = Look(component, self.job.variant, step, Path.cwd(), self.unless_it_fails).section(trace)
        if found is not None:
            self.add(inside=found)

    def unless_it_fails(self, what: str, work: Callable[[], None]) -> None:
        """Do what explains the numbers; failing costs a note and not the numbers."""
        try:
            work()
        except Exception as error:  # the numbers stand: losing what explains them must not lose them
            traceback.print_exc()
            self.noted.append(f"{what}: {reason_of(error)}")
            self.add(notes=tuple(self.noted))


def metrics_of(job: Job) -> dict[str, Metric]:
    """Return the job's metrics by name, parity before time: those that need the reference come first."""
    made: dict[str, Metric] = {name: instantiate(node, f"metric.{name}") for name, node in job.metrics.items()}
    return dict(sorted(made.items(), key=lambda item: not item[1].needs_reference))


def reason_of(error: Exception) -> str:
    """Return one line that says what happened; an InputError says it itself."""
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    return lines[0] if isinstance(error, InputError) else f"{type(error).__name__}: {lines[0]}"
