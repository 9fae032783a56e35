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
import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import nvtx

from profiling.errors import InputError, check_number, check_whole, printable
from profiling.metrics.monitor import FrameMonitor
from profiling.realtime.cuda_timer import CudaTimer, Mark, timer_in_use, timer_of
from profiling.realtime.recorded_run import MEASURED, RecordedRun, recover_run
from profiling.results.loop import BUDGET_NAMES

if TYPE_CHECKING:
    from profiling.report.result import RunResult

#: Frames between two readings of the allocator and of /proc, which take longer than the rest of recording a frame.
MEMORY_EVERY = 64
#: An ended frame waits for its open stages, and later frames for an open one, until so many more have begun.
PATIENCE = 256
#: Most characters in the name of a stage, with the names of those around it.
LONGEST_NAME = 200

# Recording is on the path of every frame: what is called there is bound here, and short functions are written out.
now_ns, _thread_id = time.perf_counter_ns, threading.get_ident
_domain: Any = nvtx.get_domain("profiling")
_push_range, _pop_range = _domain.push_range, _domain.pop_range
_NOT_OBSERVED: Mapping[str, float] = {}
_FRAME: Any = _domain.get_event_attributes(message="frame")


class _Block:
    """A frame or a stage: a context manager that is entered once, in one thread."""

    __slots__ = ("_outer", "begin_ns", "end", "end_ns", "recorder", "start", "thread")
    recorder: FrameRecorder
    thread: int
    begin_ns: int
    end_ns: int  # 0 while the block is open
    start: Mark | None
    end: Mark | None
    _outer: _Block | None


#: The innermost block that is open here. A context variable follows asyncio tasks; a new thread starts without one.
_INNERMOST: ContextVar[_Block | None] = ContextVar("profiling.realtime.recorder", default=None)


class Stage(_Block):
    """A stage of a frame. `name` begins with the names of the stages around it: "world/attention"."""

    __slots__ = ("_parent", "frame", "inner_ms", "inner_ns", "name")
    _parent: Stage | None

    def __init__(self, frame: Frame, name: str) -> None:
        self.recorder, self.frame, self.name = frame.recorder, frame, name
        self.end_ns = self.inner_ns = 0  # inner: of the stages nested in this one
        self.inner_ms = 0.0
        self._parent = None

    def __enter__(self) -> Stage:
        frame, recorder = self.frame, self.recorder
        timer = recorder.timer
        entered_ns = 0 if timer is None else now_ns()
        self.thread = thread = _thread_id()
        self._outer = around = _INNERMOST.get()
        if (
            around is not frame
            and isinstance(around, Stage)
            and around.frame is frame
            and not around.end_ns
            and around.thread == thread
        ):
            self._parent, self.name = around, f"{around.name}/{self.name}"
        try:
            message = recorder.messages[self.name]
        except (KeyError, TypeError):
            message = recorder.range_message(self.name)
        frame.begun.append(self)
        _INNERMOST.set(self)
        _push_range(message)
        if timer is None or (mark := timer.mark(frame.marks, thread, entered_ns)) is None:
            self.start = None
            self.begin_ns = now_ns()
        else:
            self.start = mark
            self.begin_ns = mark.quiet_ns = now_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_ns = end_ns = now_ns()
        frame, parent = self.frame, self._parent
        timer = self.recorder.timer
        self.end = mark = None if timer is None else timer.mark(frame.marks, self.thread, end_ns, self.start)
        _pop_range()
        _INNERMOST.set(self._outer)  # a token would not do: a generator may be closed in the context of another task
        if parent is not None:
            parent.inner_ns += end_ns - self.begin_ns
        if kind is not None:
            frame.failed = True
        if mark is not None:
            mark.quiet_ns = now_ns()
        frame.stages.append(self)  # from here on another thread may read the frame, and use its marks again
        if frame.is_read and self.begin_ns > frame.end_ns:  # others are known to be missing
            self.recorder._run.note(f"stages {self.name!r} that began after their frames had ended are not recorded")


class Frame(_Block):
    """A frame of the loop. `stage()` opens a stage of it from any thread."""

    __slots__ = ("begun", "failed", "follows_idle", "is_aside", "is_read", "marks", "number", "observed", "stages")

    def __init__(self, recorder: FrameRecorder) -> None:
        self.recorder = recorder
        self.end_ns = 0
        self.number = 0  # below 0: a warm-up frame
        self.failed = self.is_read = False
        self.is_aside = False  # later frames were read before it, since it had not ended
        self.follows_idle = True  # the device had finished all frames before this one when it began
        # Several threads append to these lists, which is atomic.
        self.begun: list[Stage] = []
        self.stages: list[Stage] = []  # ended; nested ones before those around them
        self.marks: list[Mark] = []
        self.observed: Mapping[str, float] = _NOT_OBSERVED

    def stage(self, name: str) -> Stage:
        """Return a stage of this frame, for threads that have not begun the frame themselves.

        Raises:
            InputError: when it begins: `name` is no short printable text, or reserved.

        """
        return Stage(self, name)

    def __enter__(self) -> Frame:
        """Begin the frame.

        Raises:
            InputError: a frame of this recorder is open here already, the recorder is closed, or the working directory
                was deleted.
            OSError: the folder of the first frame cannot be made.

        """
        recorder = self.recorder
        self._outer = block = _INNERMOST.get()
        while block is not None:
            if isinstance(block, Frame) and block.recorder is recorder and not block.end_ns:
                raise InputError("frame(): a frame is open here already. End it before the next one begins.")
            block = block._outer
        self.thread = _thread_id()
        recorder.begin(self)
        _INNERMOST.set(self)
        _push_range(_FRAME)
        timer = recorder.timer
        self.start = mark = None if timer is None else timer.mark(self.marks, self.thread, 0)
        self.begin_ns = now_ns()
        if mark is not None:
            mark.quiet_ns = self.begin_ns
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns, recorder = now_ns(), self.recorder
        timer = recorder.timer
        self.end = None if timer is None else timer.mark(self.marks, self.thread, end_ns, self.start)
        _pop_range()
        _INNERMOST.set(self._outer)
        if kind is not None:
            self.failed = True
        recorder.finish(self, end_ns)

    def last_marks(self) -> list[Mark]:
        """Return the marks that the device must pass before the frame is delivered: the last of threads and streams.

        There are none where a stream was being captured when the frame began or ended.
        """
        end, thread = self.end, self.thread
        if end is None or self.start is None:
            return []
        marks, stream = [end], end.stream
        for stage in self.stages:
            mark = stage.end
            if mark is not None and (mark.stream != stream or mark.thread != thread):
                marks.append(mark)
        return marks


class FrameRecorder:
    """Records frames, to be compared with `fps` frames a second.

    - A stage belongs to the frame that is open in its thread or asyncio task; in another thread, to the only open frame
      (`frame.stage(name)` names one where several are open). Stages of one name add up; a stage inside another has the
      name "outer/inner", and its time is not part of that of the outer one, so that stages add up to the frame.
    - Frames of several threads are frames of one loop, in the order in which they began: a frame is delivered after
      those before it, and its time counts from the delivery of the one before. Independent loops need a recorder each.
    - An exception in a frame or stage goes on to the caller; the frame is recorded and marked.
    - A frame that has ended is written; a stage of it that is still open by then is missing, and the record says so.
    - Frames of a forked process are not recorded: it needs a recorder of its own.

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
        check_number("fps", fps, above=0)
        check_whole("warmup_frames", warmup_frames, 0)
        self.timer = None if device is None else timer_of(device)
        self._device = "cpu" if self.timer is None else str(self.timer.device)
        self._look_for_device = device is None
        self._warmup = warmup_frames
        self._run = RecordedRun(float(fps), warmup_frames, None if folder is None else Path(folder))
        self._end = weakref.finalize(self, self._run.end)
        self._monitor: FrameMonitor | None = None
        self._close_monitor: Callable[[], object] = lambda: None
        self._is_closed = False
        self._is_forked = self._said_forked = False
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._begun = 0
        self._open: list[Frame] = []
        self._unread: deque[Frame] = deque()  # in the order in which they began, but for those that were set aside
        self._missing: Counter[str] = Counter()  # stages that had not ended when their frames were written, by name
        self.messages: dict[str, Any] = {}  # by name of a stage, in Nsight Systems
        self._origin_ns: int | None = None  # when the first frame that was read had begun
        self._delivered_ns = -math.inf  # when the last frame that was read had been delivered
        # For the frame that was read last: its last mark, the time when the device passed it (ns), and all its marks.
        # Their events are reused only once the next frame has been read, whose device time counts from the last mark.
        self._device_end: tuple[Mark, float, list[Mark]] | None = None
        _recorders.add(self)

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

        Waits for the device to finish frames that have ended, but not for stages that are open. Recording can go on,
        and a later `save` writes all frames again. Default folder: that of the journal.

        Raises:
            InputError: no frame has ended, the folder holds a run that this recorder did not write, the working
                directory was deleted, or this process was forked from the one that records.
            OSError: a file cannot be written; if it is the report, the frames are saved.

        """
        if self._is_forked:
            raise InputError(
                "save(): this process was forked from the one that records. Make another FrameRecorder in it."
            )
        self._read_frames(wait=True)
        missing = []
        if aside := sum(frame.is_aside for frame in self._open):
            missing.append(f"frames that had not ended are missing: {aside:,}")
        if self._missing:
            names = ", ".join(f"{name!r} ({count:,})" for name, count in self._missing.items())
            missing.append(f"stages that had not ended when their frames were written are missing: {names}")
        return self._run.save(None if folder is None else Path(folder), self._device, self._monitor, missing)

    recover = staticmethod(recover_run)

    def close(self) -> None:
        """End the recording. Frames can still be saved; those that never are stay in the journal."""
        if self._is_forked:  # the journal is that of another process
            return
        self._read_frames(wait=True)
        with self._lock:
            self._is_closed = True
            self._close_monitor()
        self._run.close()

    def __enter__(self) -> FrameRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Called by frames and stages.

    def range_message(self, name: str) -> Any:
        """Return what names a block's range in Nsight Systems.

        Raises:
            InputError: `name` is no short printable text, or reserved: it is a key in the files of the run.

        """
        is_text = isinstance(name, str) and name.strip() and name.isprintable() and len(name) <= LONGEST_NAME
        if not is_text or name in BUDGET_NAMES:
            raise InputError(
                f"stage({printable(repr(name), 60)}): the name must be printable text of at most {LONGEST_NAME} "
                f"characters, and not one of {', '.join(BUDGET_NAMES)}. Choose another name."
            )
        self.messages[name] = _domain.get_event_attributes(message=printable(name))
        return self.messages[name]

    def begin(self, frame: Frame) -> None:
        """Give the frame its number, before any of its times is taken."""
        if self._is_forked:
            if not self._said_forked:
                self._said_forked = True
                print(
                    "FrameRecorder: frames of a forked process are not recorded. Make another FrameRecorder in it.",
                    file=sys.stderr,
                )
            self._open.append(frame)
            return
        if self._unread:
            self._read_frames()
        with self._lock:
            if self._is_closed:
                raise InputError("frame(): this recorder is closed. Make another FrameRecorder.")
            if self._look_for_device and (timer := timer_in_use()) is not None:
                self.timer, self._device, self._look_for_device = timer, str(timer.device), False
                if self._monitor is not None:
                    self._monitor.use(timer.device)
            if self._monitor is None:
                self._run.open()
                device = None if self.timer is None else self.timer.device
                self._monitor = FrameMonitor(device, every=MEMORY_EVERY, apart=True)
                self._close_monitor = weakref.finalize(self, self._monitor.close)
            frame.number = self._begun - self._warmup
            frame.follows_idle = not self._unread
            self._begun += 1
            self._open.append(frame)
            self._unread.append(frame)
            if frame.number == 0:
                self._monitor.start()

    def finish(self, frame: Frame, end_ns: int) -> None:
        """Observe what happened in the frame; read it where no device is to be waited for."""
        if self._is_forked:
            if frame in self._open:  # else it had begun before the fork
                self._open.remove(frame)
            return
        timer = self.timer
        if timer is not None and timer.failure is not None:
            self._lose_device(timer.failure)
        with self._lock:
            self._open.remove(frame)
            if frame.number >= 0 and self._monitor is not None and not self._is_closed:
                try:
                    frame.observed = self._monitor(frame.number, (end_ns - frame.begin_ns) / 1e6)
                except Exception as error:  # a device that failed must not end the application here
                    self._run.note(f"from frame {frame.number} on, causes may be missing: {error}")
            frame.end_ns = end_ns  # from here on another thread may read it
            if frame.is_aside:
                self._unread.append(frame)
        if self.timer is None:  # with a device the frame is read when a later one begins: it is not done yet
            self._read_frames()

    def _read_frames(self, *, wait: bool = False) -> None:
        """Write the rows of the frames that have ended and that the device has finished, in order.

        With `wait`, which waits for the device, and behind `PATIENCE` later frames, stages that are open are left out,
        and frames that are open are set aside.
        """
        if not self._reading.acquire(blocking=wait):
            return  # another thread reads
        try:
            while self._unread:
                frame = self._unread[0]
                if not frame.end_ns or len(frame.stages) != len(frame.begun):
                    if not wait and self._begun - self._warmup - frame.number <= PATIENCE:
                        return
                    if not frame.end_ns:
                        if not self._set_aside(frame):
                            return
                        continue
                    self._missing.update(stage.name for stage in list(frame.begun) if not stage.end_ns)
                timer = self.timer
                try:
                    is_read = self._read(frame, timer, wait=wait)
                except Exception as error:
                    if timer is None:
                        raise
                    self._lose_device(error)
                    is_read = self._read(frame, None, wait=wait)
                if not is_read:
                    return
                self._unread.popleft()
                frame.stages.clear()  # they refer to the frame, and the garbage collector should not have to find that
                frame.begun.clear()
        finally:
            self._reading.release()

    def _set_aside(self, frame: Frame) -> bool:
        """Let later frames that have ended be read before the first unread one; return False if there are none."""
        with self._lock:
            if not any(later.end_ns for later in self._unread):
                return False
            if not frame.end_ns:  # it may have ended meanwhile
                self._unread.popleft().is_aside = True
            return True

    def _read(self, frame: Frame, timer: CudaTimer | None, *, wait: bool) -> bool:
        """Write the row of a frame to the journal; return False, writing nothing, while the device works on the frame.

        `timer` reads the times on the device; None: the row has times of the host only. With `wait`, wait for the
        device. An error of the device is raised before anything has changed.
        """
        marks, passed_ns = [] if timer is None else frame.last_marks(), -math.inf
        if timer is not None and marks:
            for mark in marks:
                if wait:
                    timer.wait(mark)
                elif not timer.is_done(mark):
                    return False
            passed_ns = self._passed_ns(frame, timer, marks)
        frame.is_read = True
        delivered_ns = max(frame.end_ns, passed_ns, self._delivered_ns)
        if frame.number >= 0:
            if self._origin_ns is None:
                self._origin_ns = frame.begin_ns
            row = self._row(frame, delivered_ns, self._origin_ns, timer if marks else None)
            self._run.append(row, frame.number, frame.observed)
        self._delivered_ns = delivered_ns
        if timer is not None and marks:
            if self._device_end is not None:
                timer.release(self._device_end[2])
            self._device_end = marks[0], passed_ns, frame.marks
        return True

    def _row(self, frame: Frame, delivered_ns: float, origin_ns: int, timer: CudaTimer | None) -> list[float]:
        """Return the row of a frame; with `timer`, with the device time of its stages.

        The time of a stage does not contain that of the stages nested in it, which ended before.
        """
        run, thread = self._run, frame.thread
        row, columns = run.row(frame.observed), run.stages
        begin_ns = frame.begin_ns
        overlap, rest_ns = False, frame.end_ns - begin_ns
        elapsed = None if timer is None else timer.elapsed
        for stage in list(frame.stages):
            host_ns = stage.end_ns - stage.begin_ns - stage.inner_ns
            rest_ns -= host_ns
            if stage.thread != thread:
                overlap = True
            try:
                host, device = columns[stage.name]
            except KeyError:
                host, device = run.add_stage(stage.name, row)
            so_far = row[host]
            row[host] = host_ns / 1e6 if so_far != so_far else so_far + host_ns / 1e6  # NaN until the first of its name
            start, end = stage.start, stage.end
            if elapsed is None or start is None or end is None:
                continue
            ms = elapsed(start.event, end.event)
            if stage._parent is not None:
                stage._parent.inner_ms += ms
            ms -= stage.inner_ms
            so_far = row[device]
            row[device] = ms if so_far != so_far else so_far + ms
        row[:MEASURED] = (
            (begin_ns - origin_ns) / 1e6,
            (delivered_ns - origin_ns) / 1e6,
            (delivered_ns - max(begin_ns, self._delivered_ns)) / 1e6,
            (delivered_ns - begin_ns) / 1e6,
            (_outside_ns(frame) if overlap else rest_ns) / 1e6,
            frame.failed,
            overlap,
        )
        return row

    def _passed_ns(self, frame: Frame, timer: CudaTimer, marks: Sequence[Mark]) -> float:
        """Return when the device finished the frame, on the host's clock.

        The device began the frame when the host did, or, if it was still busy with the frame before, as long after that
        frame's end as its own clock says. It had finished when it was seen to have.
        """
        start, before, began_ns, seen_ns = frame.start, self._device_end, frame.begin_ns, now_ns()
        assert start is not None
        if before is not None and not frame.follows_idle:
            began_ns = max(began_ns, before[1] + 1e6 * timer.elapsed(before[0].event, start.event))
        span_ms = max([timer.elapsed(start.event, mark.event) for mark in marks])
        return min(began_ns + 1e6 * span_ms, seen_ns)

    def _lose_device(self, error: Exception) -> None:
        """Go on without device times, and without a timer."""
        self.timer = None
        self._run.note(f"device times end: {type(error).__name__}: {error}")

    def leave(self) -> None:
        """Stop recording in a process that was forked: the journal and the device are those of the other one."""
        self._is_forked, self.timer, self._open = True, None, []
        self._end.detach()
        self._lock, self._reading = threading.Lock(), threading.Lock()  # another thread may have held them


def _outside_ns(frame: Frame) -> int:
    """Return the host time of a frame in which none of its stages ran, in whichever threads, in ns."""
    outside_ns, until_ns = 0, frame.begin_ns
    for stage in sorted(frame.stages, key=lambda stage: stage.begin_ns):
        outside_ns += max(0, min(stage.begin_ns, frame.end_ns) - until_ns)
        until_ns = max(until_ns, stage.end_ns)
    return outside_ns + max(0, frame.end_ns - until_ns)


#: Recorders of this process, which a fork copies.
_recorders: weakref.WeakSet[FrameRecorder] = weakref.WeakSet()


def _leave_all() -> None:
    for recorder in _recorders:
        recorder.leave()


os.register_at_fork(after_in_child=_leave_all)
