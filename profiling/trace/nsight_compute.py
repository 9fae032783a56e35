"""Nsight Compute's command line, `ncu`: how it is called, and how its CSV is read.

ncu measures hardware counters by launching a kernel again for each group of counters. It prints a row for each launch
on the page `raw`, under a row of metric names and a row of units. Lines of its own begin with `==`. A metric that the
GPU does not have is no error to every version: its column is missing.
"""

from __future__ import annotations

import csv
import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NCU = "ncu"
#: Seconds in which ncu lists the metrics of the GPU.
QUERY_SECONDS = 60.0

_OF_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
#: Metrics by the field of `Launch` that they fill; the first one is taken that the GPU has. Names: Nsight Compute's
#: sections SpeedOfLight, ComputeWorkloadAnalysis and Occupancy.
METRICS: Mapping[str, tuple[str, ...]] = {
    "seconds": ("gpu__time_duration.sum",),
    "dram": (f"dram__throughput.{_OF_ELAPSED}", f"gpu__dram_throughput.{_OF_ELAPSED}"),
    "dram_bytes": ("dram__bytes.sum",),
    "l2": (f"lts__throughput.{_OF_ELAPSED}", f"lts__t_sectors.{_OF_ELAPSED}"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "tensor": (
        f"sm__pipe_tensor_cycles_active.{_OF_ELAPSED}",
        f"sm__pipe_tensor_op_hmma_cycles_active.{_OF_ELAPSED}",
        f"sm__inst_executed_pipe_tensor.{_OF_ELAPSED}",
    ),
    "fma": (f"sm__pipe_fma_cycles_active.{_OF_ELAPSED}", f"sm__inst_executed_pipe_fma.{_OF_ELAPSED}"),
    "sm": (f"sm__throughput.{_OF_ELAPSED}",),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
}
#: Factors to seconds, bytes and shares of 1, by what ncu prints as the unit.
_UNITS = {
    **{"s": 1.0, "sec": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6},
    **{"ns": 1e-9, "nsecond": 1e-9, "byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12, "%": 0.01},
}
_NAME, _GRID, _BLOCK, _PASSES = "Kernel Name", "Grid Size", "Block Size", "profiler__replayer_passes"
_ERROR = re.compile(r"==ERROR==\s*(.+)")
_LONGEST_ERROR = 200


@dataclass(frozen=True)
class Launch:
    """A measured launch of a kernel; None: the GPU has no such counter.

    `grid` and `block` are sizes along x, y and z. `passes` is the number of times that ncu ran the launch. `seconds` is
    the duration under ncu. The others are shares of the peak of the device (0 to 1), `occupancy` of the warps that
    multiprocessors can hold; `dram_bytes` and `l2_bytes` are bytes.
    """

    name: str
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    passes: int | None = None
    seconds: float | None = None
    dram: float | None = None
    dram_bytes: float | None = None
    l2: float | None = None
    l2_bytes: float | None = None
    tensor: float | None = None
    fma: float | None = None
    sm: float | None = None
    occupancy: float | None = None

    @property
    def has_counters(self) -> bool:
        """Whether any of `METRICS` was measured."""
        return any(getattr(self, field) is not None for field in METRICS)


def available() -> str | None:
    """Return the path of `ncu`; None where it is not on the PATH."""
    return shutil.which(NCU)


def metrics_on(ncu: str) -> dict[str, str]:
    """Return the metric that fills each field of `Launch`, of those that `ncu` can measure on this GPU.

    Where ncu does not list them, the first of each is returned: a measurement then says what is wrong.
    """
    listed: set[str] = set()
    with suppress(OSError, subprocess.SubprocessError):
        command = [ncu, "--config-file", "off", "--query-metrics"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, stdin=subprocess.DEVNULL)
        listed = set(re.findall(r"^[\w]+__[\w]+", done.stdout, re.MULTILINE))
    if not listed:
        return {field: names[0] for field, names in METRICS.items()}
    known = {field: [name for name in names if name.partition(".")[0] in listed] for field, names in METRICS.items()}
    return {field: names[0] for field, names in known.items() if names}


def command(
    ncu: str, metrics: Mapping[str, str], functions: Sequence[str], launches: int, output: Path, program: Sequence[str]
) -> list[str]:
    """Return the command that measures kernels of these `functions` which `program` launches in its profiler range.

    The range is that of `torch.cuda.profiler.profile`. Of the launches that share function, grid and block, whose
    template arguments may differ, the first `launches` are measured. ncu writes to the file `output`; it prints mangled
    names, because it shortens others by rules of its own.
    """
    names = "|".join(re.escape(function) for function in functions)
    return [
        *(ncu, "--config-file", "off", "--target-processes", "application-only"),
        *("--clock-control", "none", "--cache-control", "all"),  # caches are flushed before each pass
        *("--profile-from-start", "off", "--graph-profiling", "node"),
        *("--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"),
        *("--filter-mode", "per-launch-config", "--launch-count", str(launches)),
        *("--metrics", ",".join(metrics.values())),
        *("--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled"),
        *("--log-file", str(output)),
        *program,
    ]


@cache
def function_of(name: str) -> str:
    """Return the function of a kernel from its name in a trace or by ncu: without return type, namespaces, arguments.

    `void at::native::(anonymous namespace)::reduce<512, f<int> >(float*)` is `reduce`, as is `at::<unnamed>::reduce`.
    """
    name = re.sub(r"(\(anonymous namespace\)|<?unnamed>)::", "", demangled(name))
    outside, depth = [], 0  # of template arguments
    for letter in name:
        depth += letter == "<"
        if not depth:
            outside.append(letter)
        depth -= letter == ">" and depth > 0
    words = "".join(outside).partition("(")[0].split()
    return words[-1].rpartition("::")[2] if words else ""


def read_launches(text: str, metrics: Mapping[str, str]) -> tuple[Launch, ...]:
    """Return the launches in what ncu wrote with `--csv --page raw`; empty where it measured none.

    Raises:
        ValueError: the rows do not hold what they must.

    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(lines))
    start = next((index for index, row in enumerate(rows) if _NAME in row), None)
    if start is None:
        return ()
    header, *rest = rows[start:]
    units = dict(zip(header, rest[0], strict=False)) if rest else {}
    whole = [dict(zip(header, row, strict=True)) for row in rest[1:] if len(row) == len(header) == len(rest[0])]
    return tuple(
        Launch(
            name=demangled(row[_NAME]),
            grid=_sizes(row.get(_GRID, "")),
            block=_sizes(row.get(_BLOCK, "")),
            passes=int(passes) if (passes := row.get(_PASSES, "")).isdecimal() else None,
            **{field: _number(row[metric], units[metric]) for field, metric in metrics.items() if metric in row},
        )
        for row in whole
    )


def _sizes(cell: str) -> tuple[int, ...] | None:
    """Return a cell like `(128, 2, 1)`."""
    return tuple(map(int, re.findall(r"\d+", cell))) or None


def _number(text: str, unit: str) -> float | None:
    """Return a value in the units of `Launch`; None for `n/a` and for what is no number.

    Raises:
        ValueError: the unit is not known.

    """
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    factor = _UNITS.get(unit.lower())
    if factor is None:
        raise ValueError(f"ncu printed the unit {unit!r}, which is not known")
    return value * factor if value == value and abs(value) != float("inf") else None


def failure_in(text: str) -> str | None:
    """Return why ncu measured nothing, in one line with what to do; None where its output names no error."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM). Run as root, or let the driver allow it to all "
            "users: NVreg_RestrictProfilingToAdminUsers=0"
        )
    errors = [" ".join(found.split()) for found in _ERROR.findall(text)]
    if errors:
        return f"ncu: {errors[0][:_LONGEST_ERROR]}"
    return "ncu met none of the kernels of the trace" if "No kernels were profiled" in text else None


@cache  # so that each name's text, which is never freed, is made once
def demangled(name: str) -> str:
    """Return a C++ symbol as traces show it; names that are no symbols, and all names without libstdc++, stay."""
    if not name.startswith("_Z"):
        return name
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return name
    demangle.restype = ctypes.c_char_p
    text = demangle(name.encode(), None, None, None)
    return text.decode(errors="replace") if text else name
