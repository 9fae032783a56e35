"""Runs with planted times: what a comparison must conclude is known."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from profiling.results.explanations import Idle, Kernel, TraceAnalysis
from profiling.results.jsonl import append_record
from profiling.results.loop import Realtime
from profiling.results.measured import LatencyConditions, Memory, Metrics, Parity, Prepare, Spread, Turns, Window
from profiling.results.record import Record
from profiling.results.stats import summarize

MIB = 2**20
ENVIRONMENT = {
    "captured_at": "2026-01-02T03:04:05+00:00",
    "command": "python -m profiling.generic_forward",
    "user_git": {"revision": "a" * 40, "dirty": False},
    "tool_git": {"revision": "f" * 40, "dirty": False},
    "versions": {"torch": "2.11.0", "driver": "580.1"},
    "device": {"type": "cuda", "name": "GPU of 2026", "power_limit_w": 700.0},
    "threads": 16,
    "scale": "full",
}
WARM = LatencyConditions(cold=False, warmup_seconds=0.1, settled=True)
PARITY = Parity(reference="fp32 eager", passed=True, rel_l2=0.001)
WRONG = replace(PARITY, passed=False, rel_l2=3.0)


#: The spread that planted runs have stored: equal code in two of their processes differs by 0.1%.
KNOWN = Spread(0.001, 1000.0, kind="CPU")


def noisy(centre: float, *, spread: float = 0.002, n: int = 24, seed: int = 0) -> list[float]:
    """Medians of n windows in ms."""
    return (centre * (1 + spread * np.random.default_rng(seed).standard_normal(n))).tolist()


def cell(variant: str = "baseline", windows_ms: Sequence[float] = (), *, turns: str = "", lost: float = 0.0, **changes):
    """An ok cell of component `net` with these windows, of which others took a share of the CPU.

    Cells with equal `turns` took turns; else those of one run did.
    """
    planted = {
        **{"target": "generic_forward", "component": "net", "status": "ok", "metrics": Metrics()},
        **{"dtype": "float32", "scale": "full", "frames_per_call": 1},
        "memory": Memory(peak_allocated=100 * MIB),
        "parity": PARITY,
        "prepare": Prepare(seconds=1.0),
    }
    if len(windows_ms):
        windows = tuple(
            Window(block=block, start_s=float(block), n=1, p50=ms, cpu_lost_share=lost)
            for block, ms in enumerate(windows_ms)
        )
        planted["turns"] = Turns(began=turns, beside=(), windows=windows, spread=KNOWN)
        planted["metrics"] = Metrics(wall_ms=summarize(windows_ms), latency=replace(WARM, cpu_lost_share=lost))
    return Record(variant=variant, **{**planted, **changes})


def failed(variant: str, reason: str = "planted") -> Record:
    return cell(variant, status="failed", reason=reason)


def loop(windows_ms: Sequence[float] = (), work: dict | None = None, **options) -> Record:
    """A loop of frames with these windows."""
    content = {
        **{"frames": 50, "target_fps": 60.0, "pace": "free", "schedule": "sequential", "deliver": "host"},
        "work": {"steps": 4, "guidance": 1.5} if work is None else work,
        **{"frame_ms": summarize(windows_ms or [10.0]), "windows_ms": tuple(windows_ms)},
    }
    section = Realtime(**(content | options))
    return cell("v", realtime=section, target="realtime", component="realtime", parameters=1_188_129_600)


def analysed(idle: Idle | None = None, **kernels: tuple[float, float]) -> TraceAnalysis:
    """A trace analysis of kernels: (launches a call, microseconds of a launch) by name."""
    rows = (Kernel(name=name, kind="x", count=number, ms=us * number / 1e3) for name, (number, us) in kernels.items())
    return TraceAnalysis(kernels=tuple(rows), idle=idle)


def write_run(folder: Path, *records: Record, environment: dict | None = ENVIRONMENT, config: str = "") -> Path:
    folder.mkdir()
    for record in records:
        if record.turns is not None and not record.turns.began:
            record = replace(record, turns=replace(record.turns, began=str(folder)))
        append_record(folder, record)
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    if config:
        (folder / "config.yaml").write_text(config)
    return folder


def two_runs(folder: Path, **environment) -> tuple[Path, Path]:
    """Write A and B, which took turns, of six cells: one of each verdict, one of few windows, one that failed in B."""
    before, after = analysed(kept=(1, 100.0), old=(2, 500.0)), analysed(kept=(1, 100.0), new=(3, 500.0))

    def planted(variant: str, centre: float, seed: int, **more) -> Record:
        noise = {"spread": more.pop("spread", 0.002), "n": more.pop("n", 24)}
        return cell(variant, noisy(centre, seed=seed, **noise), turns="together", **more)

    a = (
        planted("unchanged", 10, 1),
        planted("worse", 4, 2, trace_analysis=before),
        planted("better", 3, 3),
        planted("wild", 3, 4, spread=0.2),
        planted("few", 3, 5, n=3),
        planted("broken", 2, 6),
    )
    b = (
        planted("unchanged", 10, 11),
        planted("worse", 4.3, 12, trace_analysis=after, memory=Memory(peak_allocated=300 * MIB)),
        planted("better", 2.5, 13),
        planted("wild", 3, 14, spread=0.2),
        planted("few", 3, 15, n=3),
        failed("broken", "out of memory"),
    )
    return write_run(folder / "a", *a), write_run(folder / "b", *b, environment={**ENVIRONMENT, **environment})


def dated(when: str | None, revision: str = "a", *, dirty: bool = False) -> dict:
    """Return an environment of that date and revision of the user's code."""
    return {**ENVIRONMENT, "captured_at": when, "user_git": {"revision": revision * 40, "dirty": dirty}}
