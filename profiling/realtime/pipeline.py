"""The pipeline of a loop: actions and noise in, prepared steps with hand-over between them, playout buffer out."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.realtime.options import DELIVER, PICTURE, SOUND, WHOLE, WORLD, LoopOptions
from profiling.realtime.play import Clock, Pipeline
from profiling.results.frames import UNREADABLE
from profiling.results.jsonl import read_file
from profiling.variants.variant import Step

#: Drawn actions: fraction of a mouse movement kept in the next frame, and probability a frame that a button changes.
MOUSE_MEMORY, BUTTON_CHANGE = 0.9, 0.05
#: CUDA stream priorities of stages that overlap; lower numbers run first. The world model is first, since the next
#: frame waits for it. The sound decoder uses half of the GPU; the picture decoder fills it, and so comes last.
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
        with np.load(io.BytesIO(read_file(path)), allow_pickle=False) as content:
            arrays = {name: content[name].astype(np.float32, casting="same_kind") for name in ("mouse", "btn")}
    except (*UNREADABLE, KeyError, AttributeError) as error:
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


class FrameInputs:
    """Writes the inputs of a frame: its action, through pinned memory, and fresh noise drawn on the device.

    `mouse` and `btn` of `component` are actions, all its other inputs are noise; `depth` frames may be in flight.
    """

    def __init__(self, component: Component, actions: Actions, depth: int, seed: int) -> None:
        self._inputs, self._actions = component.inputs, actions
        device = component.device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._staging = [
            {
                name: torch.empty(component.inputs[name].shape, dtype=component.dtype, pin_memory=device.type == "cuda")
                for name in ("mouse", "btn")
            }
            for _ in range(depth)
        ]

    def write(self, frame: int) -> None:
        """Write the inputs of a frame; on CUDA this only enqueues the copies."""
        mouse, btn = self._actions.at(frame)
        staging = self._staging[frame % len(self._staging)]
        for name, values in (("mouse", mouse), ("btn", btn)):
            staging[name].copy_(torch.from_numpy(values))
            self._inputs[name].copy_(staging[name], non_blocking=True)
        for name, tensor in self._inputs.items():
            if name not in staging:
                tensor.normal_(generator=self._generator)


@dataclass
class FrameTensors:
    """Tensors of the last `depth` frames by name; a copy's memory is used again `depth` frames later.

    `on_host` copies to host memory, pinned where the tensors come from a GPU: a playout buffer.
    """

    depth: int
    on_host: bool = False
    _tensors: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def keep(self, name: str, frame: int, tensor: Tensor) -> None:
        """Keep `tensor` itself."""
        self._tensors[name, frame % self.depth] = tensor

    def copy(self, name: str, frame: int, tensor: Tensor) -> None:
        """Keep a copy: a CUDA graph may overwrite `tensor` in its next replay. From a GPU this only enqueues it."""
        slot = self._tensors.get((name, frame % self.depth))
        if slot is None:
            slot = torch.empty_like(tensor)
            if self.on_host:
                slot = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self.keep(name, frame, slot)
        slot.copy_(tensor, non_blocking=self.on_host)

    def get(self, name: str, frame: int) -> Tensor:
        """Return the tensor of a frame."""
        return self._tensors[name, frame % self.depth]

    def outputs(self, frame: int) -> tuple[Tensor, Tensor]:
        """Return the picture and the sound of a frame."""
        return self.get(PICTURE, frame), self.get(SOUND, frame)


@dataclass(frozen=True)
class Stage:
    """A stage: `run(frame)` enqueues it on `stream` (None: the current one) after the stages in `after`.

    Stages of the same stream run in order and need no `after`.
    """

    name: str
    run: Callable[[int], None]
    stream: torch.cuda.Stream | None = None
    after: tuple[str, ...] = ()


@dataclass
class StagedPipeline(Pipeline):
    """Runs `sequence` in order, with up to `depth` frames in flight; `last` are the stages that complete a frame.

    `outputs(frame)` returns the tensors of a delivered frame: picture and sound.
    """

    sequence: Sequence[Stage]
    last: tuple[str, ...]
    device: torch.device
    clock: Clock
    outputs: Callable[[int], tuple[Tensor, Tensor]]
    depth: int = 1
    _events: list[dict[str, tuple[torch.cuda.Event, torch.cuda.Event]]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Make the CUDA events before and after each stage, which time the stages and order them across streams."""
        self.stages = tuple(stage.name for stage in self.sequence)
        if self.device.type == "cuda":
            self._events = [
                {
                    name: (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                    for name in self.stages
                }
                for _ in range(self.depth)
            ]

    def begin(self, frame: int) -> Mapping[str, float]:
        """Enqueue every stage (on a CPU: run it)."""
        host_ms = {}
        for stage in self.sequence:
            started = self.clock.now()
            with nullcontext() if stage.stream is None else torch.cuda.stream(stage.stream):
                self._begin(stage, frame)
            host_ms[stage.name] = 1e3 * (self.clock.now() - started)
        return host_ms

    def _begin(self, stage: Stage, frame: int) -> None:
        if not self._events:
            stage.run(frame)
            return
        events = self._events[frame % self.depth]
        for name in stage.after:
            events[name][1].wait()
        start, end = events[stage.name]
        start.record()
        stage.run(frame)
        end.record()

    def _ends(self, frame: int) -> list[torch.cuda.Event]:
        """Return the events that complete a frame, none on a CPU."""
        return [self._events[frame % self.depth][name][1] for name in self.last] if self._events else []

    def finished(self, frame: int) -> bool:
        """Query the events of the last stages."""
        return all(end.query() for end in self._ends(frame))

    def wait(self, frame: int) -> None:
        """Synchronize with the last stages."""
        for end in self._ends(frame):
            end.synchronize()

    def device_ms(self, frame: int) -> Mapping[str, float]:
        """Return the time in ms between the two events of each stage; empty on a CPU."""
        events = self._events[frame % self.depth] if self._events else {}
        return {name: start.elapsed_time(end) for name, (start, end) in events.items()}


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
    inputs, kept, buffer = (
        FrameInputs(first, actions, depth, seed),
        FrameTensors(depth),
        FrameTensors(depth, on_host=True),
    )

    def run_whole(frame: int) -> None:
        inputs.write(frame)
        for name, output in zip((PICTURE, SOUND), steps[WHOLE].run(), strict=True):
            kept.keep(name, frame, output)

    def run_world(frame: int) -> None:
        inputs.write(frame)
        for name, latent in zip((PICTURE, SOUND), steps[WORLD].run(), strict=True):
            kept.copy(f"latent of {name}", frame, latent)

    def decoder(name: str) -> Callable[[int], None]:
        (latent,) = components[name].inputs.values()

        def run(frame: int) -> None:
            latent.copy_(kept.get(f"latent of {name}", frame))
            kept.copy(name, frame, steps[name].run())

        return run

    def deliver(frame: int) -> None:
        for name, output in zip((PICTURE, SOUND), kept.outputs(frame), strict=True):
            buffer.copy(name, frame, output)

    streams: dict[str, torch.cuda.Stream | None] = dict.fromkeys((PICTURE, SOUND, DELIVER))
    if options.schedule == "overlap" and first.device.type == "cuda":
        for name in (PICTURE, SOUND):
            streams[name] = torch.cuda.Stream(first.device, priority=PRIORITIES.get(name, 0))
        streams[DELIVER] = streams[PICTURE]
    if whole:
        stages, last = [Stage(WHOLE, run_whole)], (WHOLE,)
    else:
        decoders = [Stage(name, decoder(name), streams[name], after=(WORLD,)) for name in (PICTURE, SOUND)]
        stages, last = [Stage(WORLD, run_world), *decoders], (PICTURE, SOUND)
    if options.deliver == "device":
        return StagedPipeline(stages, last, first.device, clock, kept.outputs, depth)
    stages.append(Stage(DELIVER, deliver, streams[DELIVER], after=last))
    return StagedPipeline(stages, (DELIVER,), first.device, clock, buffer.outputs, depth)
