"""From prepared steps to a pipeline: actions and noise in, hand-over between stages, copies to the player."""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.realtime.options import LoopOptions
from profiling.variants.variant import Step

#: How much of a movement is left in the next frame, and how likely a button changes in one.
MOUSE_MEMORY, BUTTON_CHANGE = 0.9, 0.05


@dataclass(frozen=True)
class Actions:
    """A movement [n, axes] and the buttons held [n, n_buttons], float32, for as many frames; then from the start."""

    mouse: NDArray[np.float32]
    btn: NDArray[np.float32]

    def at(self, frame: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (mouse [axes], btn [n_buttons]) of a frame."""
        index = frame % len(self.mouse)
        return self.mouse[index], self.btn[index]


def drawn_actions(frames: int, axes: int, buttons: int, seed: int) -> Actions:
    """Draw actions of a player who moves smoothly and holds buttons."""
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
        InputError: there is no such file, or it holds something else.

    """
    try:
        with np.load(path, allow_pickle=False) as content:
            found = {name: content[name].astype(np.float32, casting="same_kind") for name in ("mouse", "btn")}
    except (OSError, ValueError, TypeError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"loop.actions={path}: {' '.join(str(error).split())}. Save it with numpy.savez(path, mouse=[n, {axes}], "
            f"btn=[n, {buttons}])."
        ) from None
    wanted = {"mouse": axes, "btn": buttons}
    length = found["mouse"].shape[:1]
    for name, width in wanted.items():
        if found[name].shape != (*length, width) or length == (0,) or not np.isfinite(found[name]).all():
            raise InputError(
                f"loop.actions={path}: {name} is {list(found[name].shape)}, wanted are finite numbers [n, {width}] "
                "with the same n, at least 1, in mouse and btn."
            )
    return Actions(found["mouse"], found["btn"])


class Clock(Protocol):
    """Seconds that only go forward, and waiting."""

    def now(self) -> float:
        """Return seconds since some moment."""
        ...

    def pause(self, until: float) -> None:
        """Let some of the time before `until` pass."""
        ...


@dataclass(frozen=True)
class Ticket:
    """A frame in the making: its index, and the host time in ms that beginning each stage took."""

    frame: int
    host_ms: Mapping[str, float]


class Pipeline(ABC):
    """Makes frames; `stages` are their names in order."""

    stages: tuple[str, ...]

    @abstractmethod
    def begin(self, frame: int) -> Ticket:
        """Hand the frame's work to the device (on a CPU: do it)."""

    @abstractmethod
    def finished(self, ticket: Ticket) -> bool:
        """Say whether the frame is with the player."""

    @abstractmethod
    def wait(self, ticket: Ticket) -> None:
        """Wait until it is."""

    @abstractmethod
    def device_ms(self, ticket: Ticket) -> Mapping[str, float]:
        """Return the device time of each stage of a frame that is finished; empty where there is no such clock."""


@dataclass(frozen=True)
class Work:
    """A stage: `run(frame)` begins it, on `stream` (None: the current one) once the stages in `after` have ended.

    Stages of one stream follow each other anyway.
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
    """Runs `works` in order; up to `depth` frames may be in the making, and `last` are the stages that end one.

    `outputs(frame)` are what a finished frame is made of, where the player finds it.
    """

    works: Sequence[Work]
    last: tuple[str, ...]
    device: torch.device
    clock: Clock
    outputs: Callable[[int], tuple[torch.Tensor, ...]]
    depth: int = 1
    _events: list[_Events] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Make the events that stages are timed by and wait for each other by."""
        self.stages = tuple(work.name for work in self.works)
        if self.device.type == "cuda":
            self._events = [_Events(self._made(), self._made()) for _ in range(self.depth)]

    def _made(self) -> dict[str, torch.cuda.Event]:
        return {name: torch.cuda.Event(enable_timing=True) for name in self.stages}

    def begin(self, frame: int) -> Ticket:
        """Begin every stage."""
        host_ms = {}
        for work in self.works:
            started = self.clock.now()
            with _on(work.stream):
                self._begin(work, frame)
            host_ms[work.name] = 1e3 * (self.clock.now() - started)
        return Ticket(frame, host_ms)

    def _begin(self, work: Work, frame: int) -> None:
        if not self._events:
            work.run(frame)
            return
        events = self._events[frame % self.depth]
        for name in work.after:
            events.end[name].wait()
        events.start[work.name].record()
        work.run(frame)
        events.end[work.name].record()

    def finished(self, ticket: Ticket) -> bool:
        """Ask the events of the last stages."""
        return not self._events or all(self._events[ticket.frame % self.depth].end[name].query() for name in self.last)

    def wait(self, ticket: Ticket) -> None:
        """Wait for the last stages."""
        if self._events:
            for name in self.last:
                self._events[ticket.frame % self.depth].end[name].synchronize()

    def delivered(self, ticket: Ticket) -> tuple[torch.Tensor, ...]:
        """Return picture and sound of a finished frame; the memory is used again `depth` frames later."""
        return self.outputs(ticket.frame)

    def device_ms(self, ticket: Ticket) -> Mapping[str, float]:
        """Return what the events of the frame say."""
        if not self._events:
            return {}
        events = self._events[ticket.frame % self.depth]
        return {name: events.start[name].elapsed_time(events.end[name]) for name in self.stages}


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


WORLD, PICTURE, SOUND, WHOLE, DELIVER = "world", "picture", "sound", "whole", "deliver"
#: Stream priorities of stages that overlap: the lower goes first. The next frame waits for the world model, and sound
#: leaves half of the GPU idle: the picture, which fills it, takes what they leave. Without, they take turns by chance.
PRIORITIES = {WORLD: -2, SOUND: -1}


@dataclass(frozen=True)
class Feeder:
    """Gives the world model the controls of a frame, through pinned memory, and fresh noise drawn on the device."""

    inputs: Mapping[str, Tensor]  # mouse, btn, and noise
    actions: Actions
    generator: torch.Generator
    staging: tuple[Mapping[str, Tensor], ...]  # one for each frame in the making

    def __call__(self, frame: int) -> None:
        """Write the inputs of a frame."""
        mouse, btn = self.actions.at(frame)
        staging = self.staging[frame % len(self.staging)]
        for name, values in (("mouse", mouse), ("btn", btn)):
            staging[name].copy_(torch.from_numpy(values))
            self.inputs[name].copy_(staging[name], non_blocking=True)
        for name, tensor in self.inputs.items():
            if name not in staging:
                tensor.normal_(generator=self.generator)


@dataclass
class Delivery:
    """Copies what a frame is made of to the player's memory, which is pinned where the frame comes from a GPU."""

    depth: int
    _player: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def places(self, frame: int) -> tuple[Tensor, ...]:
        """Return the player's memory of a frame."""
        return tuple(place for (slot, _), place in self._player.items() if slot == frame % self.depth)

    def __call__(self, frame: int, outputs: tuple[Tensor, ...]) -> None:
        """Begin to copy; the player may read until the same slot comes round again."""
        for index, output in enumerate(outputs):
            place = self._player.get((frame % self.depth, index))
            if place is None:
                place = torch.empty(output.shape, dtype=output.dtype, pin_memory=output.is_cuda)
                self._player[frame % self.depth, index] = place
            place.copy_(output, non_blocking=True)


@dataclass
class Slots:
    """What a stage hands to the next one, kept for each frame in the making until its place is needed again."""

    depth: int
    _held: dict[tuple[str, int], Any] = field(default_factory=dict)

    def put(self, name: str, frame: int, value: Any) -> None:
        """Keep `value` of a frame."""
        self._held[name, frame % self.depth] = value

    def copy(self, name: str, frame: int, value: Tensor) -> None:
        """Keep a copy of `value`, which may be a graph's own memory, in memory that stays."""
        place = self._held.get((name, frame % self.depth))
        if place is None:
            self._held[name, frame % self.depth] = value.clone()
        else:
            place.copy_(value)

    def get(self, name: str, frame: int) -> Any:
        """Return what was kept of a frame."""
        return self._held[name, frame % self.depth]


def make_feeder(component: Component, actions: Actions, depth: int, seed: int) -> Feeder:
    """Return what feeds `component`, whose inputs are noise, `mouse` and `btn`."""
    device = component.device
    staging = tuple(
        {
            name: torch.empty(component.inputs[name].shape, dtype=component.dtype, pin_memory=device.type == "cuda")
            for name in ("mouse", "btn")
        }
        for _ in range(depth)
    )
    return Feeder(component.inputs, actions, torch.Generator(device).manual_seed(seed), staging)


def assemble(
    components: Mapping[str, Component],
    steps: Mapping[str, Step],
    options: LoopOptions,
    actions: Actions,
    seed: int,
    clock: Clock,
) -> StagedPipeline:
    """Return the pipeline of the prepared `steps`: of world, picture and sound, or of the whole."""
    first = components[WHOLE if WHOLE in steps else WORLD]
    depth = options.depth(first.device.type)
    feed = make_feeder(first, actions, depth, seed)
    slots, delivery = Slots(depth), Delivery(depth)
    whole = WHOLE in steps
    made = (WHOLE,) if whole else (PICTURE, SOUND)

    def outputs(frame: int) -> tuple[Tensor, ...]:
        return slots.get(WHOLE, frame) if whole else tuple(slots.get(name, frame) for name in made)

    def deliver(frame: int) -> None:
        delivery(frame, outputs(frame))

    beside: dict[str, torch.cuda.Stream | None] = dict.fromkeys((PICTURE, SOUND, DELIVER))
    if options.schedule == "overlap" and first.device.type == "cuda":
        picture, sound = (
            torch.cuda.Stream(first.device, priority=PRIORITIES.get(name, 0)) for name in (PICTURE, SOUND)
        )
        beside = {PICTURE: picture, SOUND: sound, DELIVER: picture}
    works = [Work(WHOLE, _whole(feed, steps, slots))] if whole else _stages(feed, components, steps, slots, beside)
    if options.deliver == "host":
        works.append(Work(DELIVER, deliver, beside[DELIVER], after=made))
    to_host = options.deliver == "host"
    last, places = ((DELIVER,), delivery.places) if to_host else (made, outputs)
    return StagedPipeline(works, last, first.device, clock, places, depth)


def _whole(feed: Feeder, steps: Mapping[str, Step], slots: Slots) -> Callable[[int], None]:
    def run(frame: int) -> None:
        feed(frame)
        slots.put(WHOLE, frame, steps[WHOLE].run())

    return run


def _stages(
    feed: Feeder,
    components: Mapping[str, Component],
    steps: Mapping[str, Step],
    slots: Slots,
    beside: Mapping[str, torch.cuda.Stream | None],
) -> list[Work]:
    def world(frame: int) -> None:
        feed(frame)
        for name, latent in zip((PICTURE, SOUND), steps[WORLD].run(), strict=True):
            slots.copy(f"latent of {name}", frame, latent)

    def decode(name: str) -> Callable[[int], None]:
        (latent,) = components[name].inputs.values()

        def run(frame: int) -> None:
            latent.copy_(slots.get(f"latent of {name}", frame))
            slots.copy(name, frame, steps[name].run())

        return run

    decoders = [Work(name, decode(name), beside[name], after=(WORLD,)) for name in (PICTURE, SOUND)]
    return [Work(WORLD, world), *decoders]
