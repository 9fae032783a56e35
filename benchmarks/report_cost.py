"""Cost of the report of a large traced run: python benchmarks/report_cost.py [--trace FILE] [--megabytes 100]

Makes a run of 15 cells in a temporary folder: the committed H200 run with all its samples, each cell with tables of 300
kernels and 800 submodules, and a profiler trace of 100 MB (the events of a stored one, repeated). Then renders it as a
user does, in a process of its own, three times; the worst counts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tabulate import tabulate

from profiling.report.render import PAGE_FILE, REPORT_FILE
from profiling.results.explained import TraceFiles
from profiling.results.jsonl import append_record, read_records
from profiling.results.record import Record, decode_section

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "docs" / "results" / "h200_diffusion"
STORED = ROOT / "tests" / "data" / "traces"
KERNELS, SUBMODULES = 300, 800
SECONDS, GIBIBYTES, PAGE_MIB = 10, 1, 6
TIMES = 3
MIB = 2**20


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="report-cost-") as folder:
        run = Path(folder) / "run"
        traces = make_run(run, options.trace or largest(STORED), options.megabytes * 10**6)
        print(f"{len(read_records(run).records)} cells, each with a trace of {traces / 1e6:.0f} MB\n")
        rows = [(i, *render(run)) for i in range(1, TIMES + 1)]
        size = (run / PAGE_FILE).stat().st_size / MIB
        assert 'id="trace"' in (run / PAGE_FILE).read_text(encoding="utf-8"), "the page lacks the section of the traces"
        assert "#### Kernels by total time" in (run / REPORT_FILE).read_text(encoding="utf-8")
    print(tabulate(rows, ("time", "seconds", "peak RSS, GiB"), "github", floatfmt=".2f"), end="\n\n")
    seconds, memory = (max(column) for column in list(zip(*rows, strict=True))[1:])
    bars = (
        ("report.html and report.md, seconds", SECONDS, seconds),
        ("peak resident memory, GiB", GIBIBYTES, memory),
        ("report.html with all samples, MiB", PAGE_MIB, size),
    )
    shown = [(what, f"<= {bar}", f"{value:.2f}", "yes" if value <= bar else "no") for what, bar, value in bars]
    print(tabulate(shown, ("what", "bar", "measured", "reached"), "github", disable_numparse=True))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trace", type=Path, help=f"trace whose events are repeated (default: the largest of {STORED.name}/)"
    )
    parser.add_argument("--megabytes", type=int, default=100, help="of each trace, before it is compressed")
    return parser.parse_args()


def largest(folder: Path) -> Path:
    traces = sorted(folder.glob("*.json.gz"), key=lambda path: path.stat().st_size)
    if not traces:
        raise SystemExit(f"error: no trace in {folder}. Name one that a run with trace=true wrote: --trace FILE")
    return traces[-1]


def make_run(run: Path, source: Path, size: int) -> int:
    """Write the run; return the bytes of a trace before it is compressed."""
    (run / "traces").mkdir(parents=True)
    for name in ("environment.json", "config.yaml"):
        shutil.copy(BASE / name, run)
    first, written = run / "first.json.gz", 0
    records = read_records(BASE).records
    # Three cells under one more name: the run has twelve.
    again = [replace(record, variant="compile_max_autotune") for record in records if record.variant == "compile"]
    for record in (*records, *again):
        file = f"traces/{record.component}.{record.variant}.json.gz"
        written = written or write_trace(first, source, size)
        shutil.copy(first, run / file)
        append_record(run, traced(record, file))
    first.unlink()
    return written


def write_trace(path: Path, source: Path, size: int) -> int:
    with gzip.open(source, "rt", encoding="utf-8", errors="replace") as stream:
        events = ",\n".join(json.dumps(event) for event in json.load(stream)["traceEvents"])
    count = max(1, size // len(events))
    written = 0
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as out:
        written += out.write('{"traceEvents": [\n')
        for place in range(count):
            written += out.write(events + ("\n]}" if place == count - 1 else ",\n"))
    return written


def traced(record: Record, file: str) -> Record:
    """Return the record with tables from a trace, as large as those of the largest networks."""
    wall = record.wall_p50 or 1.0
    ms, own = wall / KERNELS, wall / SUBMODULES
    names = [f"void at::native::kernel_{i:03}<{'c10::BFloat16, ' * 8}at::native::functor_{i}>" for i in range(KERNELS)]
    shared = {"ms": ms, "share": 1 / KERNELS, "count": 2.0, "mean_us": 500 * ms, "gbps": 1500.0, "tflops": 20.0}
    paths = [f"stages.{i // 80}.blocks.{i // 8 % 10}.part_{i % 8}" for i in range(SUBMODULES)]
    analysis: dict[str, Any] = {
        **{"calls": 5, "span_ms": 1.1 * wall, "busy_ms": wall, "idle_ms": 0.1 * wall, "kernel_ms": wall},
        **{"count": 2.0 * KERNELS, "idle": {"host_ms": 0.02 * wall, "between_ms": 0.08 * wall}},
        "classes": [{"class": "gemm", "ms": wall, "share": 1.0, "count": 2.0 * KERNELS}],
        "kernels": [{"name": name, "class": "gemm", **shared} for name in names],
        "waits": [{"what": "cudaStreamSynchronize", "count": 1.0, "ms": 0.1, "line": "net.py:1", "code": "x.item()"}],
        "modules": [{"path": path, "ms": own, "share": 1 / SUBMODULES, "count": 1.0, "self_ms": own} for path in paths],
        **{"unattributed_ms": 0.1 * wall, "modules_from": "the step before capture"},
    }
    files = TraceFiles(trace=file, device_ms=wall)
    return replace(record, trace_analysis=decode_section("trace_analysis", analysis), trace=files)


def render(run: Path) -> tuple[float, float]:
    """Return (seconds, peak resident GiB) of `python -m profiling.report`."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "profiling.report", str(run)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for here, for its own memory
    if process.returncode:
        raise SystemExit(f"error: python -m profiling.report {run} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 2**20  # KiB on Linux


if __name__ == "__main__":
    main()
