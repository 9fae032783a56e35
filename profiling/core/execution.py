"""How a task is performed: in a process of its own, or in this one for a debugger. Both tell the same events."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from profiling.core.isolation import Ending, OnEvent, log_of, run_isolated

TORCH_TRACE = "TORCH_TRACE"


#: Looking at the device takes a few seconds; a driver that hangs must not hang the run.
PROBE_SECONDS = 300.0


class Executor(Protocol):
    """Performs tasks (see `core.tasks`)."""

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> str | None:
        """Perform `task`, telling its events; return what killed it, or None if it ended by itself."""


class InProcess:
    """No isolation: a crash takes the run along, and a debugger sees everything."""

    def __init__(self, run: Path, *, trace: bool, fresh_cache: bool) -> None:
        self._fresh_cache = fresh_cache
        if trace:  # before anything imports torch, or it counts for nothing
            os.environ.setdefault(TORCH_TRACE, str(run / "torch_trace"))

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> None:
        """Perform the task here."""
        from profiling.core.tasks import perform  # imports torch, which no other path of this process needs

        with compile_cache(fresh=self._fresh_cache) as variables, mock.patch.dict(os.environ, variables):
            perform(task, on_event)


class Isolated:
    """A fresh process a task, its output in `cells/<name>.log`."""

    def __init__(self, run: Path, *, trace: bool, fresh_cache: bool, timeout: float) -> None:
        self._run, self._trace, self._fresh_cache, self._timeout = run, trace, fresh_cache, timeout

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> str | None:
        """Perform the task in a process that may die as it likes."""
        files = self._run / "cells" / name
        files.parent.mkdir(exist_ok=True)
        given = os.environ.get(TORCH_TRACE)
        timeout = self._timeout if "cell" in task else PROBE_SECONDS
        own = self._run / "torch_trace" / name
        environment = {TORCH_TRACE: str(own)} if self._trace and given is None else {}
        before = _logs(given)
        with compile_cache(fresh=self._fresh_cache) as variables:
            ending: Ending = run_isolated(
                task, files=files, timeout=timeout, on_event=on_event, environment={**environment, **variables}
            )
        if self._trace and given is not None:  # the user's folder has the logs; the run gets a copy
            own.mkdir(parents=True, exist_ok=True)
            for log in _logs(given) - before:
                shutil.copy(log, own)
        return None if ending == Ending("exited", 0) else ending.describe(log_of(files))


@contextmanager
def compile_cache(*, fresh: bool) -> Iterator[dict[str, str]]:
    """Yield the variables that give inductor and Triton an empty cache while this lasts; none unless `fresh`."""
    if not fresh:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="inductor-", ignore_cleanup_errors=True) as cache:
        yield {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": str(Path(cache) / "triton")}


def _logs(folder: str | None) -> set[Path]:
    return set() if folder is None else set(Path(folder).glob("*.log"))
