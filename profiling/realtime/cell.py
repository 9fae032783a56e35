"""The cell of `realtime`: load the networks, prepare them, and play."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from models.playback import SoundStage
from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.components.spec import ComponentSpec
from profiling.errors import InputError
from profiling.machine.ceilings import Ceilings
from profiling.machine.gc_policy import garbage
from profiling.realtime.monitor import FrameWatch
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import (
    PRIORITIES,
    SOUND,
    WHOLE,
    WORLD,
    Actions,
    StagedPipeline,
    assemble,
    drawn_actions,
    read_actions,
)
from profiling.realtime.play import Player, WallClock, series_names
from profiling.realtime.prepare import Parts, blueprints_of, check, expected_of, parts_of, prepare, refuse_shared_pools
from profiling.realtime.recovery import loop_facts
from profiling.realtime.sound import choose_window
from profiling.realtime.summary import compiled_or_captured, median, stage_ms, summarize_frames
from profiling.results.frames import Journal, Series, recover_series, stage_names
from profiling.roofline.section import limits_of
from profiling.run.cell import Cell, metrics_of
from profiling.run.environment import ceilings_in
from profiling.run.trace_passes import costs
from profiling.trace.analysis import Traces, inside_of
from profiling.trace.events import read_events, timeline
from profiling.trace.profiler import trace_step
from profiling.variants.variant import Step, Variant


def frame_limits(
    components: Mapping[str, Component],
    steps: Mapping[str, Step],
    ceilings: Ceilings,
    frame_ms: float | None,
    part_ms: Mapping[str, float],
    *,
    fused: Collection[str],
    overlapping: bool,
) -> dict[str, Any]:
    """Return the section `limits` of a loop whose median frame took `frame_ms`, if any did.

    `parts` holds what each of `components` must do for a frame and what bounds its step, whose median time is in
    `part_ms`, and the section itself the sum. The parts' floors add up where one comes after the other; where they
    overlap, one may move bytes while another computes, and the larger of the two sums is the floor; what then bounds
    each alone is not asked. Copies between the stages and to the player are not in it. Runs each component once,
    eagerly, and on CUDA its step a few times, and leaves it at its reset state: for after the frames.
    """
    parts = {}
    for name, component in components.items():
        time_ms = None if overlapping else part_ms.get(name)
        parts[name] = limits_of(component, steps[name].run, ceilings, time_ms, fused=name in fused)
        component.reset()
    memory, compute = (sum(part[term] for part in parts.values()) for term in ("memory_ms", "compute_ms"))
    floor = max(memory, compute) if overlapping else sum(part["floor_ms"] for part in parts.values())
    section: dict[str, Any] = {
        "bytes": _added(part["bytes"] for part in parts.values()),
        "flops": _added(part["flops"] for part in parts.values()),
        "memory_ms": memory,
        "compute_ms": compute,
        "floor_ms": floor,
        "parts": parts,
    }
    if frame_ms is not None and floor > 0:
        section["achieved_over_floor"] = frame_ms / floor
    return section


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for mapping in counts:
        for kind, count in mapping.items():
            total[kind] = total.get(kind, 0) + count
    return total


#: Samples of sound a second.
SAMPLE_RATE = 44100
#: Why the trace of a loop tells neither submodules nor lines of code.
_SEVERAL = (
    "not attributable: several networks make a frame; the main job looks into each (component=[world_model_frame])"
)
_LOOP = "nothing: the loop is traced in one piece, and its waits are the harness's own"


@dataclass
class RealtimeCell(Cell):
    """Play frames under a variant, each against its deadline."""

    options: LoopOptions = field(default_factory=LoopOptions)
    stages: str = ""  # the specs of the three networks by role, as JSON
    fused_parts: frozenset[str] = frozenset()  # of which a compiler made other operators

    def measure(self) -> None:
        """Load, compute the references, prepare, check, play, trace, and hold the frames against their floor."""
        settings = self.job.settings
        variant: Variant = instantiate(self.job.variant_options, f"variant.{self.job.variant}")
        for name, metric in metrics_of(self.job).items():
            if not metric.needs_reference:
                raise InputError(
                    f"metric.{name} times single steps, and the loop has its own clocks. Use metric=[parity]."
                )
        specs = {role: ComponentSpec(**node).at(settings.scale) for role, node in json.loads(self.stages).items()}
        parts, sound = self._load(specs)
        self.add(parameters=parts.parameters, frames_per_call=1, weights=parts.weights, weights_hint=parts.hint)
        with torch.inference_mode(), ExitStack() as stack:
            steps = self._prepare(variant, parts, stack)
            self._check(variant, parts, steps)
            actions = self._actions(parts.components[WHOLE if WHOLE in steps else WORLD])
            pipeline = assemble(parts.components, steps, self.options, actions, settings.seed, WallClock())
            for component in parts.components.values():
                component.reset()
            series = self._play(pipeline, sound)
            if settings.trace:
                self._trace(pipeline, torch.device(settings.device))
            if settings.ceilings == "auto":
                self._explain_limits(parts, steps, series)

    def _load(self, specs: Mapping[str, ComponentSpec]) -> tuple[Parts, dict[str, Any]]:
        settings, whole = self.job.settings, self.options.schedule == "one_graph"
        with self.phase("load"):
            exact = blueprints_of(specs, settings)
        with self.phase("reference"), torch.inference_mode():
            world = exact[WORLD].component(torch.float32, settings.seed)
            stage = exact[SOUND].module
            sound = choose_window(stage, world, self.options, settings.seed)
            expected = expected_of(exact, settings, whole=whole)
        del exact, world, stage
        with self.phase("load"), torch.inference_mode():
            fresh = blueprints_of(specs, settings)
            if "decoded" in sound:
                cast(SoundStage, fresh[SOUND].module).decoded = sound["decoded"]
            priorities = PRIORITIES if self.options.schedule == "overlap" else {}
            return parts_of(fresh, expected, settings, whole=whole, priorities=priorities), sound

    def _prepare(self, variant: Variant, parts: Parts, stack: ExitStack) -> dict[str, Step]:
        refuse_shared_pools(variant, parts.components, self.options)
        with self.phase("prepare"):
            folder = Path(self.job.run) / "kernels" / self.job.name
            steps, section, self.fused_parts = prepare(variant, parts, folder, stack)
        self.add(prepare=section)
        return steps

    def _check(self, variant: Variant, parts: Parts, steps: Mapping[str, Step]) -> None:
        with self.phase("parity"):
            section, problems = check(metrics_of(self.job).values(), variant, parts, steps, self.job.settings.seed)
        self.problems += problems
        if section is not None:
            self.add(parity=section)

    def _actions(self, world: Component) -> Actions:
        axes, buttons = (world.inputs[name].shape[-1] for name in ("mouse", "btn"))
        if self.options.actions is not None:
            return read_actions(Path(str(self.options.actions)), axes, buttons)
        frames, warmup = self.options.counts(world.device.type)
        return drawn_actions(frames + warmup, axes, buttons, self.job.settings.seed)

    def _play(self, pipeline: StagedPipeline, sound: Mapping[str, Any]) -> Series:
        """Play, and return the series of the frames."""
        options, settings, run = self.options, self.job.settings, Path(self.job.run)
        device = torch.device(settings.device)
        frames, warmup = options.counts(device.type)
        period = 1 / options.fps if options.pace == "realtime" else None
        watch, journal = FrameWatch(device), Journal(run, self.job.name, series_names(pipeline))
        player = Player(pipeline, WallClock(), watch, depth=pipeline.depth, period=period)
        try:
            with garbage(options.garbage), self.phase("frames"):
                player.play(range(frames), journal.append, warmup=warmup, on_first=watch.start)
        finally:  # what was played is kept, whatever ended it
            watch.close()
            journal.close()
            series = recover_series(run, self.job.name)
            assert series is not None
            self._summarize(series, watch, sound)
        return series

    def _summarize(self, series: Series, watch: FrameWatch, sound: Mapping[str, Any]) -> None:
        options, settings = self.options, self.job.settings
        facts = {
            **loop_facts(options, self.stages, settings.device),
            "sound": dict(sound),
            "throttle_reasons": sorted(watch.throttle_reasons),
        }
        samples = sound.get("samples") if settings.scale == "full" else None  # tiny networks make no 44.1 kHz
        section = summarize_frames(
            series,
            target_fps=float(options.fps),
            pace=options.pace,
            facts=facts,
            events=watch.events,
            sound_seconds_per_frame=None if samples is None else samples / SAMPLE_RATE,
        )
        self.add(realtime=section)
        disturbed = compiled_or_captured(series, watch.events)
        if disturbed is not None:
            self.problems.append(("invalid", f"after the warm-up: {disturbed}"))

    def _explain_limits(self, parts: Parts, steps: Mapping[str, Step], series: Series) -> None:
        """Say what a frame must take at least; last, since it takes the networks back to their first frame."""
        taken = {name: median(stage_ms(series, name)) for name in stage_names(series)}
        with self.phase("roofline"), self.best_effort("the roofline"):
            ceilings = ceilings_in(Path(self.job.run))
            if ceilings is not None:
                limits = frame_limits(
                    parts.components,
                    steps,
                    ceilings,
                    median(series["frame_ms"]),
                    {name: time for name, time in taken.items() if time is not None},
                    fused=self.fused_parts,
                    overlapping=self.options.schedule == "overlap",
                )
                self.add(limits=limits)

    def _inside_a_frame(self, trace: Path, frames: int) -> None:
        section = inside_of(Traces(timeline(read_events(trace)), _SEVERAL, _LOOP), costs(), Path.cwd(), parts=frames)
        if section is not None:
            self.add(inside=section)

    def _trace(self, pipeline: StagedPipeline, device: torch.device) -> None:
        """Profile some steady frames into the run folder, in one piece: what overlaps must be seen to overlap."""
        self.emit({"event": "phase", "phase": "trace"})
        frames = self.options.profile_frames
        player = Player(pipeline, WallClock(), lambda frame, frame_ms: {}, depth=pipeline.depth)

        with self.best_effort("the profiler trace"):
            result = trace_step(
                lambda: player.play(range(frames), lambda row: None),
                component=self.job.component.name,
                variant=self.job.variant,
                folder=Path(self.job.run) / "traces",
                iterations=1,
                warmup=1,
                device=device,
                stacks=self.job.settings.stacks,
            )
            self.add(trace={**asdict(result), "frames": frames})
            with self.best_effort("reading the profiler trace"):
                self._inside_a_frame(Path(self.job.run) / result.trace, frames)
