"""Runs with planted times: what a comparison must conclude is known."""

import json
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from profiling.results.explained import Idle, Kernel, TraceAnalysis
from profiling.results.jsonl import append_record
from profiling.results.loop import Realtime, SoundWindow
from profiling.results.measured import LatencyConditions, Memory, Metrics, Parity, Prepare, Round, RoundSummary
from profiling.results.record import Record
from profiling.results.stats import summarize

MIB = 2**20
ENVIRONMENT = {
    "captured_at": "2026-01-02T03:04:05+00:00",
    "command": "python -m profiling.generic_forward",
    "user_git": {"revision": "a" * 40, "dirty": False},
    "tool_git": {"revision": "f" * 40, "dirty": False},
    "versions": {"torch": "2.11.0", "driver": "580.1"},
    "device": {"type": "cuda", "name": "GPU of 2026", "clock_sm_max_mhz": 1980},
    "threads": 16,
    "scale": "full",
    "dtype_reason": "asked for",
}
WARM = LatencyConditions(cold=False, warmup_iterations=1, warmup_seconds=0.1, settled=True)
PARITY = Parity(reference="fp32 eager", passed=True, rel_l2=0.001)
WRONG = replace(PARITY, passed=False, rel_l2=3.0)


def noisy(centre: float, *, spread: float = 0.01, n: int = 100, seed: int = 0) -> list[float]:
    return (centre * (1 + spread * np.random.default_rng(seed).standard_normal(n))).tolist()


def cell(variant: str = "baseline", samples: list[float] | None = None, **changes) -> Record:
    """An ok cell of component `net` that was timed with `samples`."""
    record = Record(
        target="generic_forward",
        component="net",
        variant=variant,
        status="ok",
        dtype="float32",
        scale="full",
        frames_per_call=1,
        metrics=Metrics(wall_ms=summarize(samples), latency=WARM) if samples else Metrics(),
        memory=Memory(peak_allocated=100 * MIB),
        parity=PARITY,
        prepare=Prepare(seconds=1.0, graphs=1),
    )
    return replace(record, **changes)


def failed(variant: str, reason: str = "planted") -> Record:
    return cell(variant, status="failed", reason=reason)


def measured(seconds: float) -> Metrics:
    """Metrics of fifty samples around `seconds`, without noise worth naming."""
    return cell(samples=noisy(seconds)).metrics


def loop(p50: float = 10.0, rounds: int = 0, sound: SoundWindow | None = None, **options) -> Record:
    """A loop of frames whose own samples are in its file of frames, which is not written here."""
    section = Realtime(
        **{
            **{"frames": 50, "target_fps": 60.0, "pace": "free", "schedule": "sequential", "deliver": "host"},
            **{"steps": 4, "commit": "fused", "guidance": 1.5},
            "sound": sound or SoundWindow(window="windowed", decoded=30, window_latents=120),
            "frame_ms": replace(summarize(noisy(p50)), p50=p50, samples=()),
            **options,
        }
    )
    parts = tuple(Round(frame_ms=RoundSummary(n=50, mean=p50, p50=p50)) for _ in range(rounds))
    fields = {"target": "realtime", "component": "realtime", "parameters": 1_188_129_600}
    return cell("v", realtime=section, rounds=parts or None, **fields)


def in_rounds(record: Record, *sizes: int) -> Record:
    return replace(record, rounds=tuple(Round(wall_ms=RoundSummary(n=n, mean=1.0, p50=1.0)) for n in sizes))


def analysed(idle: Idle | None = None, **kernels: tuple[float, float]) -> TraceAnalysis:
    """A trace analysis of kernels: (launches a call, microseconds of a launch) by name."""
    rows = [
        Kernel(name=name, kind="pointwise", count=number, ms=us * number / 1e3)
        for name, (number, us) in kernels.items()
    ]
    return TraceAnalysis(kernels=tuple(rows), idle=idle)


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
    few = cell("few", noisy(3, n=3))
    before, after = analysed(kept=(1, 100.0), old=(2, 500.0)), analysed(kept=(1, 100.0), new=(3, 500.0))
    a = (
        cell("unchanged", noisy(10, seed=1)),
        cell("worse", noisy(4, seed=2), trace_analysis=before),
        cell("better", noisy(3, seed=3)),
        cell("wild", noisy(3, spread=0.2, seed=4)),
        few,
        cell("broken", noisy(2, seed=5)),
    )
    b = (
        cell("unchanged", noisy(10, seed=11)),
        cell("worse", noisy(4.3, seed=12), trace_analysis=after, memory=Memory(peak_allocated=300 * MIB)),
        cell("better", noisy(2.5, seed=13)),
        cell("wild", noisy(3, spread=0.2, seed=14)),
        few,
        failed("broken", "out of memory"),
    )
    return write_run(folder / "a", *a), write_run(folder / "b", *b, environment={**ENVIRONMENT, **environment})


def dated(when: str | None, revision: str = "a", *, dirty: bool = False) -> dict:
    """Return an environment of that date and revision of the user's code."""
    return {**ENVIRONMENT, "captured_at": when, "user_git": {"revision": revision * 40, "dirty": dirty}}
