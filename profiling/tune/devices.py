"""Searches on several devices at once, each with its own processes and run folder; they share what was tried.

A recipe belongs to the device that claims it first. Recipes of different devices are compared by their speedup over
the baseline on their device.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from profiling.errors import override
from profiling.results.jsonl import RESULTS_FILE, read_records
from profiling.results.record import BASELINE, Record
from profiling.results.run_folder import write_text
from profiling.run.child import FreshProcess, started

#: Share of the budget (0 to 1) for searching on several devices; in the rest the first device explains the winner.
SEARCHING = 0.8
#: Seconds beyond their budget in which the other searches must end.
ENDING = 120.0


@dataclass(frozen=True)
class Claim:
    """A recipe that a device has claimed; `gain` is its speedup over eager, None until it is known."""

    process: int
    gain: float | None = None
    is_due: bool = True

    @property
    def is_busy(self) -> bool:
        """Whether another process is preparing or timing it."""
        if not self.is_due or self.process == os.getpid():
            return False
        with suppress(psutil.Error):
            return psutil.Process(self.process).status() != psutil.STATUS_ZOMBIE
        return False


@dataclass(frozen=True)
class Shared:
    """What the searches share: claims, in the run `folder` of the first device, which started the other `processes`."""

    folder: Path
    processes: list[FreshProcess] = field(default_factory=list)

    @property
    def claims(self) -> dict[str, Claim]:
        """The claimed recipes by name."""
        claims = {}
        for path in self._files.glob("*.json"):
            with suppress(OSError, ValueError, TypeError):
                claims[path.stem] = Claim(**json.loads(path.read_text()))
        return claims

    def claim(self, name: str) -> bool:
        """Claim a recipe for this device; False if another one has claimed it."""
        self._files.mkdir(exist_ok=True)
        with suppress(FileExistsError), (self._files / f"{name}.json").open("x") as file:
            json.dump({"process": os.getpid()}, file)
            return True
        return False

    def publish(self, name: str, gain: float | None) -> None:
        """Tell the other devices the speedup of a recipe over eager; None: it has none."""
        text = json.dumps({"process": os.getpid(), "gain": gain, "is_due": False})
        write_text(self._files / f"{name}.json", text)

    def join(self) -> list[Record]:
        """Wait for the other searches to end, and return the records of their recipes."""
        records = list[Record]()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
        for folder in sorted((self.folder / "devices").glob("*/")):
            if (folder / RESULTS_FILE).exists():
                records += [each for each in read_records(folder).records if each.variant != BASELINE]
        return records

    @property
    def _files(self) -> Path:
        return self.folder / "claims"


@contextmanager
def searching(folder: Path, devices: Sequence[str], seconds: float) -> Iterator[Shared]:
    """Inside the block, search on further devices with the command line of this process.

    They also end where this process is killed.
    """
    for claim in (folder / "claims").glob("*.json"):
        claim.unlink()  # of a run that is resumed
    replaced = ("devices=", "device=", "seconds=", "resume=", "hydra.run.dir=")
    arguments = [each for each in sys.argv[1:] if not each.startswith(replaced)]
    shared, processes = Shared(folder), ExitStack()
    try:
        for device in devices:
            theirs = folder / "devices" / device.replace(":", "_")
            theirs.parent.mkdir(exist_ok=True)
            begun = (theirs / RESULTS_FILE).exists()
            options = [override("resume" if begun else "hydra.run.dir", theirs), override("shared", folder)]
            options += [override("device", device), f"seconds={SEARCHING * seconds:g}"]
            with theirs.with_suffix(".log").open("ab") as log:
                command = [sys.executable, "-m", "profiling.tune", *arguments, *options]
                shared.processes.append(processes.enter_context(started(command, log)))
        yield shared
    finally:
        for process in shared.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0)
                continue
            os.kill(process.pid, signal.SIGTERM)  # it keeps what has ended
        for process in shared.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
        processes.close()
