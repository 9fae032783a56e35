"""Compare the bounds of kernels by trace with those by hardware counters: python benchmarks/counter_agreement.py

It runs three networks under two variants with counters=true on a GPU with ncu (Nsight Compute) on the PATH. For each
cell and for all cells it prints the share of the time of the longest kernels for which both name the same ceiling:
memory bandwidth, compute, or neither (profiling/roofline/rules.py). A kernel that one of them cannot judge
counts as disagreement. Expected: at least 90% over all cells.

For comparison it prints the agreement with L2 bandwidth as a fourth class, which no trace shows; that of always
answering `neither`; and how much of the time at a ceiling by one the other confirms. It also prints the bytes that
DRAM moved, and those requested from L2, over the bytes that the trace counts. `--run FOLDER ...` reads runs instead
of making one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from tabulate import tabulate

from profiling.report.trace import traffic
from profiling.results.explanations import CountedKernel, KernelBound
from profiling.results.jsonl import read_records
from profiling.results.record import Record

NETWORKS = ("world_model", "image_decoder", "audio_decoder")
VARIANTS = ("baseline", "compile+cuda_graph")
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
    ratios = [traffic(record, each, moved) for moved in (each.dram_bytes, each.l2_bytes)]
    return (
        re.sub(r"^void |at::native::|\(anonymous namespace\)::|cudnn::engines_precompiled::", "", each.name)[:_NAME],
        *("" if us is None else f"{us:.1f}" for us in (each.mean_us, each.counted_us)),
        *("" if share is None else f"{share:.0%}" for share in shares),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        *(bound or "?" for bound in (each.bound_by_counters, each.bound_by_trace)),
        agrees(each) or "?",
    )


@dataclass(frozen=True)
class Shares:
    """Shares of kernel time, summed over cells; `mean` divides a sum by their number.

    `both`: counters and trace judge the kernel. `same`: they name the same ceiling or neither; `cache`, a part of it:
    neither, with L2 as the reason by counters. `different`: they do not. `ceiling`: at a ceiling by counters;
    `claimed`: by the trace; `confirmed`: at the same by both. `constant` is `same` if the trace judged all kernels
    `neither`.
    """

    cells: int
    both: float
    same: float
    cache: float
    different: float
    ceiling: float
    claimed: float
    confirmed: float
    constant: float

    def mean(self, name: str) -> float:
        """Return the mean over the cells, 0 to 1; 0 without any."""
        return getattr(self, name) / self.cells if self.cells else 0.0


def shares_of(records: Sequence[Record]) -> Shares:
    """Return the sums over all cells with counters; each cell has the same weight."""
    cells = [each.hardware_counters.kernels for each in records if each.hardware_counters is not None]
    found = [_shares(kernels) for kernels in cells]
    names = ("both", "same", "cache", "different", "ceiling", "claimed", "confirmed")
    sums = {name: sum(each[name] for each in found) for name in names}
    constant = sum(_shares([_neither(kernel) for kernel in kernels])["same"] for kernels in cells)
    return Shares(len(cells), **sums, constant=constant)


def _shares(kernels: Sequence[CountedKernel]) -> dict[str, float]:
    """Return, for each field of `Shares`, the share of the time of one cell's kernels (0 to 1)."""
    judged = [(each, agrees(each)) for each in kernels if agrees(each) is not None]
    chosen = {
        "both": [each for each, _ in judged],
        "same": [each for each, word in judged if word != "no"],
        "cache": [each for each, word in judged if word == "yes; L2"],
        "different": [each for each, word in judged if word == "no"],
        "ceiling": [each for each, _ in judged if ceiling_by_counters(each) != "neither"],
        "claimed": [each for each, _ in judged if each.bound_by_trace != "neither"],
        "confirmed": [each for each, word in judged if word == "yes" and each.bound_by_trace != "neither"],
    }
    whole = sum(each.ms for each in kernels)
    return {name: sum(each.ms for each in chosen[name]) / whole for name in chosen}


def ceiling_by_counters(kernel: CountedKernel) -> KernelBound | None:
    """Return the ceiling of a kernel by counters, in the classes of a trace, which have no L2.

    Memory bandwidth by trace is the rate of the fastest copy of as many bytes, which may pass at the rate of L2: then
    that is the ceiling. Where a copy of as many bytes is much faster, the kernel asks L2 for more than its bytes, and
    is below both ceilings.
    """
    if kernel.bound_by_counters != "L2 bandwidth":
        return kernel.bound_by_counters
    return "memory bandwidth" if kernel.bound_by_trace == "memory bandwidth" else "neither"


def agrees(kernel: CountedKernel) -> Literal["yes", "yes; L2", "no"] | None:
    """Return whether both name the same ceiling, or neither; None if one of them does not judge.

    `yes; L2`: both say neither, and by counters the reason is L2, which no trace shows.
    """
    if kernel.bound_by_counters is None or kernel.bound_by_trace is None:
        return None
    if ceiling_by_counters(kernel) != kernel.bound_by_trace:
        return "no"
    return "yes; L2" if (kernel.bound_by_counters, kernel.bound_by_trace) == ("L2 bandwidth", "neither") else "yes"


def _neither(kernel: CountedKernel) -> CountedKernel:
    """Return the kernel with the trace's judgement, if it has one, replaced by `neither`."""
    return msgspec.structs.replace(kernel, bound_by_trace=kernel.bound_by_trace and "neither")


def cell_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a row for each cell; times are relative to the cell's listed kernels."""
    rows = []
    for record in records:
        counters, name = record.hardware_counters, f"{record.component}.{record.variant}"
        if counters is None:
            rows.append((name, *[""] * 5, "; ".join(note for note in record.notes if "counters" in note)))
            continue
        each = _shares(counters.kernels)
        parts = [each[name] for name in ("both", "same", "cache", "different")]
        covered = sum(kernel.share or 0.0 for kernel in counters.kernels)
        seconds = "" if counters.seconds is None else f"{counters.seconds:.0f} s"
        rows.append((name, *(f"{share:.0%}" for share in (covered, *parts)), seconds))
    return rows


def verdict(shares: Shares) -> str:
    """Return whether the bar is reached, and numbers to compare it with."""
    strict = shares.mean("same") - shares.mean("cache")
    lines = [
        f"same ceiling (memory bandwidth, compute, or neither): {shares.mean('same'):.1%} of the time of the longest "
        f"kernels; bar {BAR:.0%}: {'reached' if shares.mean('same') >= BAR else 'NOT reached'}",
        f"with L2 bandwidth as a class of its own, which no trace shows: {strict:.1%}",
        f"a rule that says `neither` of every kernel: {shares.mean('constant'):.1%}",
    ]
    if shares.ceiling and shares.claimed:
        lines.append(
            f"at a ceiling by counters: {shares.mean('ceiling'):.1%}, of which the trace names "
            f"{shares.confirmed / shares.ceiling:.0%}; at a ceiling by trace: {shares.mean('claimed'):.1%}, of which "
            f"counters confirm {shares.confirmed / shares.claimed:.0%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run, print both tables, return 0 where the bar is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, nargs="+", help="finished runs to read")
    parser.add_argument("overrides", nargs="*", help="further overrides of the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = options.run or [Path(temporary) / "run"]
        if options.run is None and (code := run(folders[0], options.overrides)) > 1:
            return code
        records = [record for folder in folders for record in read_records(folder).records]
    measured = ("share", "measured", "DRAM", "L2", "tensor", "FMA", "SM", "occupancy", "DRAM / bytes", "L2 / bytes")
    headers = ("cell", "kernel", "µs", "µs under ncu", *measured, "by counters", "by trace", "same ceiling")
    print(tabulate(kernel_rows(records), headers, disable_numparse=True))
    print()
    words = ("kernels, of all kernel time", "judged by both", "same ceiling", "neither: L2", "different", "took")
    shares = shares_of(records)
    means = (f"{shares.mean(name):.1%}" for name in ("both", "same", "cache", "different"))
    print(tabulate([*cell_rows(records), ("all", "", *means, "")], ("cell", *words), disable_numparse=True))
    print(f"\n{verdict(shares)}")
    return int(shares.mean("same") < BAR)


if __name__ == "__main__":
    sys.exit(main())
