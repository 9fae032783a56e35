"""The run folder of a recorded loop: the journal while it runs, and the run that `save` writes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from profiling.errors import InputError, printable, shell_words, working_directory
from profiling.results.environment import ENVIRONMENT_FILE, Cpu, Device, Environment, encode_environment
from profiling.results.frames import (
    NAMES,
    TIMES,
    Array,
    Journal,
    frame_count,
    read_journal,
    remove_journal,
    series_file,
    with_gaps,
    write_series,
)
from profiling.results.jsonl import RESULTS_FILE, append_record, read_records
from profiling.results.loop import Realtime
from profiling.results.record import REALTIME, Record
from profiling.results.run_folder import check_is_new, keep_newest_lines, new_folder, remove_empty, write_json

if TYPE_CHECKING:
    from profiling.metrics.monitor import FrameMonitor
    from profiling.report.result import RunResult

#: The cell of a recorded loop: component and variant.
COMPONENT, VARIANT = "loop", "recorded"
CELL = f"{COMPONENT}.{VARIANT}"
#: Names of a row: first those that the recorder measures itself. `overlaps`: 1 where stages were in several threads.
_OWN = (*TIMES, "rest_ms", "exceptions", "overlaps")
_NAMES = tuple(dict.fromkeys((*_OWN, *NAMES)))
MEASURED = len(_OWN)


class RecordedRun:
    """The frames of a recorder on the disk. `folder` is where the journal is; None: a new folder in runs/realtime.

    It does not refer to the recorder, so that `end` can be called after the recorder is gone.

    Raises:
        InputError: the folder is not empty.

    """

    def __init__(self, fps: float, warmup_frames: int, folder: Path | None) -> None:
        if folder is not None:
            check_is_new(folder)
        self._loop = Realtime(frames=0, target_fps=fps, pace="application", warmup_frames=warmup_frames)
        self._is_default = folder is None  # whether the folder is a new one in runs/realtime
        self._folder = folder or Path()
        self._journal: Journal | None = None
        self.stages: dict[str, tuple[int, int]] = {}  # places of host and device time in a row
        self._compiled: dict[int, int] = {}  # rows of the frames in which something was compiled, by their number
        self._notes: list[str] = []
        self._saved: set[Path] = set()
        self._rows = self._saved_rows = 0
        self._is_closed = False

    def open(self) -> None:
        """Begin the journal, beside a record that counts until the frames are saved.

        Raises:
            InputError: the working directory was deleted.
            OSError: its folder cannot be made or written.

        """
        self._folder = working_directory() / (new_folder(REALTIME) if self._is_default else self._folder)
        self._journal = Journal(self._folder, CELL, _NAMES)
        planned = _record(self._loop).with_status("failed", "the process ended before FrameRecorder.save()")
        append_record(self._folder, planned)

    def row(self, values: Mapping[str, float]) -> list[float]:
        """Return a new row of these values, which must not change; the first `MEASURED` are the recorder's own."""
        assert self._journal is not None
        return self._journal.row(values)

    def add_stage(self, name: str, row: list[float]) -> tuple[int, int]:
        """Return the places of a new stage's host and device time in a row, which gets them."""
        assert self._journal is not None
        place = self._journal.place
        self.stages[name] = places = place(f"host_{name}_ms", row), place(f"device_{name}_ms", row)
        return places

    def append(self, row: list[float], number: int, observed: Mapping[str, float]) -> None:
        """Write the row of the frame that was the `number`-th to begin, with what was `observed` in it."""
        assert self._journal is not None
        if observed.get("compiles"):
            self._compiled[number] = self._rows
        self._rows += 1
        try:
            self._journal.write(row)
        except OSError as error:  # a full disk must not end the application
            self.note(f"the journal ends before frame {self._rows - 1}: {error.strerror or error}")

    def note(self, line: str) -> None:
        """Add a remark to the record, once."""
        line = printable(line, 300)
        if line not in self._notes:
            self._notes.append(line)

    def close(self) -> None:
        """Close the journal, and remove it if all of its frames are saved."""
        if self._journal is None:
            return
        self._is_closed = True
        if self._rows == self._saved_rows or self._journal.is_on_disk:  # else only its descriptor holds the frames
            self._journal.close()
        if self._rows != self._saved_rows:
            return
        self._journal = None
        remove_journal(self._folder, CELL)
        run = self._folder
        if run not in self._saved:
            (run / RESULTS_FILE).unlink(missing_ok=True)
        for folder in (run / "cells", run, *((run.parent, run.parent.parent) if self._is_default else ())):
            remove_empty(folder)

    def end(self) -> None:
        """Close the journal when the recorder or the process ends, and say where frames are that were not saved."""
        self.close()
        if self._journal is not None:
            said = f". To save them: profiling.FrameRecorder.recover({str(self._folder)!r})"
            if not self._journal.is_on_disk:
                said = f", and their journal was removed from {self._folder}."
            left = self._rows - self._saved_rows
            print(f"{left} frame{' was' if left == 1 else 's were'} not saved{said}", file=sys.stderr)

    def save(
        self, folder: Path | None, device: str, monitor: FrameMonitor | None, missing: Sequence[str] = ()
    ) -> RunResult:
        """Write the frames so far as a run into `folder`, or where the journal is, and return it.

        `missing` are remarks on what was not recorded.

        Raises:
            InputError: there is no frame, the folder holds what this object did not write, or the working directory
                was deleted.
            OSError: a file cannot be written; if it is the report, the frames are saved.

        """
        series = {} if self._journal is None else self._journal.read() or {}
        if self._journal is None or not frame_count(series):
            warmup = self._loop.warmup_frames
            without = f" after the warmup_frames={warmup}" if warmup else ""
            raise InputError(
                f"save(): no frame has ended{without}. Put `with frames.frame():` around each turn of your loop."
            )
        run = working_directory() / (folder or self._folder)
        if run not in {*self._saved, self._folder}:
            check_is_new(run)
        loop, events = self._loop, []
        if monitor is not None:
            loop = msgspec.structs.replace(loop, **msgspec.structs.asdict(monitor.clocks()))
            events = [{**each, "frame": self._compiled.get(each["frame"], each["frame"])} for each in monitor.events]
        if not self._journal.is_on_disk:
            self.note("the folder of the journal was removed while frames were recorded")
        _write_run(run, series, loop, device, (*self._notes, *missing), events)
        self._saved.add(run)
        self._saved_rows = frame_count(series)
        if self._is_closed:
            self.close()
        return _with_report(run)


def recover_run(folder: str | Path) -> RunResult:
    """Save, in its folder, what a journal holds of a recording whose process ended without saving it.

    Raises:
        InputError: the folder holds no such journal, or the working directory was deleted.
        OSError: a file cannot be written; if it is the report, the frames are saved.

    """
    folder = Path(folder)
    series = read_journal(folder, CELL)
    if series is None or not frame_count(series):
        raise InputError(f"{folder} holds no frames that were not saved. Name the folder of a FrameRecorder's journal.")
    planned = next((record for record in read_records(folder).records if record.realtime is not None), None)
    if planned is None or planned.realtime is None:
        raise InputError(f"{folder} holds frames, but {RESULTS_FILE} does not say of which loop.")
    loop = msgspec.structs.replace(planned.realtime, frames=0)
    notes = ["recovered from the journal: the process ended before it saved its frames"]
    _write_run(folder, series, loop, planned.device, notes, ())
    remove_journal(folder, CELL)
    return _with_report(folder)


def _write_run(
    run: Path,
    series: Mapping[str, Array],
    loop: Realtime,
    device: str | None,
    notes: Iterable[str],
    events: Sequence[Mapping[str, Any]],
) -> None:
    from profiling.realtime.summary import loop_energy, summarize_frames  # imports scipy, which takes a second
    from profiling.run.revisions import code_and_command

    series = with_gaps(series)
    overlapping = np.nansum(series.get("overlaps", 0)) > 0
    loop = msgspec.structs.replace(loop, schedule="overlap" if overlapping else "sequential")
    section = summarize_frames(series, loop, events=events)
    record = _record(section, device, (*notes, *_remarks(series, section)))
    record = msgspec.structs.replace(record, energy=loop_energy(series, section))
    (run / "cells").mkdir(parents=True, exist_ok=True)
    command = shell_words(["python", *sys.argv])
    environment = encode_environment(code_and_command(command, working_directory()))
    write_json(run / ENVIRONMENT_FILE, environment | encode_environment(_machine(device or "cpu")))
    write_series(run / series_file(CELL), series)
    append_record(run, record)
    keep_newest_lines(run)


def _with_report(run: Path) -> RunResult:
    from profiling.report.render import write_report
    from profiling.report.result import RunResult

    if failure := write_report(run).failure:
        raise OSError(failure)
    return RunResult(run)


def _record(loop: Realtime, device: str | None = None, notes: Iterable[str] = ()) -> Record:
    return Record(
        target=REALTIME,
        component=COMPONENT,
        variant=VARIANT,
        status="ok",
        device=device,
        frames_per_call=1,
        realtime=loop,
        notes=tuple(notes),
    )


def _remarks(series: Mapping[str, Array], loop: Realtime) -> list[str]:
    """Say what the deadlines do not show: a loop that is slow outside of its frames, and frames that raised."""
    remarks = []
    if (rate := loop.too_slow_fps(loop.target_fps)) is not None:
        outside = "" if loop.gap_ms is None else f"; {loop.gap_ms.p50:.3g} ms lie between two frames, outside frame()"
        remarks.append(f"the application delivers {rate:.4g} frames a second, not {loop.target_fps:g}{outside}")
    failed = int(np.nansum(series["exceptions"]))
    return [*remarks, *([f"{failed} of {loop.frames} frames raised an exception"] if failed else [])]


def _machine(device: str) -> Environment:
    """Return what the run depends on besides the code; torch is asked only if the application has imported it."""
    machine = Environment(
        versions={"python": platform.python_version(), "os": f"{platform.system()} {platform.release()}"},
        device=Device(type=device.partition(":")[0]),
        cpu=Cpu(cores=len(os.sched_getaffinity(0))),
    )
    if "torch" in sys.modules:
        from profiling.components.spec import Settings
        from profiling.run.environment import environment

        with suppress(RuntimeError):  # the device may have failed
            machine = environment(Settings(device=device))
            machine = msgspec.structs.replace(machine, seed=None, scale=None, dtype=None, tf32=None)
    return machine
