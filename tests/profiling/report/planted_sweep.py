"""Sweeps made by hand: known jobs with known times, so that what a report must conclude is known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from report_records import build, clocks

from profiling.results.environment import ENVIRONMENT_FILE
from profiling.results.jsonl import RESULTS_FILE, append_record
from profiling.results.record import Record
from profiling.results.sweep import State, Sweep, SweepJob, write_job, write_sweep

H200 = {"type": "cuda", "name": "NVIDIA H200", "power_limit_w": 700.0}
H100 = {"type": "cuda", "name": "NVIDIA H100", "power_limit_w": 700.0}


@dataclass
class Job:
    """A job to plant: its overrides, its records, and what is not as usual."""

    overrides: str
    records: Sequence[Record] = ()
    state: State = "done"
    device: Mapping[str, Any] = field(default_factory=lambda: H200)
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the SweepJob


def turns(p50: float, noise: float = 5e-4, taken: float = 0.0, blocks: int = 12) -> dict[str, Any]:
    """Make windows whose medians lie at `p50` times 1 ± noise, of cells that differ by 0.25% between processes."""
    windows = [
        {"block": n, "start_s": float(n), "n": 10, "p50": p50 * (1 + noise * (-1) ** n), "cpu_lost_share": taken}
        for n in range(blocks)
    ]
    spread = {"std": 0.0025, "freedom": 8.0, "kind": "captured"}
    return {"began": "now", "beside": [], "windows": windows, "spread": spread}


def cell(component: str, variant: str, p50: float, sm_clock: float | None = None, **changes: Any) -> Record:
    """Make a correct cell that was timed in turns."""
    metrics = clocks(p50, half=0.001 * p50, max=1.05 * p50, p99=1.04 * p50, min=0.99 * p50)
    if sm_clock is not None:
        metrics["latency"] |= {"sm_clock_median_mhz": sm_clock}
    return build(variant, p50, component=component, **({"metrics": metrics, "turns": turns(p50)} | changes))


def pair(component: str, eager: float, compiled: float, **changes: Any) -> tuple[Record, Record]:
    return cell(component, "baseline", eager, **changes), cell(component, "compile", compiled, **changes)


def plant(folder: Path, *jobs: Job) -> Path:
    """Write the sweep and return its folder; only cells of one job took turns."""
    folder.mkdir(parents=True)
    planned = []
    for number, each in enumerate(jobs):
        planned.append(SweepJob(number=number, folder=str(number), overrides=tuple(each.overrides.split())))
        job = replace(planned[-1], state=each.state, **each.facts)
        if each.state == "waiting" and not each.records:
            continue
        run = folder / job.folder
        run.mkdir()
        write_job(folder, job)
        if each.records:
            (run / RESULTS_FILE).touch()
            environment = {"device": each.device, "cpu": {"model": "CPU", "cores": 8}}
            (run / ENVIRONMENT_FILE).write_text(json.dumps(environment))
            for record in each.records:
                own = None if record.turns is None else replace(record.turns, began=f"job {number}")
                append_record(run, replace(record, turns=own))
    began = "2026-01-02T03:04:05+00:00"
    argv = ("--multirun", "dtype=bfloat16,float16")
    write_sweep(folder, Sweep(target="generic_forward", launcher="local", began=began, argv=argv, jobs=tuple(planned)))
    return folder
