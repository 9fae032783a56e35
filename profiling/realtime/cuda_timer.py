"""Device times of an application's own frames, by CUDA events that are read later: nothing waits for the device."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from profiling.errors import InputError


class Mark:
    """An event on a stream: the moment at which the device passes it."""

    __slots__ = ("event", "recorded_ns", "stream", "thread")
    event: Any
    stream: int  # its handle
    thread: int  # that recorded it
    recorded_ns: int  # when that thread had recorded it, on the host's clock

    def __init__(self, event: Any) -> None:
        self.event = event


class CudaTimer:
    """Records events on the current stream of one CUDA device, and uses them again once they were read.

    Every method may raise what torch raises when the device has failed.
    """

    def __init__(self, index: int) -> None:
        import torch

        self.device = torch.device("cuda", index)
        self._torch, self._index = torch, index
        self._streams: dict[int, Any] = {}
        self._idle: list[Mark] = []
        # The functions beneath torch's: a mark is on the path of every stage, and these take half of the time.
        core: Any = torch._C
        self._raw_stream, self._is_capturing = core._cuda_getCurrentRawStream, core._cuda_isCurrentStreamCapturing
        event: Any = core._CudaEventBase
        self._record, self._query, self._elapsed = event.record, event.query, event.elapsed_time

    def mark(self) -> Mark | None:
        """Record an event on this thread's current stream; None while the stream is being captured."""
        if self._is_capturing():
            return None
        handle: int = self._raw_stream(self._index)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = self._torch.cuda.current_stream(self._index)
        try:
            mark = self._idle.pop()
        except IndexError:
            mark = Mark(self._torch.cuda.Event(enable_timing=True))
        self._record(mark.event, stream)
        mark.stream = handle
        return mark

    def is_current(self, mark: Mark) -> bool:
        """Return whether this thread's current stream is the one of the mark."""
        return self._raw_stream(self._index) == mark.stream

    def is_done(self, mark: Mark) -> bool:
        """Return whether the device has passed the mark."""
        return self._query(mark.event)

    def wait(self, mark: Mark) -> None:
        """Wait until the device has passed the mark."""
        mark.event.synchronize()

    def ms(self, start: Mark, end: Mark) -> float:
        """Return the milliseconds on the device between two marks that it has passed."""
        return self._elapsed(start.event, end.event)

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

    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise InputError(f"device={device} is not a device. Use cpu, cuda or cuda:N.") from None
    if wanted.type != "cuda":
        raise InputError(f"device={device}: only cpu and cuda are supported.")
    if not torch.cuda.is_available():
        raise InputError(f"device={device}: torch {torch.__version__} sees no GPU. Use device='cpu'.")
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    if index >= torch.cuda.device_count():
        raise InputError(f"device={device}: this machine has {torch.cuda.device_count()} GPUs; the first is cuda:0.")
    return CudaTimer(index)
