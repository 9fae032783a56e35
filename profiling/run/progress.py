"""What a run shows while it works: a live line on a terminal, plain lines anywhere else. Always on standard error."""

from __future__ import annotations

import time
from typing import Protocol

from rich import progress
from rich.console import Console
from rich.markup import escape

from profiling.results.record import Record

PHASES = {
    "probe": "probing the device",
    "load": "loading",
    "reference": "computing the float32 reference",
    "prepare": "preparing (compile, warm-up, capture)",
    "parity": "checking parity",
    "latency": "timing",
    "memory": "measuring memory",
    "explain": "explaining",
    "roofline": "computing the roofline",
    "trace": "tracing",
    "parse": "parsing the compile log",
}


class Progress(Protocol):
    """What the runner tells as it goes."""

    def begin(self, cell: str, number: int, total: int) -> None:
        """Show that a cell begins."""

    def phase(self, phase: str) -> None:
        """Show which phase the cell has reached."""

    def end(self, record: Record) -> None:
        """Show how the cell ended."""

    def say(self, line: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """Take away what is still shown; the run is over."""


class PlainProgress:
    """A line when a cell begins, at each phase, and when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._cell, self._started = "", time.monotonic()

    def begin(self, cell: str, number: int, total: int) -> None:
        """Say which cell, and how many there are."""
        counted = f"[{number}/{total}] " if number else ""
        self._cell, self._started = f"{counted}{cell}", time.monotonic()

    def phase(self, phase: str) -> None:
        """Say the phase and the seconds since the cell began."""
        self.say(f"{self._cell}: {PHASES.get(phase, phase)} ({time.monotonic() - self._started:.1f} s)")

    def end(self, record: Record) -> None:
        """Say how the cell ended."""
        self.say(f"{self._cell}: {ending(record)} ({time.monotonic() - self._started:.1f} s)")

    def say(self, line: str) -> None:
        """Print a line as it is."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is open."""


class LiveProgress(PlainProgress):
    """One line that ticks while a cell runs, and stays as a plain line when it ends."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: progress.Progress | None = None

    def begin(self, cell: str, number: int, total: int) -> None:
        """Start the line."""
        super().begin(cell, number, total)
        self.close()
        columns = (progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
        # Twice a second: the process that measures must not share its core with a busy display.
        self._live = progress.Progress(*columns, console=self._console, transient=True, refresh_per_second=2)
        self._live.add_task(escape(self._cell), total=None)
        self._live.start()

    def phase(self, phase: str) -> None:
        """Rewrite the line."""
        if self._live is not None:
            self._live.update(self._live.task_ids[0], description=escape(f"{self._cell}: {PHASES.get(phase, phase)}"))

    def end(self, record: Record) -> None:
        """Replace the line by how the cell ended."""
        self.close()
        super().end(record)

    def close(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def make_progress() -> Progress:
    """Return what suits standard error: live on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


def ending(record: Record) -> str:
    """Return 'ok, 2.50 ms' or 'failed: reason'."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    return "ok" if record.wall_p50 is None else f"ok, wall p50 {record.wall_p50:.4g} ms"
