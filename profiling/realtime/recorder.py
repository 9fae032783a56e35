"""Records the frames of an application's own loop, to compare them with a frame rate and to explain slow ones.

    frames = FrameRecorder(fps=60)
    for action in game:
        with frames.frame():
            with frames.stage("world"):
                latent = world(action)
            with frames.stage("decode"):
                picture = decode(latent)
    frames.save("runs/mine")

Host times are taken at the ends of each block; device times by CUDA events that are read when a later frame begins or
ends, so that the loop never waits for the device because of the recorder. A frame that was read is a row of a journal
on the disk, which survives the death of the process.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import nvtx

from profiling.errors import InputError, check_whole, printable
from profiling.metrics.monitor import FrameMonitor
from profiling.realtime.cuda_timer import CudaTimer, Mark, timer_in_use, timer_of
from profiling.realtime.recorded_run import RecordedRun, recover

if TYPE_CHECKING:
    from profiling.report.result import RunResult

#: Frames between two readings of the allocator and of /proc, which take longer than the rest of recording a frame.
MEMORY_EVERY = 64
#: No kernel can be launched in a shorter time, so that two stages so close to each other share a mark.
SHORTEST_LAUNCH_NS = 4000
#: Names that the stage budget uses itself.
RESERVED = ("wait", "rest")

_now = time.perf_counter_ns
_domain: Any = nvtx.get_domain("profiling")


class _Block:
    """A frame or a stage: a context manager that is entered once, in one thread."""

    __slots__ = ("_outer", "_token", "begin_ns", "end", "end_ns", "marked_ns", "recorder", "start", "thread")
    recorder: FrameRecorder
    begin_ns: int
    end_ns: int  # 0 while the block is open
    start: Mark | None
    end: Mark | None

    def _enter(self, message: Any, before: tuple[Mark | None, int, int] = (None, 0, 0)) -> None:
        """Begin the block.

        `before` is the last mark of the frame, with its thread and time (ns). If so little time has passed since then
        that nothing can have been launched, the block begins at that mark, and no further event is recorded.
        """
        self.thread, self._outer = threading.get_ident(), _INNERMOST.get()
        self._token: Token[_Block | None] = _INNERMOST.set(self)
        _domain.push_range(message)
        mark, thread, marked_ns = before
        if mark is not None and thread == self.thread and _now() - marked_ns < SHORTEST_LAUNCH_NS:
            self.start = self.recorder.same_mark(mark)
        else:
            self.start = self.recorder.mark()
        self.begin_ns = _now()

    def _exit(self) -> None:
        self.end_ns = _now()
        self.end = self.recorder.mark()
        self.marked_ns = _now()  # recording the mark takes microseconds
        _domain.pop_range()
        try:
            _INNERMOST.reset(self._token)
        except ValueError:  # ended in another context, as a generator is that another task closes
            _INNERMOST.set(self._outer)


#: The innermost block that is open here. A context variable follows asyncio tasks; a new thread starts without one.
_INNERMOST: ContextVar[_Block | None] = ContextVar("profiling.realtime.recorder", default=None)


class Stage(_Block):
    """A stage of a frame. `name` begins with the names of the stages around it: "world/attention"."""

    __slots__ = ("_parent", "frame", "inner_ms", "inner_ns", "name")
    _parent: Stage | None

    def __init__(self, frame: Frame, name: str) -> None:
        self.recorder, self.frame, self.name = frame.recorder, frame, name
        self.begin_ns = self.end_ns = self.inner_ns = 0  # inner: of the stages nested in this one
        self.inner_ms = 0.0
        self.start = self.end = self._parent = None

    def __enter__(self) -> Stage:
        """Begin the stage."""
        around = _INNERMOST.get()
        if isinstance(around, Stage) and around.frame is self.frame and around.is_open_here:
            self._parent, self.name = around, f"{around.name}/{self.name}"
        message = self.recorder.range_message(self.name)
        frame, last = self.frame, self.frame.stages[-1:]
        before = (
            (last[0].end, last[0].thread, last[0].marked_ns) if last else (frame.start, frame.thread, frame.begin_ns)
        )
        frame.begun.append(self)
        self._enter(message, before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the stage; an exception marks the frame and goes on."""
        self._exit()
        if self._parent is not None:
            self._parent.inner_ns += self.end_ns - self.begin_ns
        if kind is not None:
            self.frame.failed = True
        self.frame.stages.append(self)
        if self.frame.is_read:
            self.recorder.lose(self)

    @property
    def is_open_here(self) -> bool:
        """Whether this thread has begun the stage and not ended it."""
        return not self.end_ns and self.thread == threading.get_ident()

    @property
    def host_ms(self) -> float:
        """Host time without that of the stages nested in this one."""
        return (self.end_ns - self.begin_ns - self.inner_ns) / 1e6

    def read(self, timer: CudaTimer) -> float | None:
        """Return the device time in ms without that of the stages nested in this one; those must be read before."""
        if self.start is None or self.end is None:
            return None
        device_ms = timer.ms(self.start, self.end)
        if self._parent is not None:
            self._parent.inner_ms += device_ms
        return device_ms - self.inner_ms


class Frame(_Block):
    """A frame of the loop. `stage()` opens a stage of it from any thread."""

    __slots__ = ("begun", "failed", "follows_idle", "is_read", "number", "observed", "stages")

    def __init__(self, recorder: FrameRecorder) -> None:
        self.recorder = recorder
        self.begin_ns = self.end_ns = 0
        self.start = self.end = None
        self.number = 0  # below 0: a warm-up frame
        self.failed = self.is_read = False
        self.follows_idle = True  # the device had finished all frames before this one when it began
        self.begun: list[Stage] = []  # appended to by several threads, which is atomic
        self.stages: list[Stage] = []  # ended; nested ones before those around them
        self.observed: Mapping[str, float] = {}

    def stage(self, name: str) -> Stage:
        """Return a stage of this frame, for threads that have not begun the frame themselves.

        Raises:
            InputError: when it begins: `name` is no text, or reserved.

        """
        return Stage(self, name)

    def __enter__(self) -> Frame:
        """Begin the frame.

        Raises:
            InputError: a frame of this recorder is open here already, or the recorder is closed.
            OSError: the folder of the first frame cannot be made.

        """
        block = _INNERMOST.get()
        while block is not None:
            if isinstance(block, Frame) and block.recorder is self.recorder and not block.end_ns:
                raise InputError("frame(): a frame is open here already. End it before the next one begins.")
            block = block._outer
        self.recorder.begin(self)
        self._enter(self.recorder.range_message("frame"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the frame; an exception marks it and goes on."""
        self._exit()
        self.failed = self.failed or kind is not None
        self.recorder.finish(self)

    @property
    def is_over(self) -> bool:
        """Whether the frame and all of its stages have ended."""
        return self.end_ns > 0 and len(self.stages) == len(self.begun)

    @property
    def last_marks(self) -> list[Mark]:
        """The marks that the device must pass before the frame is delivered: its own, of other threads and streams."""
        if self.end is None:
            return []
        others = [stage.end for stage in self.stages if stage.thread != self.thread]
        others += [stage.end for stage in self.stages if stage.end is not None and stage.end[1] != self.end[1]]
        return [self.end, *filter(None, others)]


class FrameRecorder:
    """Records frames, to be compared with `fps` frames a second.

    - A stage belongs to the frame that is open in its thread or asyncio task; in another thread, to the only open frame
      (`frame.stage(name)` names one where several are open). Stages of one name add up; a stage inside another has the
      name "outer/inner", and its time is not part of that of the outer one, so that stages add up to the frame.
    - Frames of several threads are frames of one loop, in the order in which they began: a frame is delivered after
      those before it, and its time counts from the delivery of the one before. Independent loops need a recorder each.
    - An exception in a frame or stage goes on to the caller; the frame is recorded and marked.

    Args:
        fps: target frame rate, frames/s.
        device: "cuda", "cuda:N", or "cpu" for host times only. Default: the current CUDA device from the first frame on
            at whose begin this process uses CUDA.
        warmup_frames: frames at the start that are not recorded.
        folder: where the journal is written. Default: a new folder in runs/realtime, made when the first frame begins.

    Raises:
        InputError: an option that is out of range, no such device, or a folder that holds a run.

    """

    def __init__(
        self,
        fps: float = 60.0,
        device: str | None = None,
        *,
        warmup_frames: int = 0,
        folder: str | Path | None = None,
    ) -> None:
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf:
            raise InputError(f"fps={fps!r} must be a number above 0 (frames/s).")
        check_whole("warmup_frames", warmup_frames, 0)
        self._timer = None if device is None else timer_of(device)
        self._device = "cpu" if self._timer is None else str(self._timer.device)
        self._look_for_device = device is None
        self._warmup = warmup_frames
        self._run = RecordedRun(float(fps), warmup_frames, None if folder is None else Path(folder))
        self._monitor: FrameMonitor | None = None
        self._close_monitor: Callable[[], object] = lambda: None
        self._is_closed = False
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._begun = 0
        self._open: list[Frame] = []
        self._unread: deque[Frame] = deque()  # in the order in which they began
        self._messages: dict[str, Any] = {}
        self._origin_ns = 0  # when the first recorded frame began
        self._delivered_ns = -math.inf  # when the last frame that was read had been delivered
        self._device_end: tuple[Mark, float] | None = None  # its last mark, and when the device passed that

    def frame(self) -> Frame:
        """Return the next frame, to be entered with `with`."""
        return Frame(self)

    def stage(self, name: str) -> Stage:
        """Return a stage of the frame that is open here, to be entered with `with`.

        Raises:
            InputError: no frame is open here, or several are in other threads; or, when the stage begins, `name` is no
                text or reserved.

        """
        block = _INNERMOST.get()
        while block is not None:
            if block.recorder is self and not block.end_ns:
                return Stage(block if isinstance(block, Frame) else block.frame, name)  # pyright: ignore
            block = block._outer
        frames = self._open[:2]
        if len(frames) == 1:
            return Stage(frames[0], name)
        reason = "several frames are open: use frame.stage(…)" if frames else "no frame is open: open frames.frame()"
        raise InputError(f"stage({name!r}): {reason} around it.")

    def save(self, folder: str | Path | None = None) -> RunResult:
        """Write all frames so far as a run of target realtime: `results.jsonl`, `environment.json`, `report.html`, ….

        Waits for the device to finish frames that have ended. Recording can go on, and a later `save` writes all frames
        again. Default folder: that of the journal.

        Raises:
            InputError: no frame has ended, or the folder holds a run that this recorder did not write.
            OSError: a file cannot be written.

        """
        self._read_frames(wait=True)
        return self._run.save(None if folder is None else Path(folder), self._device, self._monitor)

    @staticmethod
    def recover(folder: str | Path) -> RunResult:
        """Save the frames in the journal of a process that ended before it saved them, in their folder.

        Raises:
            InputError: the folder holds no such journal.
            OSError: a file cannot be written.

        """
        return recover(Path(folder))

    def close(self) -> None:
        """End the recording. Frames can still be saved; those that never are stay in the journal."""
        self._read_frames(wait=True)
        with self._lock:
            self._is_closed = True
            self._close_monitor()
        self._run.close()

    def __enter__(self) -> FrameRecorder:
        """Return the recorder, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the recorder."""
        self.close()

    # Called by frames and stages.

    def range_message(self, name: str) -> Any:
        """Return what names a block's range in Nsight Systems.

        Raises:
            InputError: `name` is no text, or reserved.

        """
        try:
            return self._messages[name]
        except (KeyError, TypeError):
            pass
        if not isinstance(name, str) or not name.strip() or name in RESERVED:
            raise InputError(
                f"stage({name!r}): the name must be text, and not one of {', '.join(RESERVED)}. Choose another name."
            )
        self._messages[name] = _domain.get_event_attributes(message=printable(name))
        return self._messages[name]

    def mark(self) -> Mark | None:
        """Record an event on the current stream; None without a device clock."""
        if self._timer is None:
            return None
        try:
            return self._timer.mark()
        except Exception as error:  # the application's own error handling must see what failed, not the recorder's
            self._lose_device(error)
            return None

    def same_mark(self, mark: Mark) -> Mark | None:
        """Return `mark` where the current stream is still its stream, else a new one; None without a device clock."""
        timer = self._timer
        return mark if timer is not None and timer.is_current(mark) else self.mark()

    def lose(self, stage: Stage) -> None:
        """Note that a stage of another thread began when its frame was complete."""
        self._run.note(f"stages {stage.name!r} that began after their frames had ended are not recorded")

    def begin(self, frame: Frame) -> None:
        """Give the frame its number, before any of its times is taken."""
        self._read_frames()
        with self._lock:
            if self._is_closed:
                raise InputError("frame(): this recorder is closed. Make another FrameRecorder.")
            if self._monitor is None:
                self._run.open()
                self._monitor = FrameMonitor(None if self._timer is None else self._timer.device, every=MEMORY_EVERY)
                self._close_monitor = weakref.finalize(self, self._monitor.close)
            if self._look_for_device and (timer := timer_in_use()) is not None:
                self._timer, self._device, self._look_for_device = timer, str(timer.device), False
                self._monitor.use(timer.device)
            frame.number = self._begun - self._warmup
            frame.follows_idle = not self._unread
            self._begun += 1
            self._open.append(frame)
            self._unread.append(frame)
            if frame.number == 0:
                self._monitor.start()

    def finish(self, frame: Frame) -> None:
        """Observe what happened in the frame; read it where no device is to be waited for."""
        with self._lock:
            self._open.remove(frame)
            if frame.number >= 0 and self._monitor is not None and not self._is_closed:
                try:
                    frame.observed = self._monitor(frame.number, (frame.end_ns - frame.begin_ns) / 1e6)
                except Exception as error:  # a device that failed must not end the application here
                    self._run.note(f"from frame {frame.number} on, causes may be missing: {error}")
        if self._timer is None:  # with a device the frame is read when a later one begins: it is not done yet
            self._read_frames()

    def _read_frames(self, *, wait: bool = False) -> None:
        """Write the rows of the frames that are over and that the device has finished, in order."""
        if not self._reading.acquire(blocking=wait):
            return  # another thread reads
        try:
            while self._unread and self._unread[0].is_over and self._is_delivered(self._unread[0], wait=wait):
                frame = self._unread[0]
                frame.is_read = True
                self._read(frame)
                self._unread.popleft()
                frame.stages.clear()  # they refer to the frame, and the garbage collector should not have to find that
                frame.begun.clear()
        finally:
            self._reading.release()

    def _is_delivered(self, frame: Frame, *, wait: bool) -> bool:
        timer = self._timer
        if timer is None:
            return True
        try:
            for mark in frame.last_marks:
                if wait:
                    timer.wait(mark)
                elif not timer.is_done(mark):
                    return False
        except Exception as error:
            self._lose_device(error)
        return True

    def _read(self, frame: Frame) -> None:
        device_end_ns, device_ms = self._device_times(frame)
        delivered_ns = max(frame.end_ns, device_end_ns, self._delivered_ns)
        before_ns, self._delivered_ns = self._delivered_ns, delivered_ns
        if frame.number < 0:
            return
        if frame.number == 0:
            self._origin_ns = frame.begin_ns
        row = {
            "action_ms": (frame.begin_ns - self._origin_ns) / 1e6,
            "delivered_ms": (delivered_ns - self._origin_ns) / 1e6,
            "frame_ms": (delivered_ns - max(frame.begin_ns, before_ns)) / 1e6,
            "latency_ms": (delivered_ns - frame.begin_ns) / 1e6,
            "exceptions": frame.failed,
            **frame.observed,
        }
        outside_ms = (frame.end_ns - frame.begin_ns) / 1e6
        for stage in frame.stages:
            name = f"host_{stage.name}_ms"
            row[name] = row.get(name, 0.0) + stage.host_ms
            outside_ms -= stage.host_ms
            row.setdefault(f"device_{stage.name}_ms", device_ms.get(stage.name, math.nan))
        if all(stage.thread == frame.thread for stage in frame.stages):  # otherwise stages overlap
            row["rest_ms"] = outside_ms
        self._run.append(row)

    def _device_times(self, frame: Frame) -> tuple[float, dict[str, float]]:
        """Return when the device finished the frame (host's clock, ns), and the device time of each stage (ms).

        The device began the frame when the host did, or, if it was still busy with the frame before, as long after that
        frame's end as its own clock says. It had finished when it was seen to have.
        """
        timer, seen_ns = self._timer, _now()
        if timer is None or frame.start is None or frame.end is None:
            return -math.inf, {}
        times: dict[str, float] = {}
        try:
            began_ns = float(frame.begin_ns)
            if self._device_end is not None and not frame.follows_idle:
                mark, passed_ns = self._device_end
                began_ns = max(began_ns, passed_ns + 1e6 * timer.ms(mark, frame.start))
            span_ms = max(timer.ms(frame.start, mark) for mark in frame.last_marks)
            for stage in frame.stages:
                stage_ms = stage.read(timer)
                if stage_ms is not None:
                    times[stage.name] = times.get(stage.name, 0.0) + stage_ms
        except Exception as error:
            self._lose_device(error)
            return -math.inf, {}
        end_ns = min(began_ns + 1e6 * span_ms, seen_ns)
        if self._device_end is not None:
            timer.release(self._device_end[0])
        self._device_end = (frame.end, end_ns)
        marks = [frame.start, *(mark for stage in frame.stages for mark in (stage.start, stage.end))]
        timer.release(*{id(mark): mark for mark in marks}.values())
        return end_ns, times

    def _lose_device(self, error: Exception) -> None:
        """Go on without device times."""
        self._timer = None
        self._run.note(f"device times end: {type(error).__name__}: {error}")
