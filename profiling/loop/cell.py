"""The cell of `realtime`: load the networks, prepare them, and play."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from models.playback import SoundStage
from profiling.core.cell import Cell, metrics_of
from profiling.core.components import Component
from profiling.core.config import instantiate
from profiling.core.job import ComponentSpec
from profiling.errors import InputError
from profiling.frames.journal import Journal, rescue
from profiling.frames.series import Series
from profiling.frames.summary import summarize_frames
from profiling.loop.actions import Actions, drawn_actions, read_actions
from profiling.loop.assemble import SOUND, WHOLE, WORLD, assemble
from profiling.loop.clock import WallClock
from profiling.loop.options import LoopOptions
from profiling.loop.parts import Parts, blueprints_of, expected_of, parts_of
from profiling.loop.pipeline import Pipeline
from profiling.loop.play import Player, series_names
from profiling.loop.rescued import known_facts
from profiling.loop.sound import choose_window
from profiling.loop.watch import FrameWatch
from profiling.metrics.metric import Subject
from profiling.tracing.counters import snapshot
from profiling.tracing.profiler import synchronize, trace_step
from profiling.variants.mixed import stage_variant
from profiling.variants.variant import Step, Variant

#: Samples of sound a second.
SAMPLE_RATE = 44100


@dataclass
class RealtimeCell(Cell):
    """Play frames under a variant, each against its deadline."""

    options: LoopOptions = field(default_factory=LoopOptions)
    stages: str = ""  # the specs of the three networks by role, as JSON

    def measure(self) -> None:
        """Load, compute the references, prepare, check, play, and trace."""
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
            self._play(pipeline, sound)
            if settings.trace:
                self._trace(pipeline, torch.device(settings.device))

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
            return parts_of(fresh, expected, settings, whole=whole), sound

    def _prepare(self, variant: Variant, parts: Parts, stack: ExitStack) -> dict[str, Step]:
        """Prepare every part; its step is closed when `stack` is."""
        steps, seconds = {}, {}
        with self.phase("prepare"):
            before, started = snapshot(), time.perf_counter()
            for name, component in parts.components.items():
                begun = time.perf_counter()
                steps[name] = stage_variant(variant, name)(component, Path(self.job.run) / "kernels" / self.job.name)
                stack.callback(steps[name].close)
                synchronize(component.device)
                seconds[name] = time.perf_counter() - begun
            total = time.perf_counter() - started
            for name, component in parts.components.items():
                steps[name].run()
                synchronize(component.device)
            first = time.perf_counter() - started
            compiled = asdict(snapshot().since(before))
        self.add(prepare={"seconds": total, "first_call_s": first, "stages": seconds, **compiled})
        return steps

    def _check(self, variant: Variant, parts: Parts, steps: Mapping[str, Step]) -> None:
        """Hold every part against its reference; the record shows the worst and each."""
        found: dict[str, Mapping[str, Any]] = {}
        with self.phase("parity"):
            for metric in metrics_of(self.job).values():
                for name, component in parts.components.items():
                    tolerance = stage_variant(variant, name).tolerance
                    subject = Subject(component, steps[name], parts.references[name], tolerance, self.job.settings.seed)
                    measured = metric.measure(subject)
                    found[name] = measured.sections["parity"]
                    if measured.problem is not None:
                        status, reason = measured.problem
                        self.problems.append((status, f"{name}: {reason}"))
        if found:
            worst = max(found.values(), key=lambda section: (not section["passed"], section.get("rel_l2", 0.0)))
            self.add(parity={**worst, "stages": found})

    def _actions(self, world: Component) -> Actions:
        axes, buttons = (world.inputs[name].shape[-1] for name in ("mouse", "btn"))
        if self.options.actions is not None:
            return read_actions(Path(str(self.options.actions)), axes, buttons)
        frames, warmup = self.options.counts(world.device.type)
        return drawn_actions(frames + warmup, axes, buttons, self.job.settings.seed)

    def _play(self, pipeline: Pipeline, sound: Mapping[str, Any]) -> None:
        options, settings, run = self.options, self.job.settings, Path(self.job.run)
        device = torch.device(settings.device)
        frames, warmup = options.counts(device.type)
        period = 1 / options.fps if options.pace == "realtime" else None
        watch, journal = FrameWatch(device), Journal(run, self.job.name, series_names(pipeline))
        player = partial(Player, pipeline, WallClock(), depth=options.depth, period=period)
        try:
            with garbage(options.garbage):
                with self.phase("warm-up"):
                    player(look=lambda frame, frame_ms: {}).play(range(-warmup, 0), lambda row: None)
                with self.phase("frames"):
                    watch.start()
                    player(look=watch).play(range(frames), journal.append)
        finally:  # what was played is kept, whatever ended it
            watch.close()
            journal.close()
            series = rescue(run, self.job.name)
            assert series is not None
            self._summarize(series, watch, sound)

    def _summarize(self, series: Series, watch: FrameWatch, sound: Mapping[str, Any]) -> None:
        options, settings = self.options, self.job.settings
        facts = {
            **known_facts(options, self.stages, settings.device),
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
        disturbed = _compiled_or_captured(series, watch.events)
        if disturbed is not None:
            self.problems.append(("invalid", f"after the warm-up: {disturbed}"))

    def _trace(self, pipeline: Pipeline, device: torch.device) -> None:
        """Profile some steady frames into the run folder."""
        self.emit({"event": "phase", "phase": "trace"})
        frames = iter(range(10**9))

        def one_frame() -> None:
            pipeline.wait(pipeline.begin(next(frames)))

        def profile() -> None:
            result = trace_step(
                one_frame,
                component=self.job.component.name,
                variant=self.job.variant,
                folder=Path(self.job.run) / "traces",
                iterations=self.options.profile_frames,
                device=device,
                stacks=self.job.settings.stacks,
            )
            self.add(trace=asdict(result))

        self.unless_it_fails("the profiler trace failed", profile)


@contextmanager
def garbage(how: str) -> Iterator[None]:
    """Let Python's collector do what the option says, and what it did before afterwards."""
    enabled = gc.isenabled()
    gc.collect()
    if how == "frozen":
        gc.freeze()
    if how == "off":
        gc.disable()
    else:
        gc.enable()
    try:
        yield
    finally:
        if how == "frozen":
            gc.unfreeze()
        if enabled:
            gc.enable()
        else:
            gc.disable()


def _compiled_or_captured(series: Series, events: list[dict[str, Any]]) -> str | None:
    """Return what was compiled or captured in the timed frames, and when first, or None."""
    told = []
    names = ("compiles", "compile"), ("captures", "CUDA graph captured"), ("graphs_recorded", "CUDA graph captured")
    for name, word in names:
        frames = [int(frame) for frame in (series[name] > 0).nonzero()[0]] if name in series else []
        if frames:
            ids = ", ".join(event["id"] for event in events) if name == "compiles" else ""
            told.append(f"{word} in {len(frames)} frames, first in {frames[0]}" + f" ({ids})" * bool(ids))
    return "; ".join(told) or None
