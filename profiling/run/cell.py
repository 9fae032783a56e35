"""The base class of all targets' cells: phases, preparation of a variant, metrics, explanations, final status.

A cell runs in its own process, or with isolation=none in the caller's. Each section of the record is sent as soon as it
is measured, so that a later crash does not lose it.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, ClassVar
from zlib import crc32

import torch
from msgspec.structs import replace

from profiling.components.build import Blueprint, build
from profiling.components.casting import parameter_dtypes
from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.components.reference import eager_reference
from profiling.components.sides import Sides
from profiling.components.snapshot import Structure
from profiling.components.spec import ComponentSpec
from profiling.components.trees import dotted, form_of, keyed_leaves
from profiling.errors import InputError, SkippedError, print_traceback, printable, reason_of
from profiling.machine.memory import used_and_free
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.metrics.sampling import Ready, TakeTurns, Turn, WindowSamples
from profiling.results.check import Check
from profiling.results.environment import Ceilings, read_environment
from profiling.results.explanations import MemorySnapshot, RecipeStep, TraceAnalysis
from profiling.results.measured import Metrics, Prepare, Start
from profiling.results.record import FAILED, Status, encode_sections, merge_metric
from profiling.roofline.section import call_roofline
from profiling.run.check import check_call
from profiling.run.events import Emit, End, Phase, Sections
from profiling.run.job import Job
from profiling.run.session import PREPARE
from profiling.run.trace_passes import TracePasses
from profiling.trace.counters import CompileCounters, compile_seconds, seconds_since, snapshot
from profiling.trace.events import Timeline
from profiling.trace.memory_history import memory_history
from profiling.trace.profiler import synchronize, trace_step
from profiling.trace.spans import span
from profiling.variants.recipe import Recipe, check_changes
from profiling.variants.variant import Step, Variant

#: Calls in a memory snapshot, and before hardware counters are read.
_CALLS_AGAIN = 3
#: Most tensors and values of one input that are listed one by one (a cache has many), and characters of a value.
_LISTED, _VALUE = 4, 40


@dataclass
class Cell(ABC):
    """A cell in progress: one component under one variant."""

    job: Job
    emit: Emit  # sends an event to the process that runs the cells
    metrics: Metrics = field(default_factory=Metrics)  # measured so far
    problems: list[tuple[Status, str]] = field(default_factory=list)  # (status, reason) that metrics reported
    notes: list[str] = field(default_factory=list)
    take_turns: TakeTurns | None = None  # waits for windows in which no other cell runs; None: the cell is alone
    in_inference_mode: ClassVar[bool] = True  # whether calls run under torch.inference_mode
    compiled: set[str] = field(default_factory=set)  # components of which a compiler replaced operators
    _folder: str = field(default_factory=os.getcwd, init=False)  # in which each phase begins
    _checksums: dict[str, list[float]] = field(default_factory=dict, init=False)  # of the first builds, by name

    @classmethod
    def computes_in(cls, dtype: str, **_procedure: Any) -> str:
        """Return the dtype of matrix products in a run of this `dtype`, in which the ceilings are measured."""
        return dtype

    def run(self) -> End:
        """Run the cell and return its status; an exception of the code of the cell is not caught."""
        with span(self.job.row), span(self.job.variant):
            if self.job.settings.check:
                self.add(check=Check())  # also of a network that cannot be built
                with torch.inference_mode(self.in_inference_mode):
                    self.check(self.components())
            else:
                self._measure()
        # "failed" (a wrong result) is reported before "invalid" (a disturbed measurement).
        return End(*min(self.problems, key=lambda problem: problem[0])) if self.problems else End("ok")

    def _measure(self) -> None:
        """Measure; then record the memory snapshot, if asked for, also of a cell that failed for lack of memory."""
        wanted = self.job.settings.memory_snapshot
        try:
            self.measure()
        except Exception as error:
            if wanted and not isinstance(error, InputError):
                traceback.clear_frames(error.__traceback__)  # frees what the frames hold
                self.record_memory()
            raise
        if wanted:
            self.record_memory()

    @abstractmethod
    def measure(self) -> None:
        """Do the target's work and send each section once it is measured; an exception ends the cell as failed."""

    @abstractmethod
    def components(self) -> Mapping[str, Component]:
        """Build the networks that the cell calls, by name, in the run's dtype and with their inputs.

        Raises:
            InputError: a component cannot be built, or the target runs none.

        """

    def check(self, components: Mapping[str, Component]) -> None:
        """Call each component and send what was seen: the section `check`. Nothing is timed.

        Raises:
            InputError: a component fails on its inputs.

        """
        started, check = perf_counter(), Check()
        weights = dict.fromkeys(component.weights for component in components.values())
        self.add(parameters=sum(each.parameters for each in components.values()), weights=", ".join(weights))
        for name, component in components.items():
            with self.phase("eager"):
                reference = eager_reference(component)
            with self.phase("check"):
                # Training steps may draw other numbers in each.
                nondeterminism = reference.nondeterminism(component.dtype) if self.in_inference_mode else None
                calls = {**check.calls, name: check_call(component, nondeterminism)}
            check = replace(check, calls=calls, seconds=perf_counter() - started)
            self.add(check=check)

    def variant(self) -> Variant:
        """Return the variant of the cell; its compiler is imported, and the compiler's worker processes are started.

        Raises:
            InputError: it refuses its options.

        """
        for job in (self.job, *self.job.parts):
            for each in job.imports:  # takes seconds, which must not become part of preparing
                import_module(each.partition(":")[0])
        variant: Variant = instantiate(self.job.variant_options, f"variant.{self.job.variant}")
        variant.start_workers(torch.device(self.job.settings.device))
        return variant

    def wait(self, *, prepared: bool = True) -> None:
        """Wait until the run lets this cell go on; not yet `prepared`: until no other cell compiles the same code."""
        if self.take_turns is not None:
            used, free = used_and_free(torch.device(self.job.settings.device))
            self.take_turns(Ready(used=used, free=free, takes_windows=False, prepared=prepared), _no_window)

    def add(self, **sections: Any) -> None:
        """Send sections of the record: structs of `profiling.results.record`, or mappings of the same shape.

        Raises:
            ValueError: a section does not fit its type, or holds a number that is not finite.

        """
        self.emit(Sections(encode_sections(**sections)))

    def note(self, line: str) -> None:
        """Add a remark of one line to the record."""
        self.notes.append(line)
        self.add(notes=tuple(self.notes))

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Show the phase in the progress display, and run the block in an NVTX and profiler range of that name.

        The phase begins in the working directory in which the cell began: checkpoints may have relative paths.
        """
        self.emit(Phase(phase))
        os.chdir(self._folder)
        with span(phase):
            yield

    @contextmanager
    def best_effort(self, action: str) -> Iterator[None]:
        """Run a block that measures nothing; if it raises, add the note "`action` failed: …" to the record."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # measured times are valid without it, whatever it raises
            print_traceback(error)
            self.note(f"{action}{FAILED}{reason_of(error)}")

    def load(self, specs: Mapping[str, ComponentSpec]) -> dict[str, Blueprint]:
        """Build modules by name; the first time, record where their weights are from and what was noted.

        They are built for the reference and again for the run, since a module may keep tensors of its first call.

        Raises:
            InputError: one of them cannot be built, or was built with other weights than the first time.

        """
        settings = self.job.settings
        with self.phase("load"):
            blueprints = {name: build(spec, settings) for name, spec in specs.items()}
            if not self._checksums:
                self._describe(blueprints)
            for name, blueprint in blueprints.items():
                blueprint.check_same(self._checksums.setdefault(name, blueprint.checksums()))
            return blueprints

    def _describe(self, blueprints: Mapping[str, Blueprint]) -> None:
        weights = {name: blueprint.weights for name, blueprint in blueprints.items()}
        hints = {name: blueprint.hint for name, blueprint in blueprints.items() if blueprint.hint}
        several = len(blueprints) > 1
        source = ", ".join(f"{name}: {each}" for name, each in weights.items())
        self.add(weights=source if len(set(weights.values())) > 1 else next(iter(weights.values())))
        if several:
            self.add(weights_hints=hints)
        else:
            self.add(weights_hint=next(iter(hints.values()), None))
        for name, blueprint in blueprints.items():
            for note in blueprint.notes:
                self.note(f"{name}: {note}" if several else note)

    def describe(self, components: Mapping[str, Component], *, frames_per_call: int, cast: str | None = None) -> None:
        """Record the parameters of all components, and what a call of the cell makes."""
        dtypes: Counter[str] = Counter()
        for component in components.values():
            dtypes.update(parameter_dtypes(component.module))
        inputs = {name: inputs_text(component.inputs) for name, component in components.items()}
        self.add(
            parameters=sum(dtypes.values()),
            parameter_dtypes=dict(dtypes),
            frames_per_call=frames_per_call,
            inputs=next(iter(inputs.values())) if len(inputs) == 1 else "; ".join(map(": ".join, inputs.items())),
            cast=cast,
        )

    def note_state(self, sides: Sides) -> None:
        """Note what disturbs a comparison: state that is not put back, and components that differ from themselves."""
        for note in sides.notes:
            self.note(note)
        for name, component in sides.components.items():
            where = f"{name}: " if len(sides.components) > 1 else ""
            for path, why in component.kept.not_restored.items():
                self.note(f"{where}{path} is not restored before each measurement: {why}")
            reference = sides.references.get(name)
            nondeterminism = None if reference is None else reference.nondeterminism(component.dtype)
            if nondeterminism is not None:
                self.note(f"{where}{nondeterminism}")

    def prepare(
        self, variant: Variant, components: Mapping[str, Component], stack: ExitStack, *, stages: bool = False
    ) -> dict[str, Step]:
        """Prepare the step of each component (compile, capture, …), which is closed with `stack`.

        Durations are recorded from one moment of an idle device to another. `stages`: the components are those of a
        loop.

        Raises:
            SkippedError: the variant does not apply to a component; of a stage, the reason names it.

        """
        folder = Path(self.job.run) / "kernels" / self.job.name
        steps = dict[str, Step]()
        if self.job.compiles:
            self.wait(prepared=False)
        with self.phase("prepare"):
            before, compiling, started = snapshot(), compile_seconds(), perf_counter()
            for name, component in components.items():
                try:
                    with self._noting_compiles(name):
                        steps[name] = step = variant.prepare(component, folder)
                except SkippedError as error:
                    if not stages:
                        raise
                    raise type(error)(f"the stage {name}: {error}") from error
                stack.callback(self.close, step)
                synchronize(component.device)
                if any(each.kind == "compiler" or each.packages for each in step.recipe):
                    self.compiled.add(name)
            total = perf_counter() - started
            if isinstance(variant, Recipe):
                check_changes(step.recipe for step in steps.values())
            recipe = [each for step in steps.values() for each in step.recipe]
            phases = prepare_phases(compiling, recipe)
            for name, component in components.items():
                with self._noting_compiles(name):
                    steps[name].call()
                synchronize(component.device)
            warmed_up = warm_up(components, steps)
            counters = asdict(with_packages(snapshot().since(before), recipe))
        self.add(prepare=Prepare(seconds=total, phases=phases, **warmed_up, **counters))
        if recipe:
            named = ((name if stages else None, step.recipe) for name, step in steps.items())
            self.add(recipe=[replace(each, stage=name) for name, of_step in named for each in of_step])
        return steps

    @contextmanager
    def _noting_compiles(self, name: str) -> Iterator[None]:
        """Note that operators of a component were replaced if the block gives a graph to a compiler."""
        before = snapshot()
        yield
        if snapshot().since(before).graphs > 0:
            self.compiled.add(name)

    def close(self, step: Step) -> None:
        """Close the step; what that raises does not hide why the cell failed."""
        with self.best_effort("close() of the variant"):
            step.close()

    def run_metric(self, name: str, metric: Metric, subject: Subject) -> None:
        """Run a metric, send its results and keep the problem that it reports, if any.

        Raises:
            ValueError: the results do not fit into a record.

        """
        with self.phase(name):
            measured = measured_by(metric, subject)
        self.keep_measured(name, measured)

    def keep_measured(self, name: str, measured: Measured) -> None:
        """Send what a metric measured and keep the problem that it reports, if any.

        Raises:
            ValueError: the results do not fit into a record.

        """
        if measured.problem is not None:
            self.problems.append(measured.problem)
        try:
            self.metrics, sections = merge_metric(self.metrics, measured.sections)
            self.add(**sections, metrics=self.metrics)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the results of metric {name} do not fit into a record: {error}") from error

    def explain(self, component: Component, step: Step) -> Timeline | None:
        """Send sections of the variant and, if asked for, a trace file; return a trace of kernels, None on a CPU.

        Then wait until the other cells of the component have been traced: what follows may run beside theirs.
        """
        with self.phase("explain"), self.best_effort("explain() of the variant"):
            self.add(**step.explain())
        if self.job.settings.trace:
            self.trace(component, step)
        trace = None if self.ceilings() is None else self.passes(component, step).trace_kernels()
        if trace is not None and self.job.takes_windows:
            self.wait()
        return trace

    def explain_time(self, component: Component, step: Step, trace: Timeline | None) -> None:
        """Send the roofline of a call, in a run with ceilings."""
        if (ceilings := self.ceilings()) is None:
            return
        with self.phase("roofline"), self.best_effort("the roofline"):
            wall_ms = None if self.metrics.wall_ms is None else self.metrics.wall_ms.p50
            traced = self.passes(component, step).analyze_kernels(trace)
            called = {"fused": bool(self.compiled), "trace": trace, "traced": traced}
            self.add(roofline=call_roofline(component, step.repeat, ceilings, wall_ms, **called))

    def ceilings(self) -> Ceilings | None:
        """Return the ceilings that this run has measured; None in a run without."""
        return read_environment(Path(self.job.run)).ceilings

    def passes(self, component: Component, step: Step) -> TracePasses:
        """Return the passes of the profiler over a prepared step."""
        return TracePasses(component, self.job.variant, step, Path.cwd(), self.best_effort, self.ceilings())

    def trace(self, component: Component, step: Step) -> None:
        """Write a profiler trace of the step into the run folder, and send its analysis."""
        passes = self.passes(component, step)
        self.trace_call(component.reset, step.repeat, component.device, passes.analyze)

    def trace_call(
        self,
        begin: Callable[[], object],
        call: Callable[[], object],
        device: torch.device,
        analyze: Callable[[Path], TraceAnalysis | None],
        *,
        calls: tuple[int, int] = (2, 5),
    ) -> None:
        """Write a profiler trace of `call`, after `begin`, and send what `analyze` finds in its file.

        `calls` are those of the profiler's warm-up and those that are traced.
        """
        self.emit(Phase("trace"))  # trace_step opens the range itself
        with self.best_effort("the profiler trace"):
            started = perf_counter()
            begin()
            files = trace_step(
                call,
                component=self.job.row,
                variant=self.job.variant,
                folder=Path(self.job.run) / "traces",
                warmup=calls[0],
                iterations=calls[1],
                device=device,
                stacks=self.job.settings.stacks,
            )
            self.add(trace=files)
            with self.best_effort("reading the profiler trace"):
                analysis = analyze(Path(self.job.run) / files.trace)
                if analysis is not None:
                    self.add(trace_analysis=analysis)
            self.add(trace=replace(files, seconds=perf_counter() - started))

    def record_memory(self) -> None:
        """Write torch's memory snapshot of loading, preparing and a few calls into the run folder.

        The networks are built and prepared once more, after everything was measured, so that recording slows down
        nothing that is timed. Only the section `memory_snapshot`, or a note, is sent.
        """
        self.emit(Phase("memory snapshot"))
        if torch.device(self.job.settings.device).type != "cuda":
            self.note("memory_snapshot=true: none was written, for torch records the memory of CUDA devices only")
            return
        name, started, failure = f"memory/{self.job.name}.pickle", perf_counter(), None
        try:
            with memory_history(Path(self.job.run) / name):
                self._call_again()
        except Exception as error:
            print_traceback(error)
            failure = reason_of(error)
        if (Path(self.job.run) / name).is_file():
            seconds = perf_counter() - started
            self.add(memory_snapshot=MemorySnapshot(file=name, seconds=seconds, ended_by=failure))
        elif failure is not None:
            self.note(f"the memory snapshot failed: {failure}")

    def call_for_counters(self) -> None:
        """Prepare once more, and make the last calls in a range of the CUDA profiler, in which ncu measures kernels."""
        cuda = torch.device(self.job.settings.device).type == "cuda"
        self._call_again(torch.cuda.profiler.profile if cuda else contextlib.nullcontext)

    def start(self, began: float, artifacts: bytes | None = None) -> Start:
        """Load, prepare and call everything once, as an application does, and return the seconds by phase.

        `began` is the start of the process on the clock of `perf_counter`; `artifacts` are those of torch's compiler.
        """
        variant, device = self.variant(), torch.device(self.job.settings.device)
        ends = {"import": perf_counter()}  # of the phases
        if artifacts is not None:
            torch.compiler.load_cache_artifacts(artifacts)
            ends["artifacts"] = perf_counter()
        with torch.inference_mode(self.in_inference_mode), ExitStack() as stack:
            components = self.components()
            synchronize(device)
            ends["load"] = perf_counter()
            before, compiling = snapshot(), compile_seconds()
            self.emit(Phase(PREPARE))
            steps = self._prepared_again(variant, components, stack)
            synchronize(device)
            ends[PREPARE] = perf_counter()
            self.emit(Phase("call"))
            recipe = [each for step in steps for each in step.recipe]
            preparing = prepare_phases(compiling, recipe)
            for step in steps:
                step.run()
            synchronize(device)
            ends["call"] = perf_counter()
            counters = with_packages(snapshot().since(before), recipe)
        seconds = (end - begin for begin, end in pairwise((began, *ends.values())))
        phases = dict(zip(ends, seconds, strict=True)) | preparing
        del phases[PREPARE]  # which `preparing` divides
        return Start(
            seconds=ends["call"] - began, phases=phases, graphs=counters.graphs, cache_hits=counters.cache_hits
        )

    def _call_again(self, last: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext) -> None:
        """Build and prepare everything once more and call each step a few times, the last time inside `last()`."""
        variant = self.variant()
        with torch.inference_mode(self.in_inference_mode), ExitStack() as stack:
            components = self.components()
            steps = self._prepared_again(variant, components, stack)
            for call in range(_CALLS_AGAIN):
                with last() if call == _CALLS_AGAIN - 1 else contextlib.nullcontext():
                    for step in steps:
                        step.run()
                    for component in components.values():
                        synchronize(component.device)

    def _prepared_again(self, variant: Variant, components: Mapping[str, Component], stack: ExitStack) -> list[Step]:
        """Prepare a step of each component, which no record mentions; `stack` closes it and removes its files."""
        folder, steps = Path(stack.enter_context(TemporaryDirectory())), list[Step]()
        for component in components.values():
            steps.append(variant.prepare(component, folder))
            stack.callback(self.close, steps[-1])
        return steps


def _no_window(turn: Turn) -> WindowSamples:
    raise AssertionError("it takes no windows")


def inputs_text(inputs: Mapping[str, Any]) -> str:
    """Return the shapes and plain values of inputs in one line; runs with other ones do other work. No dtypes.

    An object (a cache) is described by the shapes of its tensors, and an input with many entries by a checksum of them.
    """
    texts = []
    for name in sorted(inputs):
        sizes = []
        for keys, leaf in keyed_leaves({name: inputs[name]}):
            within = Structure.of({dotted(keys): leaf}).tensors.values()
            sizes += [f"{path} {_size(each)}" for path, each in within or [(dotted(keys), leaf)]]
        if len(sizes) > _LISTED:
            sizes = [f"{name} with {len(sizes)} tensors and values (checksum {crc32(', '.join(sizes).encode()):08x})"]
        texts += sizes
    return printable(", ".join(texts))


def _size(leaf: Any) -> str:
    shape = "×".join(map(str, leaf.shape)) or "scalar" if isinstance(leaf, torch.Tensor) else form_of(leaf)
    return printable(shape, _VALUE)


def prepare_phases(before: Mapping[str, float], recipe: Sequence[RecipeStep]) -> dict[str, float]:
    """Return the seconds of each phase of preparing; `before` is what `compile_seconds` returned before it."""
    phases = seconds_since(before)
    for kind, phase in (("transform", "transforms"), ("capture", "capture")):
        spent = sum(step.seconds for step in recipe if step.kind == kind)
        if spent:
            phases[phase] = phases.get(phase, 0.0) + spent
    packages = [each for step in recipe for each in step.packages or ()]
    if packages:
        # What torch's compiler counts of an export and of a package has a phase of its own.
        exporting = sum(each.export_s for each in packages) - phases.get("dynamo", 0.0)
        packaging = sum(each.compile_s for each in packages) - phases.get("inductor", 0.0) - phases.get("autotune", 0.0)
        loading = sum(each.load_s for each in packages)
        phases |= {"export": max(0.0, exporting), "package": max(0.0, packaging), "load package": loading}
    return phases


def with_packages(counters: CompileCounters, recipe: Sequence[RecipeStep]) -> CompileCounters:
    """Add the packages of a recipe: each counts as a graph, one that an earlier cell made also as a cache hit."""
    packages = [each for step in recipe for each in step.packages or ()]
    hits = counters.cache_hits + sum(each.cached for each in packages)
    return CompileCounters(**{**asdict(counters), "graphs": counters.graphs + len(packages), "cache_hits": hits})


def warm_up(components: Mapping[str, Component], steps: Mapping[str, Step]) -> dict[str, Any]:
    """Run the `warmup_inputs` of components, also through the prepared steps where they have other shapes.

    Return their number and seconds, as fields of `Prepare`; nothing where there are none.
    """
    number = sum(len(component.warmup_inputs) for component in components.values())
    if not number:
        return {}
    started = perf_counter()
    for name, component in components.items():
        for run in steps[name].extra_steps:
            run()
        component.reset()
        synchronize(component.device)
    return {"warmup_inputs": number, "warmup_inputs_s": perf_counter() - started}


def metrics_of(job: Job) -> dict[str, Metric]:
    """Return the job's metrics by name, in running order: first those that need the reference (parity).

    Then what waits for its turns, before which other cells may be prepared: nothing else is measured meanwhile.
    """
    metrics: dict[str, Metric] = {name: instantiate(node, f"metric.{name}") for name, node in job.metrics.items()}
    return dict(sorted(metrics.items(), key=lambda item: (not item[1].needs_reference, not item[1].takes_turns)))


def observe(metrics: Mapping[str, Metric], device: torch.device, phase: str) -> None:
    """Let each metric observe that the cell has reached `phase`."""
    for metric in metrics.values():
        metric.on_phase(phase, device)


def measured_by(metric: Metric, subject: Subject) -> Measured:
    """Return what the metric measured, from the initial state.

    Raises:
        TypeError: it returned something else than a `Measured`.

    """
    subject.component.reset()
    measured = metric.measure(subject)
    if not isinstance(measured, Measured):
        kind = type(measured).__name__
        raise TypeError(f"measure() of {type(metric).__name__} returned a {kind}. Return a Measured.")
    return measured
