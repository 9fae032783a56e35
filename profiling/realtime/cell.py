"""The cell of `realtime`: load the networks, prepare and check them, play the frames, and explain their times."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from models.playback import SoundStage
from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.components.spec import ComponentSpec
from profiling.errors import InputError
from profiling.machine.gc_policy import gc_policy
from profiling.metrics.metric import Subject
from profiling.realtime.monitor import FrameMonitor
from profiling.realtime.options import SOUND, WHOLE, WORLD, LoopOptions
from profiling.realtime.pipeline import PRIORITIES, Actions, StagedPipeline, assemble, drawn_actions, read_actions
from profiling.realtime.play import Clock, FrameLoop, series_names
from profiling.realtime.prepare import (
    LoadedStages,
    build_stages,
    load_stages,
    reference_outputs,
    refuse_shared_pools,
    stage_variant,
)
from profiling.realtime.recovery import describe_loop
from profiling.realtime.sound import choose_window
from profiling.realtime.summary import median, stage_ms, summarize_frames
from profiling.results.frames import Journal, Series, recover_series, stage_names
from profiling.results.record import Parity, Prepare, SoundWindow
from profiling.roofline.section import frame_roofline
from profiling.run.cell import Cell, measured_by, metrics_of
from profiling.run.environment import ceilings_in
from profiling.run.events import Phase
from profiling.trace.analysis import Traces, analyze_trace
from profiling.trace.counters import snapshot
from profiling.trace.events import read_events, timeline
from profiling.trace.profiler import synchronize, trace_step
from profiling.variants.variant import Step, Variant

#: Audio sample rate in Hz at full scale; tiny networks have another one.
SAMPLE_RATE = 44100
#: Why a loop's trace has neither a table of submodules nor one of host waits.
_NO_MODULES = (
    "not attributable: a frame runs several networks; the main job analyses each (component=[world_model_frame])"
)
_NO_WAITS = "not attributable: the loop is traced as one call, whose waits are those of the harness"


@dataclass
class RealtimeCell(Cell):
    """Play frames under a variant and compare each with its deadline."""

    options: LoopOptions = field(default_factory=LoopOptions)
    stages: str = ""  # the specs of the networks by role, as JSON
    fused_stages: set[str] = field(default_factory=set)  # stages whose operators a compiler fused

    def measure(self) -> None:
        """Load, compute references, prepare, check, play, trace, and compare the frames with their roofline."""
        settings = self.job.settings
        variant: Variant = instantiate(self.job.variant_options, f"variant.{self.job.variant}")
        for name, metric in metrics_of(self.job).items():
            if not metric.needs_reference:
                raise InputError(
                    f"metric.{name} times single steps, and the loop has its own clocks. Use metric=[parity]."
                )
        specs = {role: ComponentSpec(**node).at(settings.scale) for role, node in json.loads(self.stages).items()}
        loaded, sound = self._load(specs)
        self.add(
            parameters=loaded.parameters, frames_per_call=1, weights=loaded.weights, weights_hints=loaded.weights_hints
        )
        with torch.inference_mode(), ExitStack() as stack:
            steps = self._prepare(variant, loaded, stack)
            self._check(variant, loaded, steps)
            actions = self._actions(loaded.components[WHOLE if WHOLE in steps else WORLD])
            pipeline = assemble(loaded.components, steps, self.options, actions, settings.seed, Clock())
            for component in loaded.components.values():
                component.reset()
            series = self._play(pipeline, sound)
            if settings.trace:
                self._trace(pipeline, torch.device(settings.device))
            if settings.ceilings == "auto":
                self._explain_roofline(loaded, steps, series)

    def _load(self, specs: Mapping[str, ComponentSpec]) -> tuple[LoadedStages, SoundWindow]:
        settings, whole = self.job.settings, self.options.schedule == "one_graph"
        with self.phase("load"):
            exact = build_stages(specs, settings)
            checksums = {role: blueprint.checksums() for role, blueprint in exact.items()}
        with self.phase("reference"), torch.inference_mode():
            world = exact[WORLD].component(torch.float32, settings.seed)
            stage = exact[SOUND].module
            sound = choose_window(stage, world, self.options, settings.seed)
            expected = reference_outputs(exact, settings, whole=whole)
        del exact, world, stage
        with self.phase("load"), torch.inference_mode():
            blueprints = build_stages(specs, settings)
            for role, blueprint in blueprints.items():
                blueprint.check_same(checksums[role])
            if sound.decoded is not None:
                cast(SoundStage, blueprints[SOUND].module).decoded = sound.decoded
            priorities = PRIORITIES if self.options.schedule == "overlap" else {}
            return load_stages(blueprints, expected, settings, whole=whole, priorities=priorities), sound

    def _prepare(self, variant: Variant, loaded: LoadedStages, stack: ExitStack) -> dict[str, Step]:
        """Prepare every stage; return the steps, which are closed with `stack`."""
        refuse_shared_pools(variant, loaded.components, self.options)
        folder = Path(self.job.run) / "kernels" / self.job.name
        steps, seconds = {}, {}
        with self.phase("prepare"):
            before, started = snapshot(), time.perf_counter()
            for name, component in loaded.components.items():
                stage_before, stage_started = snapshot(), time.perf_counter()
                steps[name] = variant(component, folder)
                stack.callback(self.close, steps[name])
                synchronize(component.device)
                seconds[name] = time.perf_counter() - stage_started
                if snapshot().since(stage_before).graphs > 0:
                    self.fused_stages.add(name)
            total = time.perf_counter() - started
            for name, component in loaded.components.items():
                steps[name].run()
                synchronize(component.device)
            first = time.perf_counter() - started
            counters = asdict(snapshot().since(before))
        self.add(prepare=Prepare(seconds=total, first_call_s=first, stages=seconds, **counters))
        return steps

    def _check(self, variant: Variant, loaded: LoadedStages, steps: Mapping[str, Step]) -> None:
        """Compare every stage with its reference; the section `parity` is that of the worst."""
        checks: dict[str, Parity] = {}
        with self.phase("parity"):
            for metric in metrics_of(self.job).values():
                for name, component in loaded.components.items():
                    tolerance = stage_variant(variant, name).tolerance
                    reference, seed = loaded.references[name], self.job.settings.seed
                    measured = measured_by(metric, Subject(component, steps[name], reference, tolerance, seed))
                    checks[name] = measured.sections["parity"]
                    if measured.problem is not None:
                        status, reason = measured.problem
                        self.problems.append((status, f"{name}: {reason}"))
        if checks:
            worst = max(checks.values(), key=lambda check: (not check.passed, check.rel_l2 or 0.0))
            self.add(parity=msgspec.structs.replace(worst, stages=checks))

    def _actions(self, world: Component) -> Actions:
        axes, buttons = (world.inputs[name].shape[-1] for name in ("mouse", "btn"))
        if self.options.actions is not None:
            return read_actions(Path(str(self.options.actions)), axes, buttons)
        frames, warmup = self.options.counts(world.device.type)
        return drawn_actions(frames + warmup, axes, buttons, self.job.settings.seed)

    def _play(self, pipeline: StagedPipeline, sound: SoundWindow) -> Series:
        """Play all frames and return their series; a loop that fails leaves the frames before the failure on disk."""
        options, run = self.options, Path(self.job.run)
        device = torch.device(self.job.settings.device)
        frames, warmup = options.counts(device.type)
        period = 1 / options.fps if options.pace == "realtime" else None
        monitor, journal = FrameMonitor(device), Journal(run, self.job.name, series_names(pipeline))
        loop = FrameLoop(pipeline, Clock(), monitor, depth=pipeline.depth, period=period)
        try:
            with gc_policy(options.gc), self.phase("frames"):
                loop.run(range(frames), journal.append, warmup=warmup, on_first=monitor.start)
        finally:  # an error in a frame must not lose the frames before it
            monitor.close()
            journal.close()
            series = recover_series(run, self.job.name)
            assert series is not None
            self._summarize(series, monitor, sound)
        return series

    def _summarize(self, series: Series, monitor: FrameMonitor, sound: SoundWindow) -> None:
        settings = self.job.settings
        loop = msgspec.structs.replace(
            describe_loop(self.options, self.stages, settings.device),
            sound=sound,
            throttle_reasons=tuple(sorted(monitor.throttle_reasons)),
        )
        samples = sound.samples if settings.scale == "full" else None
        seconds = None if samples is None else samples / SAMPLE_RATE
        section = summarize_frames(series, loop, events=monitor.events, sound_seconds_per_frame=seconds)
        self.add(realtime=section)
        changed = _compiled_or_captured(series, monitor.events)
        if changed is not None:
            self.problems.append(("invalid", f"after the warm-up: {changed}"))

    def _trace(self, pipeline: StagedPipeline, device: torch.device) -> None:
        """Profile some steady frames as one call, so that overlapping stages are seen to overlap."""
        self.emit(Phase("trace"))
        frames = self.options.profile_frames
        loop = FrameLoop(pipeline, Clock(), lambda frame, frame_ms: {}, depth=pipeline.depth)

        with self.best_effort("the profiler trace"):
            result = trace_step(
                lambda: loop.run(range(frames), lambda row: None),
                component=self.job.component.name,
                variant=self.job.variant,
                folder=Path(self.job.run) / "traces",
                iterations=1,
                warmup=1,
                device=device,
                stacks=self.job.settings.stacks,
            )
            self.add(trace=msgspec.structs.replace(result, frames=frames))
            with self.best_effort("reading the profiler trace"):
                events = timeline(read_events(Path(self.job.run) / result.trace))
                analysis = analyze_trace(Traces(events, _NO_MODULES, _NO_WAITS), Path.cwd(), parts=frames)
                if analysis is not None:
                    self.add(trace_analysis=analysis)

    def _explain_roofline(self, loaded: LoadedStages, steps: Mapping[str, Step], series: Series) -> None:
        """Compare the frames with their roofline. Comes last, since it resets the networks to their first frame."""
        medians = {name: median(stage_ms(series, name)) for name in stage_names(series)}
        with self.phase("roofline"), self.best_effort("the roofline"):
            ceilings = ceilings_in(Path(self.job.run))
            if ceilings is not None:
                section = frame_roofline(
                    loaded.components,
                    steps,
                    ceilings,
                    median(series["frame_ms"]),
                    {name: time_ms for name, time_ms in medians.items() if time_ms is not None},
                    fused=self.fused_stages,
                    overlapping=self.options.schedule == "overlap",
                )
                self.add(roofline=section)


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
