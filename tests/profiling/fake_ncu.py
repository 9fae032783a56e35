"""An executable `ncu` for a machine without a GPU: it prints what ncu prints, and runs the program that it is given."""

import csv
import io
import os
import sys
from pathlib import Path

SCRIPT = """#!{python}
import os, runpy, subprocess, sys, time
arguments = sys.argv[1:]
mode = {mode!r}
if "--query-metrics" in arguments:
    print({listed!r})
    sys.exit(0)
output = arguments[arguments.index("--log-file") + 1]
program = arguments[arguments.index("--log-file") + 2 :]
open({seen!r}, "w").write("\\n".join(arguments))
if mode == "hangs":
    time.sleep(600)
if mode == "crashes":
    os.kill(os.getpid(), 11)
code = subprocess.run(program).returncode if mode == "runs" else 0
if code:
    open(output, "w").write(f"==ERROR== The application returned an error code ({{code}}).\\n")
    sys.exit(code)
open(output, "w").write({text!r})
sys.exit(1 if "==ERROR==" in {text!r} else 0)
"""
SAMPLES = Path(__file__).resolve().parents[1] / "data" / "ncu"
#: What ncu lists for a GH100, abridged: base names, without the suffixes of rollups.
LISTED = (SAMPLES / "query_metrics.txt").read_text()
COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size"),
    *("Device", "CC"),
)
PASSES = "profiler__replayer_passes"
UNITS = {
    **{"dram__bytes.sum": "byte", "lts__t_bytes.sum": "byte", "gpu__time_duration.sum": "ns"},
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "%",
}
_BEFORE = """==WARNING== Note: Running with unmodified GPU clocks. Results may be inconsistent.
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Disconnected from process 4711
"""


def sample(name: str) -> str:
    """Return what ncu 2025.3.1 printed on an H200, cut down (tests/data/README.md)."""
    return (SAMPLES / f"{name}.csv").read_text()


def printed(*launches: tuple[str, str, dict[str, str]], units: dict[str, str] = UNITS) -> str:
    """Return ncu's output with `--csv --page raw` for launches of (kernel, grid, {metric: value})."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*COLUMNS, *units, PASSES])
    writer.writerow([*[""] * len(COLUMNS), *units.values(), "pass"])
    for index, (name, grid, values) in enumerate(launches):
        place = [index, 4711, "python3.12", "127.0.0.1", name, 1, 7, "(128, 1, 1)", grid, 0, "9.0"]
        writer.writerow([*place, *(values.get(metric, "n/a") for metric in units), 10])
    return _BEFORE + text.getvalue()


def counters(us: float, **shares: float) -> dict[str, str]:
    """Return the values of a launch as ncu prints them: percents, and nanoseconds with a comma for thousands.

    `shares` in percent: dram, l2, tensor, fma, sm (0 without), occupancy (50 without).
    """
    names = [name for name in UNITS if UNITS[name] == "%"]
    given = {**dict.fromkeys(("dram", "l2", "tensor", "fma", "sm"), 0.0), "occupancy": 50.0, **shares}
    values = dict(zip(names, (f"{value:.2f}" for value in given.values()), strict=True))
    moved = {"dram__bytes.sum": "1,048,576", "lts__t_bytes.sum": "3,145,728"}
    return {"gpu__time_duration.sum": f"{1e3 * us:,.0f}", **moved, **values}


def install(folder: Path, monkeypatch, text: str = "", mode: str = "prints", listed: str = LISTED) -> Path:
    """Put an `ncu` that prints `text` on the PATH; return the file with the arguments of its last measurement.

    `mode` is prints, runs (the program, first), hangs or crashes.
    """
    folder.mkdir(exist_ok=True)
    seen, script = folder / "arguments", folder / "ncu"
    script.write_text(SCRIPT.format(python=sys.executable, mode=mode, listed=listed, text=text, seen=str(seen)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return seen
