"""What makes a frame: stages that are begun in order and waited for at the end, on one stream or on several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch


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
