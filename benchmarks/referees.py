"""Is the measurement true? The same callables measured by us and by others: python benchmarks/referees.py

On a CPU, one thread: torch.utils.benchmark.Timer (blocked_autorange) and pyperf (extra [dev]). On a GPU besides:
triton's do_bench, which empties the L2 cache before each call, against our cold samples; do_bench_cudagraph against
our captured ones; and the sum of the kernels in a profiler trace. Expected: within 2% of its counterpart each. Timer is
held against back-to-back calls of ours: it waits for the device once a block, and not once a call.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from referee_callables import Call, callables
from tabulate import tabulate
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from profiling.core.graphs import CudaGraphed
from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.sampling import Limits, collect, warm_up
from profiling.tracing.counters import snapshot

HERE = Path(__file__).resolve().parent
Row = tuple[str, str, float, float]  # callable, referee, theirs and ours in ms


def ours(call: Call, device: torch.device, *, cold: bool = False) -> float:
    """Return our median of a call in ms: of the device's clock where it has one, of the wall clock otherwise."""
    clock, flush = clock_of(device), CacheFlush(device) if cold else None

    def take():
        if flush is not None:
            flush()
        return clock.sample(call)

    limits = Limits(interval=0.002, max_seconds=3.0)
    warm_up(take, snapshot, limits, time.perf_counter)
    samples, _ = collect(take, limits, time.perf_counter, lambda: None)
    return statistics.median([sample.wall if sample.device is None else sample.device for sample in samples])


def back_to_back(call: Call, device: torch.device, count: int = 100) -> float:
    """Return the time of a call in ms when the device is waited for once in `count` calls: the median of rounds."""

    def many() -> None:
        for _ in range(count):
            call()

    clock = clock_of(device)
    return statistics.median(clock.sample(many).wall / count for _ in range(9))


def timer(call: Call) -> float:
    return 1e3 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=1).median


def pyperf_medians() -> dict[str, float]:
    """Return pyperf's medians in ms by name, from processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pyperf.json"
        command = [sys.executable, str(HERE / "referees_pyperf.py"), "-q", "-o", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        content = json.loads(path.read_text())
    return {
        bench["metadata"]["name"]: 1e3 * statistics.median(v for run in bench["runs"] for v in run.get("values", ()))
        for bench in content["benchmarks"]
    }


def kernel_ms(call: Call, count: int = 20) -> float:
    """Return the summed time of a call's kernels in ms, from a profiler trace of `count` calls."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e3 / count


def on_cpu() -> list[Row]:
    torch.set_num_threads(1)
    device, theirs, rows = torch.device("cpu"), pyperf_medians(), []
    for name, call in callables("cpu").items():
        rows.append((name, "torch Timer", timer(call), ours(call, device)))
        rows.append((name, "pyperf", theirs[name], ours(call, device)))
    return rows


def on_cuda() -> list[Row]:
    from triton.testing import do_bench, do_bench_cudagraph  # pyright: ignore[reportMissingImports]

    device, rows = torch.device("cuda"), []
    for name, call in callables("cuda").items():
        graphed: Callable[[], object] = CudaGraphed(call)
        graphed()
        rows += [
            (name, "torch Timer, back to back", timer(call), back_to_back(call, device)),
            (name, "do_bench, cold", do_bench(call, return_mode="median"), ours(call, device, cold=True)),
            (name, "do_bench_cudagraph", do_bench_cudagraph(call, return_mode="median"), ours(graphed, device)),
            (name, "sum of kernels, captured", kernel_ms(graphed), ours(graphed, device)),
        ]
    return rows


def main() -> None:
    with torch.inference_mode():
        rows = on_cuda() if torch.cuda.is_available() else on_cpu()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, 1 thread"
    print(f"referees on {name}, torch {torch.__version__}\n")
    shown = [(what, who, f"{theirs:.5g}", f"{mine:.5g}", f"{mine / theirs:.4f}") for what, who, theirs, mine in rows]
    headers = ("callable", "referee", "theirs, ms", "ours, ms", "ours / theirs")
    print(tabulate(shown, headers, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
