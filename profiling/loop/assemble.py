"""From prepared steps to a pipeline: actions and noise in, hand-over between stages, copies to the player."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from profiling.core.components import Component
from profiling.loop.actions import Actions
from profiling.loop.options import LoopOptions
from profiling.loop.pipeline import Clock, StagedPipeline, Work
from profiling.variants.variant import Step

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
