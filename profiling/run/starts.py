"""Measures how long an application takes from the start of its process to its first output: `starts=true`.

Each start is a fresh process that imports, builds, prepares and makes one call. The cold one has an empty compiler
cache; the warm one, the cache that the cold one left; the portable one, an empty cache into which it loads the
artifacts that `torch.compiler.save_cache_artifacts` returned to the cold one, as a deployment would.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from profiling.results.measured import Start, Starts
from profiling.run.compile_caches import Lease, cache_variables
from profiling.run.job import Job

#: Runs a command with its output in a file and a timeout in seconds; returns its exit code, None if it was killed.
Execute = Callable[[Sequence[str], Path, float, Mapping[str, str]], int | None]
_TORCH_TRACE = "TORCH_TRACE"  # a second compile log would be read as that of the cell


class Order(msgspec.Struct, frozen=True):
    """What the started process has to do; files are paths."""

    job: str  # JSON
    result: str  # the file for the times
    checkout: Mapping[str, Any] | None = None
    load: str | None = None  # artifacts of the compiler
    save: str | None = None  # where to write them
    prepare_timeout: float | None = None  # seconds that preparing may take
    overdue: str = ""  # the file for the stacks of a process that takes longer


class NoStartError(Exception):
    """Why a start was not measured, in one line."""


@dataclass(frozen=True)
class StartPass:
    """Measures the starts of the cells of the run in the folder `run`.

    `timeout` and `prepare_timeout` are in seconds, for each start and for its preparation.
    """

    run: Path
    timeout: float
    execute: Execute
    prepare_timeout: float | None = None

    def measure(self, task: Mapping[str, Any], lease: Lease) -> tuple[Starts, tuple[str, ...]]:
        """Return the section of a cell, and a note for a later start that failed, which costs only itself.

        The cold start fills the cell's cache where that is shared and empty.

        Raises:
            NoStartError: the cold start failed.

        """
        with TemporaryDirectory(prefix="start-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            fills = lease.is_fillable
            cache = dict(lease.variables) if fills else cache_variables(str(folder / "cold"), folder / "packages")
            artifacts = folder / "artifacts"
            try:
                starts = Starts(cold=self._start(task, "cold", cache, folder, save=str(artifacts)))
            except NoStartError:
                lease.empty()
                raise
            if not starts.cold.graphs:
                return starts, ()
            if fills:
                lease.fill(starts.cold)
            try:
                starts = replace(starts, warm=self._start(task, "warm", cache, folder))
                if artifacts.is_file():
                    starts = replace(starts, artifact_bytes=artifacts.stat().st_size)
                    moved = cache_variables(str(folder / "moved"))
                    starts = replace(starts, portable=self._start(task, "portable", moved, folder, load=str(artifacts)))
            except NoStartError as error:
                return starts, (f"starts are incomplete: {error}",)
            return starts, ()

    def _start(self, task: Mapping[str, Any], kind: str, cache: Mapping[str, str], folder: Path, **files: str) -> Start:
        name = Job.from_json(task["cell"]).name
        order, result, overdue = (folder / f"{kind}.{end}" for end in ("order.json", "json", "overdue.txt"))
        limit = {"prepare_timeout": self.prepare_timeout, "overdue": str(overdue)}
        order.write_bytes(msgspec.json.encode(Order(task["cell"], str(result), task.get("checkout"), **files, **limit)))
        log = self.run / "cells" / f"{name}.{kind}_start.log"
        variables = {key: value for key, value in {**os.environ, **cache}.items() if key != _TORCH_TRACE}
        command = [sys.executable, "-m", "profiling.run.started", str(order), str(perf_counter())]
        code = self.execute(command, log, self.timeout, variables)
        if code is None:
            raise NoStartError(f"the {kind} start was killed at the cell_timeout")
        if overdue.is_file() and overdue.stat().st_size:
            with log.open("a", encoding="utf-8") as end:
                end.write(overdue.read_text(encoding="utf-8", errors="replace"))
            raise NoStartError(f"preparing took longer than the prepare_timeout: killed; see cells/{log.name}")
        try:
            return msgspec.json.decode(result.read_bytes(), type=Start)
        except (OSError, msgspec.MsgspecError):
            raise NoStartError(f"the {kind} start ended with exit code {code}; see cells/{log.name}") from None
