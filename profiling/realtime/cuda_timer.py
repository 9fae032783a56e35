"""Device times of an application's own frames, by CUDA events that are read later: nothing waits for the device."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

#: No kernel can be launched in a shorter time, so that two ends of blocks so close to each other share a mark.
SHORTEST_LAUNCH_NS = 4000


class Mark:
    """An event on a stream: the moment at which the device passes it."""

    __slots__ = ("event", "quiet_ns", "stream", "thread")
    event: Any
    stream: int  # its handle
    thread: int  # that recorded it
    quiet_ns: int  # until when that thread is known to have launched nothing after it, on the host's clock

    def __init__(self, event: Any) -> None:
        self.event = event


class CudaTimer:
    """Records events on the current stream of one CUDA device, and uses them again once they were read.

    A mark is on the path of every stage, so this calls the functions beneath torch's, which take half of the time, as
    local variables: Python 3.11 calls a function that is an attribute of an instance several times slower.
    `elapsed(event, event)` returns the ms between two that the device has passed. It, `is_done` and `wait` may raise
    what torch raises when the device has failed. `mark` never does, since the application's own error handling must see
    what failed: `failure` holds it, and there are no further marks.
    """

    def __init__(self, index: int) -> None:
        import torch

        self.device = torch.device("cuda", index)
        self.failure: Exception | None = None
        self._index = index
        self._streams: dict[int, Any] = {}
        self._idle: list[Mark] = []
        core: Any = torch._C
        self._raw_stream, self._is_capturing = core._cuda_getCurrentRawStream, core._cuda_isCurrentStreamCapturing
        event: Any = core._CudaEventBase
        self._record, self._query, self.elapsed = event.record, event.query, event.elapsed_time
        self._current_stream, self._new_event = torch.cuda.current_stream, partial(torch.cuda.Event, enable_timing=True)

    def mark(self, marks: list[Mark], thread: int, now_ns: int, own: Mark | None = None) -> Mark | None:
        """Return a mark on this thread's current stream; None while the stream is being captured.

        That is the last one of `marks`, those of a frame, if so little time has passed since its `quiet_ns` that
        nothing can have been launched; else a new one, which is appended. The caller sets `quiet_ns` when it hands
        control back to the application, so that the time of the recorder is not taken for that of a launch. `own` is
        the mark at which a block began that ends now: it is not used again, so that a launch inside the block is not
        lost.
        """
        raw_stream, is_capturing, record, idle = self._raw_stream, self._is_capturing, self._record, self._idle
        try:
            handle: int = raw_stream(self._index)
            if marks:
                last = marks[-1]
                if (
                    last is not own
                    and now_ns - last.quiet_ns < SHORTEST_LAUNCH_NS
                    and last.stream == handle
                    and last.thread == thread
                ):
                    return last
            if self.failure is not None or (handle and is_capturing()):  # CUDA does not capture its default stream, 0
                return None
            stream = self._streams.get(handle)
            if stream is None:
                stream = self._streams[handle] = self._current_stream(self._index)
            try:
                mark = idle.pop()
            except IndexError:
                mark = Mark(self._new_event())
            record(mark.event, stream)
        except Exception as error:
            self.failure = error
            return None
        mark.stream, mark.thread, mark.quiet_ns = handle, thread, now_ns
        marks.append(mark)
        return mark

    def is_done(self, mark: Mark) -> bool:
        """Return whether the device has passed the mark."""
        return self._query(mark.event)

    def wait(self, mark: Mark) -> None:
        """Wait until the device has passed the mark."""
        mark.event.synchronize()

    def release(self, marks: Iterable[Mark]) -> None:
        """Use the events of these marks again."""
        self._idle += marks


def timer_in_use() -> CudaTimer | None:
    """Return a timer of the current device if this process uses CUDA by now; never initialises CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return CudaTimer(torch.cuda.current_device())


def timer_of(device: str) -> CudaTimer | None:
    """Return the timer of a device that the user named; None for cpu.

    Raises:
        InputError: no such device.

    """
    if device == "cpu":
        return None
    import torch

    from profiling.machine.devices import named_device

    chosen = named_device(device)
    if chosen.type == "cpu":
        return None
    return CudaTimer(torch.cuda.current_device() if chosen.index is None else chosen.index)
