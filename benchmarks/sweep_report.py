"""The cost of one report over a sweep of 1,000 runs of 12 cells each: seconds, peak memory, and size of the page.

    python benchmarks/sweep_report.py [--runs 1000]

The runs are copies of a committed one with other times, under 2 dtypes × 5 batch sizes × 4 frame counts × 2 kinds of
device × seeds; some cells are wrong, and some jobs died. The CPU seconds tell what a busy machine adds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.json import decode, encode
from msgspec.structs import replace
from tabulate import tabulate

from profiling.report.page import PAGE_FILE
from profiling.report.render import REPORT_FILE
from profiling.results.environment import ENVIRONMENT_FILE
from profiling.results.jsonl import RESULTS_FILE, encode_record, read_records
from profiling.results.measured import Metrics, Summary, Turns
from profiling.results.record import Record
from profiling.results.sweep import Sweep, SweepJob, write_job, write_sweep

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "docs" / "results" / "h200_packages"
CELLS = 12
SECONDS, GIBIBYTES, PAGE_MIB = 20, 1, 10
TIMES = 3
MIB = 2**20
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DEVICES = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="sweep-report-") as name:
        folder = Path(name) / "sweep"
        size = make_sweep(folder, runs)
        print(f"{runs:,} runs of {CELLS} cells, {size / 1e6:.0f} MB of records\n")
        rows = [(i, *report(folder)) for i in range(1, TIMES + 1)]
        page = (folder / PAGE_FILE).read_text(encoding="utf-8")
        assert "### Answer" in (folder / REPORT_FILE).read_text(encoding="utf-8")
        assert page.count("<tr") > runs, "the page has fewer rows than the sweep has jobs"
    headers = ("time", "seconds", "CPU seconds", "peak RSS, GiB")
    print(tabulate(rows, headers, "github", floatfmt=".2f"), end="\n\n")
    seconds, _, memory = (max(column) for column in list(zip(*rows, strict=True))[1:])
    bars = (
        ("report.html and report.md, seconds", SECONDS, seconds),
        ("peak resident memory, GiB", GIBIBYTES, memory),
        ("report.html, MiB", PAGE_MIB, len(page.encode()) / MIB),
    )
    shown = [(what, f"<= {bar}", f"{value:.2f}", "yes" if value <= bar else "no") for what, bar, value in bars]
    print(tabulate(shown, ("what", "bar", "measured", "reached"), "github", disable_numparse=True))


def make_sweep(folder: Path, runs: int) -> int:
    """Write the sweep; return the bytes of its records."""
    rng, records = random.Random(0), read_records(BASE).records[:CELLS]
    environment = decode((BASE / ENVIRONMENT_FILE).read_bytes())
    jobs, size = [], 0
    for number, (overrides, device) in enumerate(itertools.islice(settings(), runs)):
        died = number % 97 == 0
        ended = None if died else (BEGAN + timedelta(minutes=number + 3)).isoformat()
        job = SweepJob(
            number=number,
            folder=str(number),
            overrides=overrides,
            state="died" if died else "done",
            exit_code=-9 if died else 0,
            reason="killed by signal 9" if died else None,
            host=f"node{number % 8}",
            device=f"cuda:0 {device}",
            began=(BEGAN + timedelta(minutes=number)).isoformat(),
            ended=ended,
            tries=1,
        )
        run = folder / job.folder
        run.mkdir(parents=True)
        environment["device"]["name"] = device
        (run / ENVIRONMENT_FILE).write_bytes(encode(environment))
        lines = (encode_record(record) + b"\n" for record in scaled(records, rng, number))
        size += (run / RESULTS_FILE).write_bytes(b"".join(lines))
        (run / PAGE_FILE).touch()
        write_job(folder, job)
        jobs.append(job)
    plan = tuple(replace(job, state="waiting", reason=None) for job in jobs)
    sweep = Sweep(target="generic_forward", launcher="ray", began=BEGAN.isoformat(), argv=("--multirun",), jobs=plan)
    write_sweep(folder, sweep)
    return size


def settings() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the overrides and the device of each job."""
    for seed in itertools.count():
        values = itertools.product(("bfloat16", "float16"), (1, 2, 4, 8, 16), (1, 4, 16, 64), DEVICES)
        for dtype, batch, frames, device in values:
            inputs = (f"component.world_model.inputs.batch={batch}", f"component.image_decoder.inputs.frames={frames}")
            yield (f"dtype={dtype}", *inputs, f"seed={seed}"), device


def scaled(records: tuple[Record, ...], rng: random.Random, job: int) -> Iterator[Record]:
    """Yield the records with times and turns of their own; one of fifty is wrong."""
    factor = rng.uniform(0.5, 2)
    for record in records:
        near = factor * rng.uniform(0.98, 1.02)
        clocks = {name: times(getattr(record.metrics, name), near) for name in ("wall_ms", "device_ms", "host_ms")}
        metrics: Metrics = replace(record.metrics, **clocks)
        wrong = rng.random() < 0.02
        yield replace(
            record,
            metrics=metrics,
            turns=record.turns and turns(record.turns, near * (record.wall_p50 or 1.0), rng, job),
            status="failed" if wrong else "ok",
            reason="parity: relative L2 0.2 is beyond 0.01" if wrong else None,
        )


def turns(measured: Turns, p50: float, rng: random.Random, job: int) -> Turns:
    """Return the turns of a job of its own: windows near `p50`, which is in ms."""
    windows = tuple(replace(window, p50=p50 * rng.gauss(1, 0.002)) for window in measured.windows)
    return replace(measured, began=f"job {job}", windows=windows)


def times(summary: Summary | None, factor: float) -> Summary | None:
    if summary is None:
        return None
    names = ("mean", "min", "p50", "p90", "p95", "p99", "max")
    ends = None if summary.ci95 is None else tuple(factor * end for end in summary.ci95)
    samples = tuple(factor * value for value in summary.samples)
    return replace(summary, **{name: factor * getattr(summary, name) for name in names}, ci95=ends, samples=samples)


def report(folder: Path) -> tuple[float, float, float]:
    """Return (seconds, CPU seconds, peak resident GiB) of `python -m profiling.report`."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "profiling.report", str(folder)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for here, for its own memory
    if process.returncode:
        raise SystemExit(f"error: python -m profiling.report {folder} ended with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20  # KiB on Linux


if __name__ == "__main__":
    main()
