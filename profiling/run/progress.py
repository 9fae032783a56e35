"""Progress on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import textwrap
import time

from rich import progress
from rich.console import Console
from rich.markup import escape

from profiling.errors import LONGEST_COMMAND, printable
from profiling.results.record import Record

PHASES = {
    "probe": "probing the device",
    "ceilings": "measuring its bandwidth and FLOP ceilings (once a device and driver, on a quiet machine)",
    "load": "loading",
    "reference": "computing the float32 reference",
    "starts": "measuring cold and warm starts",
    "prepare": "preparing (compile, warm-up, capture)",
    "parity": "checking parity",
    "latency": "timing",
    "turns": "timing in turns",
    "control": "preparing the control (a second process)",
    "finish": "checking parity once more, tracing",
    "memory": "measuring memory",
    "explain": "explaining",
    "roofline": "computing the roofline",
    "trace": "tracing",
    "parse": "parsing the compile log",
}
#: Short phases, which get no plain line.
SHORT_PHASES = ("parity", "memory", "explain", "roofline", "parse")
#: Phases in which something is timed: no live line may take a core meanwhile.
TIMED = ("ceilings", "calibrate", "latency", "turns", "frames", "training", "calls", "energy", "idle power")
COLUMNS = 100


class Progress:
    """Shows what the runner is doing, on standard error: a line at each long phase of a cell, and one at its end.

    On a terminal a live line with the running time of the cell shows its phases, and only those in which something is
    timed get a plain one.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.quiet
        self._live: progress.Progress | None = None
        self._cell, self._started = "", time.monotonic()
        self._said: set[str] = set()  # phases of the cell that have a line
        self._begun: dict[str, tuple[float, set[str]]] = {}  # when each cell began, and its phases that have a line

    def begin(self, cell: str, number: int, total: int, *, again: bool = False) -> None:
        """Start the cell's clock; `number` counts cells from 1 and is 0 for the probe.

        `again`: what follows is of this cell, which began before, and so did others since.
        """
        counted = f"[{number}/{total}] " if number else ""
        self._cell = f"{counted}{cell}"
        if not again or cell not in self._begun:
            self._begun[cell] = time.monotonic(), set()
        self._started, self._said = self._begun[cell]
        if self._is_live and not again:
            self.close()
            self._show(self._cell)

    def phase(self, phase: str) -> None:
        """Show the phase; of what is done twice (loading), a plain line is printed the first time."""
        line = f"{self._cell}: {PHASES.get(phase, phase)}"
        if self._is_live and phase not in TIMED:
            self._show(line)
        elif phase not in SHORT_PHASES and (phase in TIMED or phase not in self._said):
            self._said.add(phase)
            self.close()
            self.say(f"{line} ({self._seconds()})")

    def end(self, record: Record) -> None:
        """Print how the cell ended; a long reason is wrapped."""
        self.close()
        line = f"{self._cell}: {ending(record)} ({self._seconds()})"
        self.say(textwrap.fill(line, COLUMNS, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))

    def say(self, line: str) -> None:
        """Print a line unwrapped, so that a command in it can be pasted; it may have continuation lines."""
        parts = [
            part[: len(part) - len(part.lstrip(" "))] + printable(part, LONGEST_COMMAND) for part in line.split("\n")
        ]
        self._console.print("\n".join(parts), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, line: str) -> None:
        """Show the live line."""
        if self._live is None:
            columns = progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn()
            # Refreshed twice a second: more often, it would take a core from the process that is timed.
            self._live = progress.Progress(*columns, console=self._console, transient=True, refresh_per_second=2)
            self._live.add_task("", total=None)
            self._live.start()
        self._live.update(self._live.task_ids[0], description=escape(line))

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._started:.1f} s"


def ending(record: Record) -> str:
    """Return "ok, wall p50 2.5 ms" or "failed: reason"."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    return "ok" if record.wall_p50 is None else f"ok, wall p50 {record.wall_p50:.4g} ms"
