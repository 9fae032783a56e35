"""The run folder of a recorded loop: the journal while it runs, and the run that `save` writes."""

from __future__ import annotations

import platform
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from profiling.errors import InputError, printable, shell_words
from profiling.results.environment import ENVIRONMENT_FILE, Cpu, Device, Environment, encode_environment
from profiling.results.frames import NAMES, Array, Journal, frame_count, read_journal, series_file, write_series
from profiling.results.jsonl import RESULTS_FILE, append_record
from profiling.results.record import REALTIME, Realtime, Record
from profiling.results.run_folder import new_folder, write_json

if TYPE_CHECKING:
    from profiling.report.result import RunResult

#: The cell of a recorded loop: component and variant.
COMPONENT, VARIANT = "loop", "recorded"
CELL = f"{COMPONENT}.{VARIANT}"
#: A loop that delivers fewer frames a second than this share of its target is too slow, though each frame be in time.
TOO_SLOW = 0.98


@dataclass
class _Journaled:
    """The journal of a run, kept apart so that it can be tidied up after the recorder is gone."""

    run: Path
    journal: Journal
    is_default: bool  # whether the folder is a new one in runs/realtime
    rows: int = 0
    saved_rows: int = 0
    is_open: bool = True

    def close(self) -> None:
        """Close the journal; remove it if all of its frames were saved."""
        if not self.is_open:
            return
        self.is_open = False
        self.journal.close()
        if self.rows == self.saved_rows:
            self.journal.remove()
            parents = (self.run.parent, self.run.parent.parent) if self.is_default else ()
            for folder in (self.run / "cells", self.run, *parents):
                if any(folder.iterdir()):
                    break
                folder.rmdir()


class RecordedRun:
    """The frames of a recorder on the disk. `folder` is where the journal is; None: a new folder in runs/realtime."""

    def __init__(self, fps: float, warmup_frames: int, folder: Path | None) -> None:
        if folder is not None:
            _refuse_other_run(folder)
        self._fps, self._warmup, self._folder = fps, warmup_frames, folder
        self._journaled: _Journaled | None = None
        self._unwritten: list[Mapping[str, float]] = []  # rows since the journal could not be written
        self._notes: list[str] = []
        self._overlapping = False
        self._saved: set[Path] = set()

    def open(self) -> None:
        """Begin the journal.

        Raises:
            OSError: its folder cannot be made or written.

        """
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        run = (self._folder or new_folder(Path("runs") / REALTIME, stamp)).absolute()
        self._journaled = _Journaled(run, Journal(run, CELL, NAMES), is_default=self._folder is None)
        weakref.finalize(self, self._journaled.close)  # also at the end of the process

    def append(self, row: Mapping[str, float], *, in_turn: bool) -> None:
        """Write the row of a frame; `in_turn`: its stages ran one after the other, in its thread."""
        assert self._journaled is not None
        self._overlapping = self._overlapping or not in_turn
        self._journaled.rows += 1
        if not self._unwritten:
            try:
                self._journaled.journal.append(row)
                return
            except OSError as error:  # a full disk must not end the application
                self.note(f"the journal ends before frame {self._journaled.rows - 1}: {error.strerror or error}")
        self._unwritten.append(row)

    def note(self, line: str) -> None:
        """Add a remark to the record, once."""
        line = printable(line, 300)
        if line not in self._notes:
            self._notes.append(line)

    def close(self) -> None:
        """Close the journal; it is removed if all of its frames were saved."""
        if self._journaled is not None:
            self._journaled.close()

    def save(
        self,
        folder: Path | None,
        device: str,
        events: Sequence[Mapping[str, Any]],
        throttle_reasons: Iterable[str],
    ) -> RunResult:
        """Write the frames so far as a run into `folder`, or where the journal is, and return it.

        Raises:
            InputError: there is no frame, or the folder holds a run that this object did not write.
            OSError: a file cannot be written.

        """
        from profiling.realtime.summary import summarize_frames  # imports scipy, which takes a second
        from profiling.report.render import write_report
        from profiling.report.result import RunResult

        series = self._series()
        if not frame_count(series) or self._journaled is None:
            raise InputError("save(): no frame has ended. Put `with frames.frame():` around each turn of your loop.")
        run = (folder or self._journaled.run).absolute()
        if run not in self._saved:
            _refuse_other_run(run)
        loop = Realtime(
            frames=0,
            target_fps=self._fps,
            pace="application",
            warmup_frames=self._warmup,
            schedule="overlap" if self._overlapping else "sequential",
            throttle_reasons=tuple(sorted(throttle_reasons)),
        )
        section = summarize_frames(series, loop, events=events)
        record = Record(
            target=REALTIME,
            component=COMPONENT,
            variant=VARIANT,
            status="ok",
            device=device,
            frames_per_call=1,
            realtime=section,
            notes=(*self._notes, *_remarks(series, section)),
        )
        (run / "cells").mkdir(parents=True, exist_ok=True)
        write_json(run / ENVIRONMENT_FILE, encode_environment(environment(device)))
        write_series(run / series_file(CELL), series)
        append_record(run, record)
        self._saved.add(run)
        self._journaled.saved_rows = frame_count(series)
        write_report(run)
        return RunResult(run)

    def _series(self) -> dict[str, Array]:
        """Return the series of all frames, with the time between frames, which a row cannot know."""
        series = {} if self._journaled is None else dict(read_journal(self._journaled.run, CELL) or {})
        for name in dict.fromkeys((*series, *(name for row in self._unwritten for name in row))):
            late = np.array([row.get(name, np.nan) for row in self._unwritten], dtype=np.float64)
            early = series.get(name, np.full(frame_count(series), np.nan))
            series[name] = np.concatenate([early, late])
        if frame_count(series):
            gaps = np.maximum(0.0, series["action_ms"][1:] - series["delivered_ms"][:-1])
            series["gap_ms"] = np.append(gaps, np.nan)
        return series


def _refuse_other_run(folder: Path) -> None:
    if (folder / RESULTS_FILE).exists():
        raise InputError(f"{folder} holds a run already. Choose another folder.")


def _remarks(series: Mapping[str, Array], loop: Realtime) -> list[str]:
    """Say what a deadline does not show: a loop that is slow outside of its frames, and frames that raised."""
    remarks = []
    intervals = np.diff(series["delivered_ms"])
    if intervals.size and (rate := 1000 / float(np.median(intervals))) < TOO_SLOW * loop.target_fps:
        outside = "" if loop.gap_ms is None else f"; {loop.gap_ms.p50:.3g} ms lie between two frames, outside frame()"
        remarks.append(f"the application delivers {rate:.4g} frames a second, not {loop.target_fps:g}{outside}")
    failed = int(np.nansum(series["exceptions"]))
    return [*remarks, *([f"{failed} of {loop.frames} frames raised an exception"] if failed else [])]


def environment(device: str) -> Environment:
    """Return what the run depends on; torch is asked only if the application has imported it."""
    from profiling.run.revisions import TOOL, git_state, tool_version

    if "torch" in sys.modules:
        from profiling.components.spec import Settings
        from profiling.run.environment import environment as full_environment

        machine = msgspec.structs.replace(
            full_environment(Settings(device=device), {}), seed=None, scale=None, dtype=None, tf32=None
        )
    else:
        import os

        machine = Environment(
            versions={"python": platform.python_version(), "os": f"{platform.system()} {platform.release()}"},
            device=Device(type="cpu"),
            cpu=Cpu(cores=len(os.sched_getaffinity(0))),
        )
    return msgspec.structs.replace(
        machine,
        captured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shell_words(["python", *sys.argv]),
        tool_version=tool_version(),
        user_git=git_state(Path.cwd()),
        tool_git=git_state(TOOL),
    )
