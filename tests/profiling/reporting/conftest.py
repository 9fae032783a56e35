"""Hand-written records: known numbers in, known text out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from profiling.core.records import Record, append_record

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


def faster(ratio: float) -> Mapping[str, Any]:
    return {"vs": "baseline", "wall": ratio, "ci95": [ratio - 0.1, ratio + 0.1]}


@pytest.fixture
def make() -> Callable[..., Record]:
    return build


@pytest.fixture
def make_clocks() -> Callable[..., dict[str, Any]]:
    return clocks


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
