"""The cell of `realtime`: load the networks, prepare and check them, play the frames, and explain their times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from profiling.components.build import Blueprint, build
from profiling.components.component import Component
from profiling.components.outputs import OutputLog, difference
from profiling.components.sides import Sides, Start, play_sides
from profiling.errors import InputError
from profiling.machine.energy import EnergyCounter, NoEnergy, idle_power
from profiling.machine.gc_policy import gc_policy
from profiling.metrics.drift import Drift
from profiling.metrics.metric import Measured, Subject
from profiling.metrics.monitor import FrameMonitor
from profiling.metrics.parity import Parity as ParityMetric
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import PIPELINE
from profiling.realtime.mix import check_variant, stage_variant
from profiling.realtime.pipeline import StagedPipeline
from profiling.realtime.plan import Plan
from profiling.realtime.play import Clock, FrameLoop, play_sessions, series_names
from profiling.realtime.summary import loop_energy, median, stage_ms, summarize_frames
from profiling.results.energy import Energy
from profiling.results.explanations import TraceAnalysis
from profiling.results.frames import Journal, Series, recover_series, stage_names
from profiling.results.measured import Parity
from profiling.roofline.section import frame_roofline
from profiling.run.cell import Cell, measured_by, metrics_of
from profiling.trace.analysis import Traces, analyze_host_trace, analyze_trace
from profiling.trace.events import Timeline, read_events, timeline
from profiling.trace.profiler import synchronize
from profiling.variants.recipe import Recipe
from profiling.variants.variant import Step, Variant

#: Sessions whose first frame is timed, and frames that are profiled with trace=true.
FIRST_FRAMES, TRACED = 5, 20
#: Why a loop's trace has no table of submodules.
_NO_MODULES = "not attributable: a frame runs several networks; python -m profiling.generic_forward analyses each"


@dataclass
class RealtimeCell(Cell):
    """Play frames under a variant and compare each with its deadline."""

    plan: Mapping[str, Any] = field(default_factory=dict)  # the nodes of `Plan.of`
    energy: Energy | None = None  # before the loop: the idle power, or why there is no energy

    def variant(self) -> Variant:
        """Return the variant; a transform of it may change some of the stages only.

        Raises:
            InputError: it refuses its options.

        """
        variant = super().variant()
        return replace(variant, needs_changes=False) if isinstance(variant, Recipe) else variant

    def measure(self) -> None:
        """Load, compute references, prepare, check, play, trace, and compare the frames with their roofline."""
        settings = self.job.settings
        variant = self.variant()
        metrics = metrics_of(self.job)
        for name, metric in metrics.items():
            if not metric.needs_reference and not isinstance(metric, Drift):
                raise InputError(
                    f"metric.{name} times single steps, and the loop has its own clocks. Use metric=[parity,drift]."
                )
        plan = self._plan
        check_variant(variant, plan.options)
        sides = play_stages(plan, partial(self.load, plan.specs), self.phase)
        self.describe(sides.components, frames_per_call=plan.graph.frames_per_tick)
        with torch.inference_mode(), ExitStack() as stack:
            # Before a variant can change the networks in place.
            eager = [(each, self._eager_session(each, sides)) for each in metrics.values() if isinstance(each, Drift)]
            steps = self.prepare(variant, sides.components, stack, stages=True)
            pipeline = assemble(plan, sides.components, {name: step.run for name, step in steps.items()})
            if plan.options.schedule == "overlap" and pipeline.depth == 1:
                self.note("loop.schedule=overlap: a CPU runs the stages in turn, so the times are those of sequential")
            self.note_state(sides)
            check = partial(self._check, variant, sides, steps, pipeline)
            check()
            for drift, frames in eager:
                self._check_drift(drift, pipeline, frames)
            self.wait()
            pipeline.reset()
            first_ms = _first_frame_ms(pipeline)
            self._measure_idle_power(torch.device(settings.device))
            series = self._play(sides, pipeline, first_ms)
            if not self.problems:
                check(before="correct before the timed frames, wrong after them: ")
            if settings.trace:
                self._trace(pipeline, torch.device(settings.device))
            if settings.ceilings == "auto":
                self._explain_roofline(sides, steps, series)

    def components(self) -> Mapping[str, Component]:
        """Build the network of each stage."""
        with self.phase("load"):
            specs, settings = self._plan.specs, self.job.settings
            built = {name: build(spec, settings).cast("run") for name, spec in specs.items()}
            return stage_components(self._plan, built)

    def check(self, components: Mapping[str, Component]) -> None:
        """Check every stage, then play the first ticks of the pipeline, which checks its edges."""
        super().check(components)
        with self.phase("pipeline"):
            play_sessions(self._plan, assemble(self._plan, components))

    @cached_property
    def _plan(self) -> Plan:
        return Plan.of(self.job, **self.plan)

    def _check(
        self,
        variant: Variant,
        sides: Sides,
        steps: Mapping[str, Step],
        pipeline: StagedPipeline,
        before: str = "",
    ) -> None:
        """Compare every stage, and the first ticks of the whole, with their references; `parity` is the worst.

        `before` comes before the reason of what is wrong.
        """
        checks: dict[str, Parity] = {}
        settings, components = self.job.settings, sides.components
        tolerances = {name: stage_variant(variant, name).tolerance for name in components}
        known = [tolerance for tolerance in tolerances.values() if tolerance is not None]
        with self.phase("parity"):
            for metric in (each for each in metrics_of(self.job).values() if each.needs_reference):
                found: dict[str, Measured] = {}
                for name, component in components.items():
                    reference = sides.references[name]
                    subject = Subject(component, steps[name], reference, tolerances[name], settings.seed)
                    found[name] = measured_by(metric, subject)
                if isinstance(metric, ParityMetric) and sides.whole is not None:
                    log = play_sessions(self._plan, pipeline)
                    dtype, most = getattr(torch, settings.dtype), max(known, default=None)
                    found[PIPELINE] = metric.of_pipeline(log, sides.whole, dtype, most)
                for name, measured in found.items():
                    checks[name] = measured.sections["parity"]
                    if measured.problem is not None:
                        status, reason = measured.problem
                        self.problems.append((status, f"{before}{name}: {reason}"))
        if checks:
            worst = max(checks.values(), key=lambda check: (not check.passed, check.rel_l2 or 0.0))
            self.add(parity=msgspec.structs.replace(worst, stages=checks))

    def _eager_session(self, drift: Drift, sides: Sides) -> OutputLog:
        ticks = min(drift.calls, self._plan.ticks)
        with self.phase("eager session"):
            return play_sessions(self._plan, assemble(self._plan, sides.components), ticks=ticks, sessions=1)

    def _check_drift(self, drift: Drift, pipeline: StagedPipeline, eager: OutputLog) -> None:
        """Compare a session with the same one played eagerly, in which errors pass from stage to stage."""
        with self.phase("drift"):
            frames = play_sessions(self._plan, pipeline, ticks=len(eager), sessions=1)
            measured = drift.compared([difference(*pair) for pair in zip(frames, eager, strict=True)])
        self.keep_measured("drift", measured)

    def _measure_idle_power(self, device: torch.device) -> None:
        """Measure the power of the idle GPU, with everything prepared, for a second or two."""
        if device.type != "cuda":
            return
        synchronize(device)
        with self.phase("idle power"), self.best_effort("measuring the idle power"):
            try:
                idle = idle_power(EnergyCounter(device))
                self.energy = Energy(idle_w=idle.watts, step_ms=1e3 * idle.step_s)
            except NoEnergy as reason:
                self.energy = Energy(reason=str(reason))

    def _play(self, sides: Sides, pipeline: StagedPipeline, first_ms: float) -> Series:
        """Play all frames and return their series; a loop that fails leaves the frames before the failure on disk."""
        plan, run, device = self._plan, Path(self.job.run), torch.device(self.job.settings.device)
        paced = plan.options.pace == "realtime"
        period = plan.graph.frames_per_tick / plan.target_fps if paced else None
        # A query of the driver takes milliseconds. Where frames overlap, the next one would wait for it.
        monitor = FrameMonitor(device, apart=pipeline.depth > 1)
        journal = Journal(run, self.job.name, series_names(pipeline))
        loop = FrameLoop(pipeline, Clock(), monitor, period=period)
        before: dict[str, int] = {}

        def on_first() -> None:
            before.update(state_bytes(sides.components))
            monitor.start()

        try:
            with gc_policy(plan.options.gc), self.phase("frames"):
                loop.run(range(plan.frames), journal.append, warmup=plan.warmup_frames, on_first=on_first)
        finally:  # an error in a frame must not lose the frames before it
            monitor.close()
            journal.close()
            series = recover_series(run, self.job.name)
            assert series is not None
            unsteady = [*short_warmups(plan), *grown(before, state_bytes(sides.components))]
            self._summarize(series, monitor, first_ms, unsteady)
        return series

    def _summarize(self, series: Series, monitor: FrameMonitor, first_ms: float, unsteady: Sequence[str]) -> None:
        plan, settings = self._plan, self.job.settings
        clocks = msgspec.structs.asdict(monitor.clocks())
        loop = msgspec.structs.replace(plan.section(), first_frame_ms=first_ms, unsteady=tuple(unsteady), **clocks)
        has_sound = any(plan.specs[edge.name].kind == "audio" for edge in plan.graph.deliver)
        rate = plan.graph.frame_rate if has_sound and settings.scale == "full" else None
        section = summarize_frames(
            series, loop, plan.graph, events=monitor.events, media_rate=rate, late=settings.late_share
        )
        self.add(realtime=section)
        energy = self.energy
        if energy is not None and energy.reason is None:
            energy = loop_energy(series, section, idle_w=energy.idle_w, step_ms=energy.step_ms)
            if monitor.energy_reason is not None and (energy is None or energy.reason is not None):
                energy = Energy(reason=monitor.energy_reason)
        if energy is not None:
            self.add(energy=energy)
        changed = _compiled_or_captured(series, monitor.events)
        if changed is not None:
            self.problems.append(("invalid", f"after the warm-up: {changed}"))

    def _trace(self, pipeline: StagedPipeline, device: torch.device) -> None:
        """Profile frames after the warm-up of a new session as one call, so that overlapping stages are seen so."""
        loop = FrameLoop(pipeline, Clock(), lambda frame, frame_ms: {})

        def begin() -> None:
            pipeline.reset()
            loop.run(range(self._plan.warmup_frames), lambda row: None)

        def analyse(trace: Path) -> TraceAnalysis | None:
            events = timeline(read_events(trace))
            if device.type != "cuda":
                return analyze_host_trace(events, None, _NO_MODULES, parts=TRACED)
            return analyze_trace(Traces(events, _NO_MODULES), Path.cwd(), parts=TRACED, ceilings=self.ceilings())

        self.trace_call(begin, lambda: loop.run(range(TRACED), lambda row: None), device, analyse, calls=(1, 1))

    def _explain_roofline(self, sides: Sides, steps: Mapping[str, Step], series: Series) -> None:
        """Compare the frames with their roofline. Comes last, since it resets the networks to their first frame."""
        calls = {name: (stage.repeat, 1 / stage.every) for name, stage in self._plan.graph.stages.items()}
        medians = {name: median(stage_ms(series, name)) for name in stage_names(series)}

        def analyse(stage: str) -> tuple[Timeline | None, TraceAnalysis | None]:
            passes = self.passes(sides.components[stage], steps[stage])
            trace = passes.trace_kernels()
            return trace, passes.analyze_kernels(trace)

        with self.phase("roofline"), self.best_effort("the roofline"):
            if (ceilings := self.ceilings()) is not None:
                section = frame_roofline(
                    sides.components,
                    steps,
                    ceilings,
                    median(series["frame_ms"]),
                    {name: time_ms for name, time_ms in medians.items() if time_ms is not None},
                    fused=self.compiled,
                    overlapping=self._plan.options.schedule == "overlap",
                    calls=calls,
                    analyse=analyse,
                )
                self.add(roofline=section)


def stage_components(plan: Plan, blueprints: Mapping[str, Blueprint]) -> dict[str, Component]:
    """Return the component of each stage, which has the stage's name; the blueprints must have been cast."""
    stages, overlapping = plan.graph.stages, plan.options.schedule == "overlap"
    return {
        name: replace(
            blueprint.component(plan.settings.seed),
            name=name,
            priority=stages[name].priority if overlapping else 0,
        )
        for name, blueprint in blueprints.items()
    }


def play_stages(
    plan: Plan,
    load: Callable[[], Mapping[str, Blueprint]],
    phase: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Sides:
    """Build the stages by `load`, and play what they are compared with: each by itself, and sessions of the whole.

    Raises:
        InputError: a module cannot be built or fails on its inputs, or an edge does not fit.

    """

    def together(components: Mapping[str, Component], starts: Mapping[str, Start] | None, seed: int) -> OutputLog:
        return play_sessions(plan, assemble(plan, components, starts=starts), seed=seed)

    made, device = partial(stage_components, plan), torch.device(plan.settings.device)
    return play_sides(load, made, device, phase=phase, together=together)


def _first_frame_ms(pipeline: StagedPipeline) -> float:
    """Return the latency of the first tick of a session, with everything prepared: the median of a few sessions."""
    rows: list[dict[str, float]] = []
    for _ in range(FIRST_FRAMES):
        FrameLoop(pipeline, Clock(), lambda frame, frame_ms: {}).run(range(1), rows.append)
        pipeline.reset()
    return statistics.median(row["latency_ms"] for row in rows)


def short_warmups(plan: Plan) -> list[str]:
    """Return in words which stages have run once at most when the timed frames begin."""
    return [
        f"the stage {name} runs in every {stage.every}th frame, and its second run is a timed one: use "
        f"loop.warmup_frames={stage.every}"
        for name, stage in plan.graph.stages.items()
        if plan.warmup_frames < stage.every
    ]


def state_bytes(components: Mapping[str, Component]) -> dict[str, int]:
    """Return the bytes of each stage's state: of buffers, and of tensors in attributes and caches; no weights."""
    return {name: sum(tensor.nbytes for _, tensor in each.kept.named_tensors()) for name, each in components.items()}


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return in words which stages keep more than before: a cache that is not full, or that nothing empties."""
    return [
        f"the state of the stage {name} grew during the timed frames, from {size / 2**20:.3g} to "
        f"{after[name] / 2**20:.3g} MiB: later frames do other work than earlier ones"
        for name, size in before.items()
        if after[name] > size
    ]


def _compiled_or_captured(series: Series, events: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what was compiled or captured in the timed frames and in which frame first, or None."""
    changes = []
    names = ("compiles", "compile"), ("captures", "CUDA graph captured"), ("graphs_recorded", "CUDA graph captured")
    for name, word in names:
        frames = [int(frame) for frame in (series[name] > 0).nonzero()[0]] if name in series else []
        if frames:
            ids = ", ".join(event["id"] for event in events) if name == "compiles" else ""
            changes.append(f"{word} in {len(frames)} frames, first in {frames[0]}" + f" ({ids})" * bool(ids))
    return "; ".join(changes) or None
