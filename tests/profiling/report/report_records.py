"""Hand-written records for tests of the report: known numbers in, known text out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from profiling.report.answer import answer_section
from profiling.report.cells import cells_section
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.report.table import AnyTable
from profiling.results.environment import Environment
from profiling.results.jsonl import decode_record
from profiling.results.record import Record
from profiling.results.stats import rates_of_calls

MIB = 2**20
RESULTS = Path(__file__).parents[3] / "docs" / "results"


def summary(p50: float, n: int = 400, **changes: Any) -> dict[str, Any]:
    """Make a clock of `n` samples within 0.01% of `p50`."""
    return {
        **{"n": n, "mean": p50, "std": 0.019, "min": max(p50 / 2, p50 - 0.04), "p50": p50, "p90": p50 + 0.02},
        **{"p95": p50 + 0.03, "p99": p50 + 0.1, "max": p50 + 0.2, "ci95": [p50 - 0.01, p50 + 0.01]},
        **{"stopped_by": "interval", "samples": [p50 * (1 + (-1) ** place * 1e-4) for place in range(n)]},
        **changes,
    }


def clocks(p50: float, *, device: bool = True, **changes: Any) -> dict[str, Any]:
    """Make the sections of a latency metric, bound by the device; `changes` go into its wall clock."""
    clock = summary(p50, **changes)
    fps = {"mean": 1000 / p50, "min": 1000 / (p50 + 0.2), "max": 1000 / (p50 - 0.04)}
    latency = {"cold": False, "warmup_seconds": 1.2, "settled": True}
    of_device = {"device_ms": clock, "host_ms": summary(0.1 * p50)} if device else {}
    rates = msgspec.to_builtins(rates_of_calls(clock["samples"], 1))
    return {"wall_ms": clock, **of_device, "fps": fps, "latency": latency, "rates": rates}


def build(variant: str, p50: float | None = None, **changes: Any) -> Record:
    """Make an ok record on a GPU, or whatever `changes` (JSON content) make of it."""
    content: dict[str, Any] = {
        **{"schema": 2, "target": "generic_forward", "component": "world_model", "variant": variant, "status": "ok"},
        **{"device": "cuda:0", "dtype": "bfloat16", "parameters": 1_093_823_296, "frames_per_call": 1},
        **{"weights": "random", "weights_hint": "make checkpoints"},
    }
    if p50 is not None:
        content |= {
            "metrics": clocks(p50),
            "memory": {"peak_allocated": 2291 * MIB},
            "parity": {"reference": "fp32 eager", "rel_l2": 0.0041, "tolerance": 0.0082, "passed": True},
            "prepare": {"seconds": 28.0},
        }
    kept = {key: value for key, value in (content | changes).items() if value is not None}
    record = decode_record(json.dumps(kept).encode())
    assert record is not None, changes
    return record


def in_turns(
    variant: str,
    p50: float,
    *,
    noise: float = 1e-3,
    std: float = 2e-4,
    freedom: float = 100.0,
    taken: float = 0.0,
    drift: float = 1.0,
    windows: int = 24,
    **changes: Any,
) -> Record:
    """Make a record that took turns with others, bound by the device.

    `noise`: relative standard deviation of a window. `std`: of equal code between processes, known with so many degrees
    of `freedom`. `taken`: share of the CPU that others took. `drift`: the last window over the first.
    """
    draw = np.random.default_rng(list(variant.encode()))
    medians = p50 * np.exp(noise * draw.standard_normal(windows) + np.log(drift) * np.linspace(-0.5, 0.5, windows))
    spread = {"std": std, "freedom": freedom, "learned": 3, "kind": "CPU"}
    timed = [
        {"block": place, "start_s": place, "n": 400 // windows, "p50": ms, "cpu_lost_share": taken}
        for place, ms in enumerate(medians.tolist())
    ]
    metrics = clocks(p50)
    metrics["latency"]["cpu_lost_share"] = taken
    turns = {"began": "now", "beside": [], "spread": spread, "windows": timed}
    return build(variant, p50, metrics=metrics, turns=turns, **changes)


def faster(ratio: float, **changes: Any) -> Mapping[str, Any]:
    return {"vs": "baseline", "wall": ratio, "ci95": [ratio - 0.1, ratio + 0.1], **changes}


def rate(fps: int, late: int = 0, bursts: int | None = None, **changes: Any) -> dict[str, Any]:
    """Make what a record says of a frame rate."""
    known = {"fps": float(fps), "budget_ms": 1000 / fps, "misses": late, "bursts": late if bursts is None else bursts}
    return known | {"longest_stall_ms": 1.25 if late else 0.0} | changes


def rates(*held: int) -> dict[str, Any]:
    """Make the common frame rates of a loop of 600 frames, which all are late at those that are not held."""
    return {f"{fps}": rate(fps, *(() if fps in held else (600, 1))) for fps in (120, 60, 30, 24)}


def frame_loop(p50: float = 9.0, **changes: Any) -> dict[str, Any]:
    """Make the section of a loop of 600 frames that holds 60 FPS and all below, or whatever `changes` make of it."""
    times = {  # of stages, and of what else takes time: on the device, on the host, of the budget
        **{"world": (4.0, 0.5, 0.24), "picture": (3.0, 0.25, 0.18), "sound": (1.0, 0.125, 0.06)},
        **{"deliver": (0.25, 0.0625, 0.015), "wait": (None, 7.5, 0.45), "unaccounted": (None, 0.75, 0.045)},
    }
    parts = {
        name: {"host_ms": host, "share": share} | ({"device_ms": device} if device else {})
        for name, (device, host, share) in times.items()
    }
    flat = {"first": 700 * MIB, "last": 700 * MIB, "min": 690 * MIB, "max": 700 * MIB}
    section: dict[str, Any] = {
        **{"frames": 600, "warmup_frames": 60, "target_fps": 60.0, "work": {"steps": 1, "commit": "fused"}},
        **{"schedule": "sequential", "pace": "free", "deliver": "host"},
        "stages": ["world", "picture", "sound", "deliver"],
        "frame_ms": summary(p50, 600, std=0.1, min=8.5, p95=9.05, p99=9.1, max=9.5, samples=[]),
        "latency_ms": summary(9.2, 600, p99=9.4, samples=[]),
        "windows_ms": [p50 + 0.01 * (number % 3 - 1) for number in range(24)],
        **{"wall_fps": 110.25, "audio_rtf": 1.47, "late": 0, "sustained_fps": 109.2},
        **{"budget": {"parts": parts}, "deadlines": rates(24, 30, 60), "underruns": {"0": 3, "1": 1, "2": 0, "3": 0}},
        "steady": {"from_frame": 12, "settled": True, "p50": 8.99, "p99": 9.08},
        "slope": {"us_per_frame": -0.01, "ci95": [-0.1, 0.08], "growing": False},
        "slow": {"threshold_ms": 10.8, "count": 0, "causes": {}, "frames": []},
        "memory": {"allocated": flat | {"bytes_per_frame": 0.0, "ci95": [0.0, 0.0], "leak": False}},
    }
    return section | changes


def stalled_loop(**changes: Any) -> dict[str, Any]:
    """Make the section of a loop in which 12 frames are late, and slow, or whatever `changes` make of it."""
    section = frame_loop(late=12)
    section["frame_ms"] |= {"p99": 31.2, "max": 45.1}
    section["deadlines"]["60"] = rate(60, 12, 11, longest_stall_ms=28.43)
    frames = [
        {"frame": 60, "ms": 45.1, "causes": ["recompile 0/1", "garbage collection"]},
        *({"frame": 100 + 20 * i, "ms": 40.0 - i, "causes": ["garbage collection"]} for i in range(8)),
        *({"frame": 300 + 20 * i, "ms": 30.0 - i, "causes": ["not attributed"]} for i in range(3)),
    ]
    causes = {"not attributed": 3, "garbage collection": 9, "recompile 0/1": 1}
    section["slow"] = {"threshold_ms": 10.8, "count": 12, "causes": causes, "frames": frames}
    return section | changes


def build_loop(variant: str, section: Mapping[str, Any] | None = None, **changes: Any) -> Record:
    """Make an ok record of a pipeline that ran in a loop; `section` defaults to one that holds 60 FPS."""
    content = {"target": "realtime", "component": "realtime", "realtime": section or frame_loop(), **changes}
    return build(variant, **content)


def rows(table: AnyTable) -> list[dict[str, str]]:
    """Return the cells of each row as they are shown, by header; what is struck out in tildes."""
    columns, cells = table.shown()
    return [
        {c.header: f"~~{cell.text}~~" if cell.struck else cell.text for c, cell in zip(columns, row, strict=True)}
        for row in cells
    ]


def run_data(*records: Record, folder: Path = Path(), environment: Mapping[str, Any] | None = None) -> RunData:
    known = msgspec.convert(environment or {}, Environment)
    return RunData(tuple(records), known, folder)


def titled(section: Section) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each table that shows something, by its title."""
    return {table.title: rows(table) for table in section.tables if table}


def cells(*records: Record) -> list[dict[str, str]]:
    """Return what the report shows of each cell: its row of the answer, and that in detail."""
    data = run_data(*records)
    shown, details = titled(answer_section(data))["Cells"], titled(cells_section(data))["Cells in detail"]
    return [row | more for row, more in zip(shown, details, strict=True)]
