"""Compare what bounds kernels by our traces with hardware counters: python benchmarks/counter_agreement.py

It runs three networks under two variants with counters=true on a GPU with ncu (Nsight Compute) on the PATH. It prints
for each cell and over all of them the share of the time of its longest kernels for which both name the same bound
(profiling/roofline/kernel_bounds.py), and for which they do but for L2, which the trace cannot see. A kernel that
either cannot judge counts as not agreeing. It also prints the bytes that DRAM moved over those that the trace counts.
Expected: the same bound for at least 90% over all cells. `--run FOLDER` reads a run instead of making one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from profiling.report.hardware_counters import agreement, agrees, traffic
from profiling.results.jsonl import read_records
from profiling.results.record import CountedKernel, Record

NETWORKS = ("world_model", "image_decoder", "audio_decoder")
VARIANTS = ("baseline", "compile_cuda_graph")
BAR = 0.9
#: Few timed calls: only the trace and the counters matter here.
QUICK = (
    *("metric.latency.min_iterations=20", "metric.latency.max_iterations=60", "metric.latency.max_seconds=1"),
    "metric.latency.warmup_max_seconds=1",
)
_NAME = 60


def run(folder: Path, overrides: Sequence[str]) -> int:
    """Run the cells into `folder` and return the exit code; the report goes to stderr."""
    command = [
        *(sys.executable, "-m", "profiling.generic_forward", f"component=[{','.join(NETWORKS)}]"),
        *(f"variant=[{','.join(VARIANTS)}]", "metric=[latency]", "counters=true", f"hydra.run.dir={folder}"),
        *(*QUICK, *overrides),
    ]
    return subprocess.run(command, check=False, stdout=sys.stderr).returncode


def kernel_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a row for each kernel of each cell."""
    return [
        (f"{record.component}.{record.variant}", *_kernel(record, each))
        for record in records
        if record.hardware_counters is not None
        for each in record.hardware_counters.kernels
    ]


def _kernel(record: Record, each: CountedKernel) -> tuple[str, ...]:
    shares = (each.share, each.covered, each.dram, each.l2, each.tensor, each.fma, each.sm, each.occupancy)
    ratio = traffic(record, each)
    return (
        re.sub(r"^void |at::native::|\(anonymous namespace\)::|cudnn::engines_precompiled::", "", each.name)[:_NAME],
        *("" if us is None else f"{us:.1f}" for us in (each.mean_us, each.counted_us)),
        *("" if share is None else f"{share:.0%}" for share in shares),
        "" if ratio is None else f"{ratio:.2f}",
        *(bound or "?" for bound in (each.bound_by_counters, each.bound_by_trace)),
        agrees(each) or "?",
    )


def cell_rows(records: Sequence[Record]) -> tuple[list[tuple[str, ...]], float]:
    """Return a row for each cell and one for all, and the share of all; times are relative to each cell's kernels."""
    rows, found = [], []
    for record in records:
        counters, name = record.hardware_counters, f"{record.component}.{record.variant}"
        if counters is None:
            rows.append((name, *[""] * 5, "; ".join(note for note in record.notes if "counters" in note)))
            continue
        each = agreement(counters.kernels)
        parts = [part / each.whole for part in (each.both, each.same, each.cache, each.different)]
        covered = sum(kernel.share or 0.0 for kernel in counters.kernels)
        seconds = "" if counters.seconds is None else f"{counters.seconds:.0f} s"
        rows.append((name, *(f"{share:.0%}" for share in (covered, *parts)), seconds))
        found.append(parts)
    means = [sum(column) / len(found) for column in zip(*found, strict=True)]
    rows.append(("all", "", *(f"{mean:.1%}" for mean in means), ""))
    return rows, means[1] if means else 0.0


def main() -> int:
    """Run, print both tables, return 0 where the bar is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a finished run to read")
    parser.add_argument("overrides", nargs="*", help="further overrides of the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.run or Path(temporary) / "run"
        if options.run is None and (code := run(folder, options.overrides)) > 1:
            return code
        records = read_records(folder).records
    shares = ("share", "measured", "DRAM", "L2", "tensor", "FMA", "SM", "occupancy", "DRAM / bytes")
    headers = ("cell", "kernel", "µs", "µs under ncu", *shares, "by counters", "by trace", "same")
    print(tabulate(kernel_rows(records), headers, disable_numparse=True))
    rows, share = cell_rows(records)
    print()
    columns = (
        "cell",
        "kernels, of all kernel time",
        "judged by both",
        "same bound",
        "same but for L2",
        "different",
        "took",
    )
    print(tabulate(rows, columns, disable_numparse=True))
    print(f"\nbar: {BAR:.0%} of the time of the longest kernels: {'reached' if share >= BAR else 'NOT reached'}")
    return int(share < BAR)


if __name__ == "__main__":
    sys.exit(main())
