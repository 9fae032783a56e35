"""How a download is shown: a live bar in a terminal, a plain line every ten seconds anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from profiling.core.checkpoints.transfer import Tick

_PLAIN_EVERY_S = 10.0


@contextmanager
def shown(name: str, console: Console) -> Iterator[Tick]:
    """Yield what to call with (bytes here, bytes in all) while `name` downloads."""
    if not console.is_terminal:
        yield _plain(name, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _plain(name: str, console: Console) -> Tick:
    said: float | None = None

    def tick(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if said is not None and now - said < _PLAIN_EVERY_S:
            return
        said = now
        line = f"{name}: {done / 2**20:.1f} of {total / 2**20:.1f} MiB"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return tick
