"""Measures how long an application takes from the start of its process to its first output: `starts=true`.

Each start is a fresh process that imports, builds, prepares and makes one call. The cold one has an empty compiler
cache; the warm one, the cache that the cold one left; the portable one, an empty cache into which it loads the
artifacts that `torch.compiler.save_cache_artifacts` returned to the cold one, as a deployment would.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from msgspec.structs import replace

from profiling.results.measured import Start, Starts
from profiling.run import task
from profiling.run.compile_caches import TORCH_TRACE, Cache, cache_variables
from profiling.run.events import End, Event, Started
from profiling.run.session import Limits, NotMeasuredError, Session, open_session, to_its_end


def measure_starts(
    cell: task.Cell,
    cache: Cache,
    run: Path,
    limits: Limits,
    perform: Callable[..., Session] = open_session,
) -> tuple[Starts | None, tuple[str, ...]]:
    """Return the section of a cell of the run in the folder `run`, and a note for a start that failed.

    Without the cold one there is no section; a later one costs only itself. Each start has its `limits`. The cold start
    fills the cell's cache where that is shared and empty.
    """

    def start(kind: str, variables: Mapping[str, str], **files: str) -> Start:
        files_of_start = run / "cells" / f"{cell.job.name}.{kind}_start"
        variables = {**os.environ, **variables}
        variables.pop(TORCH_TRACE, None)  # a second compile log would be read as that of the cell
        events: list[Event] = []
        started = task.Start(job=cell.job, checkout=cell.checkout, began=perf_counter(), **files)
        death = to_its_end(perform(started, files_of_start, limits, events.append, variables)).death or ""
        for event in events:
            if isinstance(event, Started):
                return event.start
            if isinstance(event, End):
                death = f"failed: {event.reason}"
        log = f"cells/{files_of_start.name}.log"
        raise NotMeasuredError(f"the {kind} start {death}{'' if log in death else f'; see {log}'}")

    with TemporaryDirectory(prefix="start-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        fills = cache.is_fillable
        variables = cache.variables if fills else cache_variables(str(folder / "cold"), folder / "packages")
        artifacts, starts = folder / "artifacts", None
        try:
            starts = Starts(cold=start("cold", variables, save=str(artifacts)))
            if not starts.cold.graphs:
                return starts, ()
            if fills:
                cache.fill([starts.cold], f"the cold start of {cell.job.variant}")
            starts = replace(starts, warm=start("warm", variables))
            if artifacts.is_file():
                starts = replace(starts, artifact_bytes=artifacts.stat().st_size)
                moved = cache_variables(str(folder / "moved"))
                starts = replace(starts, portable=start("portable", moved, load=str(artifacts)))
        except NotMeasuredError as error:
            if starts is None:
                cache.empty()
            return starts, (f"{'no starts' if starts is None else 'starts are incomplete'}: {error}",)
        return starts, ()
