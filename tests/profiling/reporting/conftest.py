"""Hand-written records: known numbers in, known text out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from profiling.results.records import Record, append_record

MIB = 2**20


def clocks(p50: float, half: float | None = 0.01, *, device: bool = True) -> dict[str, Any]:
    """Make the sections of a latency metric whose median is `p50` and its interval `p50 ± half`."""
    clock = {
        "n": 200,
        "mean": p50,
        "std": 0.019,
        "min": p50 - 0.04,
        "p50": p50,
        "p90": p50 + 0.02,
        "p95": p50 + 0.03,
        "p99": p50 + 0.1,
        "max": p50 + 0.2,
        "outliers": 3,
        "stopped_by": "interval",
        "samples": [p50, p50],
    }
    if half is not None:
        clock["ci95"] = [p50 - half, p50 + half]
    fps = {"mean": 1000 / p50, "min": 1000 / (p50 + 0.2), "max": 1000 / (p50 - 0.04)}
    latency = {"cold": False, "warmup_iterations": 12, "warmup_seconds": 1.2, "settled": True}
    return {"wall_ms": clock, **({"device_ms": clock} if device else {}), "fps": fps, "latency": latency}


def build(variant: str, p50: float | None = None, **changes: Any) -> Record:
    """Make an ok record on a GPU, or whatever `changes` make of it."""
    content: dict[str, Any] = {
        "target": "generic_forward",
        "component": "world_model",
        "variant": variant,
        "status": "ok",
        "device": "cuda:0",
        "dtype": "bfloat16",
        "parameters": 1_093_823_296,
        "weights": "random",
        "weights_hint": "make checkpoints",
        "frames_per_call": 1,
    }
    if p50 is not None:
        content |= {
            "metrics": clocks(p50),
            "memory": {"peak_allocated": 2291 * MIB},
            "parity": {"reference": "fp32 eager", "rel_l2": 0.0041, "passed": True},
            "prepare": {"seconds": 28.0},
        }
    return Record(**(content | changes))


def frame_loop(p50: float = 9.0, **changes: Any) -> dict[str, Any]:
    """Make the section of a loop of 600 frames that holds 60 FPS and all below, or whatever `changes` make of it."""
    held = {"holds": True, "misses": 0, "longest_run": 0, "longest_stall_ms": 0.0}
    missed = {"holds": False, "misses": 600, "longest_run": 600, "longest_stall_ms": 1.25}
    rates = {24: held, 30: held, 60: held, 120: missed}
    parts: dict[str, dict[str, float]] = {
        "world": {"device_ms": 4.0, "host_ms": 0.5, "share": 0.24},
        "picture": {"device_ms": 3.0, "host_ms": 0.25, "share": 0.18},
        "sound": {"device_ms": 1.0, "host_ms": 0.125, "share": 0.06},
        "deliver": {"device_ms": 0.25, "host_ms": 0.0625, "share": 0.015},
        "wait": {"host_ms": 7.5, "share": 0.45},
        "rest": {"host_ms": 0.2, "share": 0.012},
    }
    flat = {"first": 700 * MIB, "last": 700 * MIB, "min": 690 * MIB, "max": 700 * MIB}
    settings = {"steps": 1, "commit": "fused", "schedule": "sequential", "pace": "free", "deliver": "host"}
    section: dict[str, Any] = {
        **{"frames": 600, "warmup_frames": 60, "target_fps": 60.0, **settings},
        "stages": ["world", "picture", "sound", "deliver"],
        "frame_ms": {"mean": p50, "std": 0.1, "min": 8.5, "p50": p50, "p95": 9.05, "p99": 9.1, "max": 9.5},
        "latency_ms": {"p50": 9.2, "p99": 9.4},
        **{"wall_fps": 110.25, "audio_rtf": 1.47, "late": 0, "holds": True, "sustained_fps": 109.2},
        "budget": {"target_ms": 1000 / 60, "parts": parts, "overhead_ms": 0.75, "overhead_share": 0.083},
        "deadlines": {
            str(rate): {"fps": float(rate), "budget_ms": 1000 / rate, **kept} for rate, kept in rates.items()
        },
        "underruns": {"0": 3, "1": 1, "2": 0, "3": 0},
        "steady": {"from_frame": 12, "settled": True, "p50": 8.99, "p99": 9.08},
        "slope": {"us_per_frame": -0.01, "ci95": [-0.1, 0.08], "growing": False},
        "slow": {"threshold_ms": 10.8, "count": 0, "causes": {}, "frames": []},
        "memory": {"allocated": flat | {"bytes_per_frame": 0.0, "ci95": [0.0, 0.0], "leak": False}},
        "throttle_reasons": [],
    }
    return section | changes


def build_loop(variant: str, section: Mapping[str, Any] | None = None, **changes: Any) -> Record:
    """Make an ok record of a pipeline that ran in a loop; `section` defaults to one that holds 60 FPS."""
    content = {"target": "realtime", "component": "realtime", "realtime": section or frame_loop(), **changes}
    return build(variant, **content)


def faster(ratio: float) -> Mapping[str, Any]:
    return {"vs": "baseline", "wall": ratio, "ci95": [ratio - 0.1, ratio + 0.1]}


@pytest.fixture
def make() -> Callable[..., Record]:
    return build


@pytest.fixture
def make_clocks() -> Callable[..., dict[str, Any]]:
    return clocks


@pytest.fixture
def loop() -> Callable[..., dict[str, Any]]:
    return frame_loop


@pytest.fixture
def make_loop() -> Callable[..., Record]:
    return build_loop


@pytest.fixture
def stalled() -> dict[str, Any]:
    """The section of a loop in which 12 frames are late, and slow."""
    section = frame_loop(late=12, holds=False)
    section["frame_ms"] |= {"p99": 31.2, "max": 45.1}
    section["deadlines"]["60"] |= {"holds": False, "misses": 12, "longest_run": 2, "longest_stall_ms": 28.43}
    frames = [
        {"frame": 60, "ms": 45.1, "causes": ["recompile 0/1", "garbage collection"]},
        *({"frame": 100 + 20 * i, "ms": 40.0 - i, "causes": ["garbage collection"]} for i in range(8)),
        *({"frame": 300 + 20 * i, "ms": 30.0 - i, "causes": ["not attributed"]} for i in range(3)),
    ]
    causes = {"not attributed": 3, "garbage collection": 9, "recompile 0/1": 1}
    section["slow"] = {"threshold_ms": 10.8, "count": 12, "causes": causes, "frames": frames}
    return section


@pytest.fixture
def parity_failed() -> Record:
    """The fastest cell of all, with a wrong answer."""
    return build(
        "cuda_graph",
        1.23,
        status="failed",
        reason="parity: relative L2 error 1.2 is above 0.0078",
        parity={"reference": "fp32 eager", "rel_l2": 1.2, "passed": False},
        speedup=faster(23.3),
    )


@pytest.fixture
def three(parity_failed: Record) -> tuple[Record, ...]:
    """A baseline, a variant that is faster, and one that is wrong."""
    compiled = build("compile", 2.5, speedup=faster(11.5), memory={"peak_allocated": 2506 * MIB})
    return build("baseline", 28.7), compiled, parity_failed


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Sequence[Record]], Path]:
    """Write records as a run folder."""

    def write(records: Sequence[Record]) -> Path:
        run = tmp_path / "2026-01-02"
        run.mkdir()
        (run / "results.jsonl").touch()
        for record in records:
            append_record(run, record)
        return run

    return write


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep the figures that are saved."""
    module = pytest.importorskip("matplotlib.figure")
    kept, saved = [], module.Figure.savefig

    def save(figure: Any, *args: Any, **options: Any) -> None:
        kept.append(figure)
        saved(figure, *args, **options)

    monkeypatch.setattr(module.Figure, "savefig", save)
    return kept
