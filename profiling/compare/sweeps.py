"""Matches the jobs of two sweeps: those with the same values of the swept overrides are compared as two runs are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from profiling.compare.cells import read_run
from profiling.errors import InputError, command, printable
from profiling.report.format import count_of
from profiling.report.run_data import RunData
from profiling.results.overrides import overrides_of, setting, swept_keys
from profiling.results.sweep import Sweep, SweepJob, is_sweep, read_sweep

#: The name of a job, and its run in A and in B, or why there is none.
JobRuns = tuple[str, RunData | str, RunData | str]


def matched_jobs(
    folders: Sequence[Path], glob: str | None = None
) -> tuple[list[str], tuple[str, ...], Iterator[JobRuns]]:
    """Return a line for each sweep and one for how they are matched, the overrides that differ, and the jobs of either.

    Where a `glob` is given, only cells whose <component>.<variant> matches it are read. Runs are read pair by pair.

    Raises:
        InputError: one of the sweeps cannot be read.

    """
    sweeps = [read_sweep(folder) for folder in folders]
    keys = swept_keys(*sweeps)
    lines = [
        printable(f"{letter}: {folder} · {sweep.target} · {count_of(len(sweep.jobs), 'job')} · {sweep.began}")
        for letter, folder, sweep in zip("AB", folders, sweeps, strict=True)
    ]
    a, b = (_jobs(sweep, keys) for sweep in sweeps)
    lines.append(f"{count_of(len(a.keys() & b.keys()), 'job')} in both, by {', '.join(keys)}.")
    names = dict.fromkeys((*a, *b))
    runs = ((name, _run(folders[0], a.get(name), glob), _run(folders[1], b.get(name), glob)) for name in names)
    return lines, keys, runs


def _jobs(sweep: Sweep, keys: Sequence[str]) -> dict[str, SweepJob]:
    """Return the jobs by their swept values; of equal jobs the last."""
    given = [(overrides_of(job), job) for job in sweep.jobs]
    return {
        printable(" ".join(setting(key, values[key]) for key in keys if key in values)): job for values, job in given
    }


def _run(folder: Path, job: SweepJob | None, glob: str | None) -> RunData | str:
    if job is None:
        return "has no such job"
    try:
        return read_run(folder / job.folder, glob)
    except (InputError, OSError) as error:
        return f"job {job.number} is {job.state}: {error}"


def check_both(a: Path, b: Path) -> bool:
    """Return whether both are sweeps.

    Raises:
        InputError: only one of them is.

    """
    if is_sweep(a) == is_sweep(b):
        return is_sweep(a)
    sweep, other = (a, b) if is_sweep(a) else (b, a)
    jobs = read_sweep(sweep).jobs
    words = (path / jobs[0].folder if path == sweep and jobs else path for path in (a, b))
    raise InputError(
        f"{sweep} is a sweep of {count_of(len(jobs), 'run')}, and {other} is none. Name one of its runs: "
        f"{command('-m', 'profiling.compare', *words)}"
    )
