"""Runs written by hand: the times are known, so that what a comparison must say is too."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import to_builtins

from profiling.results.records import Record, append_record
from profiling.results.stats import summarize

MIB = 2**20
ENVIRONMENT = {
    "captured_at": "2026-01-02T03:04:05+00:00",
    "command": "python -m profiling.generic_forward",
    "git": {"revision": "a" * 40, "dirty": False},
    "versions": {"torch": "2.11.0", "driver": "580.1"},
    "device": {"type": "cuda", "name": "GPU of 2026", "clock_sm_max_mhz": 1980},
    "threads": 16,
    "dtype_reason": "asked for",
}


def noisy(centre: float, *, spread: float = 0.01, n: int = 100, seed: int = 0) -> list[float]:
    return list(centre * (1 + spread * np.random.default_rng(seed).standard_normal(n)))


def cell(variant: str = "baseline", samples: list[float] | None = None, **changes) -> Record:
    """An ok cell of component `net` that was timed with `samples`."""
    wall = to_builtins(summarize(samples)) if samples else None
    record = Record(
        target="generic_forward",
        component="net",
        variant=variant,
        status="ok",
        dtype="float32",
        scale="full",
        frames_per_call=1,
        metrics={"wall_ms": wall, "latency": {"cold": False}} if wall else {},
        memory={"peak_allocated": 100 * MIB},
        parity={"rel_l2": 0.001, "passed": True},
        prepare={"seconds": 1.0, "graphs": 1},
    )
    return replace(record, **changes)


def write_run(folder: Path, *records: Record, environment: dict | None = ENVIRONMENT, config: str = "") -> Path:
    folder.mkdir()
    for record in records:
        append_record(folder, record)
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    if config:
        (folder / "config.yaml").write_text(config)
    return folder


def two_runs(folder: Path, **environment) -> tuple[Path, Path]:
    """Write A and B of six cells: one of each verdict, one with few samples, and one that failed in B."""
    kernels = [{"name": "kept", "count": 1, "ms": 0.1}]
    before, after = {"kernels": [*kernels, {"name": "old", "count": 2, "ms": 1.0}]}, {"kernels": kernels}
    after["kernels"] = [*kernels, {"name": "new", "count": 3, "ms": 1.5}]
    few = cell("few", noisy(3, n=3))
    a = (
        cell("unchanged", noisy(10, seed=1)),
        cell("worse", noisy(4, seed=2), inside=before),
        cell("better", noisy(3, seed=3)),
        cell("wild", noisy(3, spread=0.2, seed=4)),
        few,
        cell("broken", noisy(2, seed=5)),
    )
    b = (
        cell("unchanged", noisy(10, seed=11)),
        cell("worse", noisy(4.3, seed=12), inside=after, memory={"peak_allocated": 300 * MIB}),
        cell("better", noisy(2.5, seed=13)),
        cell("wild", noisy(3, spread=0.2, seed=14)),
        few,
        cell("broken", status="failed", reason="out of memory"),
    )
    return write_run(folder / "a", *a), write_run(folder / "b", *b, environment={**ENVIRONMENT, **environment})


def dated(when: str | None, revision: str = "a", *, dirty: bool = False) -> dict:
    """Return an environment of that date and git revision."""
    return {**ENVIRONMENT, "captured_at": when, "git": {"revision": revision * 40, "dirty": dirty}}
