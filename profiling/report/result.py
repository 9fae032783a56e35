"""A run as a Python object: it prints its answer, and holds the typed records."""

from __future__ import annotations

import os
import shutil
import weakref
from functools import cached_property
from pathlib import Path

import numpy as np

from profiling.errors import InputError
from profiling.report.answer import answer_section, holds_words, notes_section, status_section
from profiling.report.format import significant
from profiling.report.page import Section
from profiling.report.realtime import realtime_section
from profiling.report.render import section_text, skipped_section, write_report
from profiling.report.run_data import load_run
from profiling.results.record import Record
from profiling.results.run_folder import check_is_new
from profiling.results.stats import deadline
from profiling.results.verdicts import by_component, fastest_correct, holds_rate


class RunResult:
    """The run in `folder`: printing it shows the answer table, or the verdict of a loop.

    `fps` is the frame rate that one call of the fastest correct variant is compared with. A folder that is `temporary`
    is removed with this object, by this process; `save` then keeps the run.
    """

    def __init__(self, folder: Path, *, fps: float | None = None, temporary: bool = False):
        self.folder = folder
        self._fps, self._temporary = fps, temporary
        if temporary:
            weakref.finalize(self, _remove, folder, os.getpid())
        self._saved: set[Path] = set()
        self._data = load_run(folder)

    @property
    def records(self) -> tuple[Record, ...]:
        """The record of each cell."""
        return self._data.records

    def best(self, component: str | None = None) -> Record | None:
        """Return the fastest correct record of a component, by its median; None where no variant is correct.

        Raises:
            InputError: no such component, or none named where there are several.

        """
        groups = by_component(self.records)
        if component is None and len(groups) == 1:
            return fastest_correct(self.records)
        if component not in groups:
            raise InputError(f"best({component!r}): name one of {', '.join(groups)}.")
        return fastest_correct(groups[component])

    def save(self, folder: str | Path) -> Path:
        """Copy the run into `folder`, with its reports, and return the folder.

        Raises:
            InputError: the folder holds what this object did not write, or it or the reports cannot be written.

        """
        try:
            target = Path(folder).absolute()
            if target not in self._saved:
                check_is_new(target)
            shutil.copytree(self.folder, target, dirs_exist_ok=True)
            self._saved.add(target)
            failure = write_report(target).failure
        except OSError as error:
            raise InputError(f"save({str(folder)!r}): {error.strerror or error}. Name another folder.") from error
        if failure:
            raise InputError(f"save({str(folder)!r}): {failure}")
        return target

    def __str__(self) -> str:
        """Return the answer as text, 100 columns wide."""
        blocks = [section_text(section) for section in self._sections]
        if not any(blocks):
            blocks = [f"{each.name} {each.status}: {each.reason}" for each in self.records]
        if not self._temporary:
            blocks.append(f"run: {self.folder}")
        return "\n\n".join(filter(None, blocks))

    __repr__ = __str__  # what a prompt or a notebook shows

    @cached_property
    def _sections(self) -> tuple[Section, ...]:
        data = self._data
        answer = (answer_section(data), *([realtime_section(data)] if data.loops else []))
        best = [record for group in by_component(data.timed).values() if (record := fastest_correct(group)) is not None]
        lines = [line for record in best for line in self._rate_line(record)]
        rate = Section("rate", "Frame rate", lines)
        return (*answer, rate, status_section(data), skipped_section(data), notes_section(data))

    def _rate_line(self, record: Record) -> list[str]:
        """Say whether calls deliver their frames at that rate."""
        wall = record.metrics.wall_ms
        frames = 1 if record.frames_per_call is None else record.frames_per_call
        if self._fps is None or wall is None or not wall.samples or not frames:
            return []
        budget_ms = frames * 1000 / self._fps
        said = holds_rate(record, deadline(self._fps, budget_ms, np.array(wall.samples) - budget_ms))
        if said is None:
            return []
        times = f"{wall.tail[0]} {significant(wall.tail[1])} ms of a budget of {significant(budget_ms)} ms a call"
        return [f"{self._fps:g} FPS: {holds_words(said)}. {record.component}, {record.variant}: {times}."]


def _remove(folder: Path, process: int) -> None:
    """Remove a folder, but only in the process that made it, and not in a fork of that."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
