"""The pipeline of a loop: actions and noise in, prepared steps with hand-over between them, playout buffer out."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.realtime.options import DELIVER, PICTURE, SOUND, WHOLE, WORLD, LoopOptions
from profiling.realtime.play import Clock, InFlightFrame, Pipeline
from profiling.variants.variant import Step

#: Drawn actions: the share of a mouse movement that is left in the next frame, the probability that a button changes.
MOUSE_MEMORY, BUTTON_CHANGE = 0.9, 0.05
#: CUDA stream priorities of stages that overlap; the lower runs first. The next frame waits for the world model, and
#: the sound decoder uses half of the GPU; the picture decoder, which fills it, takes the rest.
PRIORITIES = {WORLD: -2, SOUND: -1}


@dataclass(frozen=True)
class Actions:
    """Mouse movements [n, axes] and buttons held [n, n_buttons], float32, of n frames; repeated after n frames."""

    mouse: NDArray[np.float32]
    btn: NDArray[np.float32]

    def at(self, frame: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (mouse [axes], btn [n_buttons]) of a frame."""
        index = frame % len(self.mouse)
        return self.mouse[index], self.btn[index]


def drawn_actions(frames: int, axes: int, buttons: int, seed: int) -> Actions:
    """Draw actions of a user who moves smoothly and holds buttons for 20 frames on average."""
    random = np.random.default_rng(seed)
    mouse = np.zeros((frames, axes))
    for frame in range(1, frames):
        mouse[frame] = MOUSE_MEMORY * mouse[frame - 1] + random.normal(size=axes)
    changes = random.random((frames, buttons)) < BUTTON_CHANGE
    held = (np.cumsum(changes, axis=0) + random.integers(0, 2, buttons)) % 2
    return Actions(mouse.astype(np.float32), held.astype(np.float32))


def read_actions(path: Path, axes: int, buttons: int) -> Actions:
    """Read the arrays `mouse` [n, axes] and `btn` [n, buttons] of an .npz.

    Raises:
        InputError: the file cannot be read, or its arrays have another shape or numbers that are not finite.

    """
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name].astype(np.float32, casting="same_kind") for name in ("mouse", "btn")}
    except (OSError, ValueError, TypeError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"loop.actions={path}: {' '.join(str(error).split())}. Save it with numpy.savez(path, mouse=[n, {axes}], "
            f"btn=[n, {buttons}])."
        ) from None
    length = arrays["mouse"].shape[:1]
    for name, width in (("mouse", axes), ("btn", buttons)):
        if arrays[name].shape != (*length, width) or length == (0,) or not np.isfinite(arrays[name]).all():
            raise InputError(
                f"loop.actions={path}: {name} has the shape {list(arrays[name].shape)}. It must be finite numbers "
                f"[n, {width}] with the same n, at least 1, in mouse and btn."
            )
    return Actions(arrays["mouse"], arrays["btn"])


@dataclass(frozen=True)
class FrameInputs:
    """Writes the inputs of a frame: its action, through pinned memory, and fresh noise drawn on the device."""

    inputs: Mapping[str, Tensor]  # mouse, btn, and noise
    actions: Actions
    generator: torch.Generator
    staging: tuple[Mapping[str, Tensor], ...]  # pinned copies of mouse and btn, one for each frame in flight

    def write(self, frame: int) -> None:
        """Write the inputs of a frame; on CUDA this only enqueues the copies."""
        mouse, btn = self.actions.at(frame)
        staging = self.staging[frame % len(self.staging)]
        for name, values in (("mouse", mouse), ("btn", btn)):
            staging[name].copy_(torch.from_numpy(values))
            self.inputs[name].copy_(staging[name], non_blocking=True)
        for name, tensor in self.inputs.items():
            if name not in staging:
                tensor.normal_(generator=self.generator)


def make_frame_inputs(component: Component, actions: Actions, depth: int, seed: int) -> FrameInputs:
    """Return the writer of the inputs of `component`: `mouse`, `btn`, and noise for all others."""
    device = component.device
    staging = tuple(
        {
            name: torch.empty(component.inputs[name].shape, dtype=component.dtype, pin_memory=device.type == "cuda")
            for name in ("mouse", "btn")
        }
        for _ in range(depth)
    )
    return FrameInputs(component.inputs, actions, torch.Generator(device).manual_seed(seed), staging)


@dataclass
class StageOutputs:
    """Outputs of stages, kept for the stages after them; the memory is used again `depth` frames later."""

    depth: int
    _kept: dict[tuple[str, int], Any] = field(default_factory=dict)

    def keep(self, name: str, frame: int, value: Any) -> None:
        """Keep `value` itself."""
        self._kept[name, frame % self.depth] = value

    def copy(self, name: str, frame: int, value: Tensor) -> None:
        """Keep a copy of `value`, whose memory a CUDA graph may overwrite in its next replay."""
        place = self._kept.get((name, frame % self.depth))
        if place is None:
            self._kept[name, frame % self.depth] = value.clone()
        else:
            place.copy_(value)

    def get(self, name: str, frame: int) -> Any:
        """Return what was kept of a frame."""
        return self._kept[name, frame % self.depth]


@dataclass
class PlayoutBuffer:
    """Host memory that frames are delivered to, pinned where they come from a GPU; used again `depth` frames later."""

    depth: int
    _tensors: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def tensors(self, frame: int) -> tuple[Tensor, ...]:
        """Return the memory of a frame."""
        return tuple(tensor for (slot, _), tensor in self._tensors.items() if slot == frame % self.depth)

    def copy(self, frame: int, outputs: tuple[Tensor, ...]) -> None:
        """Copy the outputs of a frame; from a GPU this only enqueues the copies."""
        for index, output in enumerate(outputs):
            tensor = self._tensors.get((frame % self.depth, index))
            if tensor is None:
                tensor = torch.empty(output.shape, dtype=output.dtype, pin_memory=output.is_cuda)
                self._tensors[frame % self.depth, index] = tensor
            tensor.copy_(output, non_blocking=True)


@dataclass(frozen=True)
class Stage:
    """A stage: `run(frame)` enqueues it on `stream` (None: the current one) after the stages in `after`.

    Stages of the same stream run in order and need no `after`.
    """

    name: str
    run: Callable[[int], None]
    stream: torch.cuda.Stream | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Events:
    start: Mapping[str, torch.cuda.Event]
    end: Mapping[str, torch.cuda.Event]


@dataclass
class StagedPipeline(Pipeline):
    """Runs `sequence` in order, with up to `depth` frames in flight; `last` are the stages that complete a frame.

    `outputs(frame)` returns the tensors of a delivered frame: picture and sound.
    """

    sequence: Sequence[Stage]
    last: tuple[str, ...]
    device: torch.device
    clock: Clock
    outputs: Callable[[int], tuple[Tensor, ...]]
    depth: int = 1
    _events: list[_Events] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Make the CUDA events that time the stages and order them across streams."""
        self.stages = tuple(stage.name for stage in self.sequence)
        if self.device.type == "cuda":
            self._events = [_Events(self._make_events(), self._make_events()) for _ in range(self.depth)]

    def _make_events(self) -> dict[str, torch.cuda.Event]:
        return {name: torch.cuda.Event(enable_timing=True) for name in self.stages}

    def begin(self, frame: int) -> InFlightFrame:
        """Enqueue every stage (on a CPU: run it)."""
        host_ms = {}
        for stage in self.sequence:
            started = self.clock.now()
            with _on(stage.stream):
                self._begin(stage, frame)
            host_ms[stage.name] = 1e3 * (self.clock.now() - started)
        return InFlightFrame(frame, host_ms)

    def _begin(self, stage: Stage, frame: int) -> None:
        if not self._events:
            stage.run(frame)
            return
        events = self._events[frame % self.depth]
        for name in stage.after:
            events.end[name].wait()
        events.start[stage.name].record()
        stage.run(frame)
        events.end[stage.name].record()

    def finished(self, in_flight: InFlightFrame) -> bool:
        """Query the events of the last stages."""
        events = self._events
        return not events or all(events[in_flight.frame % self.depth].end[name].query() for name in self.last)

    def wait(self, in_flight: InFlightFrame) -> None:
        """Synchronize with the last stages."""
        if self._events:
            for name in self.last:
                self._events[in_flight.frame % self.depth].end[name].synchronize()

    def device_ms(self, in_flight: InFlightFrame) -> Mapping[str, float]:
        """Return the time in ms between the two events of each stage; empty on a CPU."""
        if not self._events:
            return {}
        events = self._events[in_flight.frame % self.depth]
        return {name: events.start[name].elapsed_time(events.end[name]) for name in self.stages}


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def assemble(
    components: Mapping[str, Component],
    steps: Mapping[str, Step],
    options: LoopOptions,
    actions: Actions,
    seed: int,
    clock: Clock,
) -> StagedPipeline:
    """Return the pipeline of the prepared `steps`: of world, picture and sound, or of the whole frame as one."""
    whole = WHOLE in steps
    first = components[WHOLE if whole else WORLD]
    depth = options.depth(first.device.type)
    inputs, kept, buffer = make_frame_inputs(first, actions, depth, seed), StageOutputs(depth), PlayoutBuffer(depth)
    final = (WHOLE,) if whole else (PICTURE, SOUND)

    def on_device(frame: int) -> tuple[Tensor, ...]:
        return kept.get(WHOLE, frame) if whole else tuple(kept.get(name, frame) for name in final)

    streams: dict[str, torch.cuda.Stream | None] = dict.fromkeys((PICTURE, SOUND, DELIVER))
    if options.schedule == "overlap" and first.device.type == "cuda":
        picture, sound = (
            torch.cuda.Stream(first.device, priority=PRIORITIES.get(name, 0)) for name in (PICTURE, SOUND)
        )
        streams = {PICTURE: picture, SOUND: sound, DELIVER: picture}
    stages = [_whole_stage(inputs, steps, kept)] if whole else _role_stages(inputs, components, steps, kept, streams)
    if options.deliver == "device":
        return StagedPipeline(stages, final, first.device, clock, on_device, depth)
    stages.append(Stage(DELIVER, lambda frame: buffer.copy(frame, on_device(frame)), streams[DELIVER], after=final))
    return StagedPipeline(stages, (DELIVER,), first.device, clock, buffer.tensors, depth)


def _whole_stage(inputs: FrameInputs, steps: Mapping[str, Step], kept: StageOutputs) -> Stage:
    def run(frame: int) -> None:
        inputs.write(frame)
        kept.keep(WHOLE, frame, steps[WHOLE].run())

    return Stage(WHOLE, run)


def _role_stages(
    inputs: FrameInputs,
    components: Mapping[str, Component],
    steps: Mapping[str, Step],
    kept: StageOutputs,
    streams: Mapping[str, torch.cuda.Stream | None],
) -> list[Stage]:
    def world(frame: int) -> None:
        inputs.write(frame)
        for name, latent in zip((PICTURE, SOUND), steps[WORLD].run(), strict=True):
            kept.copy(f"latent of {name}", frame, latent)

    def decoder(name: str) -> Callable[[int], None]:
        (latent,) = components[name].inputs.values()

        def run(frame: int) -> None:
            latent.copy_(kept.get(f"latent of {name}", frame))
            kept.copy(name, frame, steps[name].run())

        return run

    decoders = [Stage(name, decoder(name), streams[name], after=(WORLD,)) for name in (PICTURE, SOUND)]
    return [Stage(WORLD, world), *decoders]
