"""Searches on several devices at once: each is a run of its own, with a share of the steps that is decided up front.

The first device collects their records. Recipes of different devices are compared by their speedup over the baseline on
their device.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from profiling.errors import override
from profiling.results.jsonl import RESULTS_FILE, read_records
from profiling.results.record import BASELINE, Record
from profiling.run.child import Child, end, started

#: Share of the budget (0 to 1) in which each device searches its own steps; in the rest the first one searches all.
SEARCHING = 0.8
#: Seconds beyond their budget in which the other searches must end.
ENDING = 120.0


@dataclass(frozen=True)
class OtherSearches:
    """Searches on further devices, whose runs are in `folder`; `own_steps` are those of the first device's search."""

    folder: Path
    own_steps: frozenset[str]
    processes: list[Child] = field(default_factory=list)

    def join(self, seconds: float) -> list[Record]:
        """Wait for the searches to end, for the `seconds` that are left of their budget, and return their records."""
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds + ENDING)
        records = list[Record]()
        for folder in sorted(self.folder.glob("*/")):
            if (folder / RESULTS_FILE).exists():
                records += [each for each in read_records(folder).records if each.variant != BASELINE]
        return records


@contextmanager
def searching(
    folder: Path, own_steps: Iterable[str], shares: Mapping[str, Iterable[str]], seconds: float
) -> Iterator[OtherSearches]:
    """Inside the block, search on further devices for `seconds`, each the steps of its share, into the run's `folder`.

    Their command line is otherwise that of this process, with which they end, also where it is killed.
    """
    replaced = ("devices=", "device=", "steps=", "seconds=", "resume=", "hydra.run.dir=")
    arguments = [each for each in sys.argv[1:] if not each.startswith(replaced)]
    others, processes = OtherSearches(folder / "devices", frozenset(own_steps)), ExitStack()
    try:
        for device, steps in shares.items():
            theirs = others.folder / device.replace(":", "_")
            theirs.parent.mkdir(exist_ok=True)
            begun = (theirs / RESULTS_FILE).exists()
            options = [override("resume" if begun else "hydra.run.dir", theirs), override("device", device)]
            options += [f"steps=[{','.join(steps)}]", f"seconds={seconds:g}"]
            with theirs.with_suffix(".log").open("ab") as log:
                command = [sys.executable, "-m", "profiling.tune", *arguments, *options]
                others.processes.append(processes.enter_context(started(command, log)))
        yield others
    finally:
        end(others.processes, ENDING)
        processes.close()
