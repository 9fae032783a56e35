"""Is the measurement true? The same callables measured by us and by others: python benchmarks/referees.py

On a CPU, one thread: torch.utils.benchmark.Timer and pyperf (extra [dev]). On a GPU besides:
triton's do_bench, which empties the L2 cache before each call, against our cold samples; do_bench that leaves the cache
alone against our hot ones; do_bench_cudagraph against our captured ones; and how long kernels ran in a profiler trace.
Expected: within 2% of its counterpart each. Timer is held against back-to-back calls of ours: it waits for the device
once a block, and not once a call.

do_bench keeps a queue in front of the device, and do_bench_cudagraph many calls in one graph. We wait for each call, as
a loop that shows every frame does, so that ours holds the time in which an idle device waits for its first kernel, some
10 to 20 µs: the callables take milliseconds. Each row is taken in turns, theirs and ours; standard error has them all.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from referee_callables import callables
from referee_rows import BAR, Row, in_turns, ours, timer
from tabulate import tabulate

HERE = Path(__file__).resolve().parent


def pyperf_median(number: int) -> float:
    """Return pyperf's median in ms of a callable, given by its place, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pyperf.json"
        command = [sys.executable, str(HERE / "referees_pyperf.py"), "-q", "-o", str(path), "--number", str(number)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        content = json.loads(path.read_text())
    return 1e3 * statistics.median(v for run in content["benchmarks"][0]["runs"] for v in run.get("values", ()))


def on_cpu() -> Iterator[Row]:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    for number, (name, call) in enumerate(callables("cpu").items()):
        mine = partial(ours, call, device)
        yield in_turns(name, "torch Timer", partial(timer, call), mine)
        yield in_turns(name, "pyperf", partial(pyperf_median, number), mine, 9)  # each starts processes of its own


def on_cuda() -> Iterator[Row]:
    from referees_cuda import against  # triton is needed, which comes with CUDA builds of torch only

    for name, call in callables("cuda").items():
        yield from against(name, call, torch.device("cuda"))


def main() -> None:
    rows = []
    with torch.inference_mode():
        for row in on_cuda() if torch.cuda.is_available() else on_cpu():
            rows.append(row)
            print(json.dumps(row.to_json()), file=sys.stderr, flush=True)  # a run that is cut keeps its rows
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, 1 thread"
    print(f"referees on {name}, torch {torch.__version__}\n")
    headers = ("callable", "referee", "theirs, ms", "ours, ms", "ours / theirs, 95% interval", f"within {BAR:.0%}")
    print(tabulate([row.cells() for row in rows], headers, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
