"""The events that a cell's process sends to the process that runs the cells, the turns that it gets, and the channels.

An event is a line of JSON, `[number, event]`, with numbers from 0 on. The code of a cell may write to the channel as
well: what is no event is counted and skipped, and a number that is missing means that an event was lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from profiling.components.spec import Settings
from profiling.errors import printable
from profiling.metrics.sampling import Ready, StoppedBy, TakeTurns, Turn, WindowSamples
from profiling.results.environment import Environment
from profiling.results.measured import Start
from profiling.results.record import Status

#: Most bytes of an event, which bound the memory for a line that does not end.
LONGEST = 64 * 2**20
_FIRST = 200


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    pass


class Phase(_Event, frozen=True, tag="phase"):
    """The task has reached a phase."""

    phase: str


class Sections(_Event, frozen=True, tag="sections"):
    """Sections of the cell's record, by name."""

    sections: dict[str, Any]


class Waiting(_Event, frozen=True, tag="waiting"):
    """The cell is idle and waits: to prepare, for its first window, or, with the samples of the last, for the next."""

    ready: Ready | None = None
    window: WindowSamples | None = None


class End(_Event, frozen=True, tag="end"):
    """The cell has ended, or will not run; of the probe: the run is refused.

    Raises:
        ValueError: a status other than ok without a reason, or ok with one.

    """

    status: Status
    reason: str | None = None
    bad_input: bool = False
    out_of_memory: bool = False  # so that it is tried again alone where other cells held memory beside it

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.reason is None):
            raise ValueError(f"status {self.status} with the reason {self.reason}")


class Started(_Event, frozen=True, tag="started"):
    """The seconds that an application takes from the start of its process to its first output."""

    start: Start


class Probed(_Event, frozen=True, tag="probe"):
    """The result of the probe: resolved settings, what it knows of the environment, and variants that cannot run.

    `free` is the memory in bytes, by kind, that is free before the first cell; empty where no run uses it.
    """

    settings: Settings
    environment: Environment
    not_run: dict[str, End]
    free: dict[str, int] = {}


Event = Phase | Sections | Waiting | End | Started | Probed
Emit = Callable[[Event], None]
#: Events after which a task sends nothing more.
RESULTS = (End, Started, Probed)


class _Line(msgspec.Struct, array_like=True, frozen=True):
    number: int
    event: Event


_DECODER = msgspec.json.Decoder(_Line)


def sender(descriptor: int) -> Emit:
    """Return the function that writes events to the channel `descriptor`, in this process only.

    It raises a ValueError for an event that JSON cannot hold, or that is longer than `LONGEST` bytes.
    """
    owner, number = os.getpid(), 0

    def emit(event: Event) -> None:
        nonlocal number
        if os.getpid() != owner:  # the cell's code forked, and the child has returned into ours
            os._exit(1)
        line = msgspec.json.encode(_Line(number, event))
        if len(line) > LONGEST:
            raise ValueError(f"{len(line)} bytes in one section of the record; at most {LONGEST} can be sent")
        number += 1
        left = memoryview(b"\n%b\n" % line)  # the first newline ends what the cell's code may have written
        while left:
            left = left[os.write(descriptor, left) :]

    return emit


def turns_by(hand_over: Callable[[Waiting], Turn]) -> TakeTurns:
    """Return the function by which a cell takes turns: `hand_over` says that it waits, and returns the next turn."""

    def take_turns(ready: Ready, window: Callable[[Turn], WindowSamples]) -> StoppedBy | None:
        turn = hand_over(Waiting(ready=ready))
        while turn.seconds > 0:
            turn = hand_over(Waiting(window=window(turn)))
        return turn.stopped_by

    return take_turns


def turns_from(descriptor: int, emit: Emit) -> TakeTurns:
    """Return the function that waits for the turns which arrive on `descriptor`, blocked while there are none."""

    def hand_over(waiting: Waiting) -> Turn:
        emit(waiting)
        with open(descriptor, "rb", buffering=0, closefd=False) as turns:
            line = turns.readline()
        if not line.endswith(b"\n"):
            raise KeyboardInterrupt("the process that gives turns has ended")
        return msgspec.json.decode(line, type=Turn)

    return turns_by(hand_over)


class EventReader:
    """Decodes what arrives on a channel: it raises nothing, and holds at most `LONGEST` bytes."""

    def __init__(self) -> None:
        self.has_result = False
        self.lost = 0  # events
        self._line, self._next = bytearray(), 0
        self._strays, self._first_stray = 0, b""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that `chunk` completes."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._append(end)
            yield from self._take_line()
        self._append(rest)

    def close(self) -> None:
        """Count what arrived after the last newline."""
        for _ in self._take_line():
            self.lost += 1

    @property
    def notes(self) -> tuple[str, ...]:
        """One line about what was no event; empty if everything was."""
        if not self._strays:
            return ()
        counted = "1 line was no event" if self._strays == 1 else f"{self._strays} lines were no events, the first"
        first = printable(self._first_stray.decode(errors="replace"), 100)
        return (f"the cell's code wrote to the channel of its process: {counted}: {first}",)

    def _append(self, part: bytes) -> None:
        self._line += part[: LONGEST + 1 - len(self._line)]

    def _take_line(self) -> Iterator[Event]:
        line, self._line = self._line, bytearray()
        if not line.strip():
            return
        try:
            if len(line) > LONGEST:
                raise ValueError("too long")
            decoded = _DECODER.decode(line)
            if decoded.number < self._next:
                raise ValueError("a number that was there before")
        except (ValueError, RecursionError):
            self._strays += 1
            self._first_stray = self._first_stray or bytes(line[:_FIRST])
            return
        self.lost += decoded.number - self._next
        self._next = decoded.number + 1
        self.has_result = self.has_result or isinstance(decoded.event, RESULTS)
        yield decoded.event
