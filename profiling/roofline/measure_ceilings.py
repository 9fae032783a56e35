"""Measures the ceilings of a device, in a few seconds: what is fastest counts, since a ceiling is asked for."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import psutil
import torch

from profiling.machine.ceilings import Ceilings
from profiling.trace.device_work import device_work

#: One line for each thread: nanoseconds run, nanoseconds waited in the queue, times scheduled; see proc(5).
_QUEUES = Path("/proc/self/task")


class ProcessorWatch:
    """Looks at the processor from now on, on behalf of `threads` threads that want to run all the time.

    Where those are more than the cores that the process may use, they wait for each other, which tells nothing of
    others: only stolen time counts then.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self._cores = threads, psutil.cpu_count() or 1
        self._crowded = threads > len(os.sched_getaffinity(0))
        self._started, self._waited, self._stolen = time.perf_counter(), _waited_seconds(), _stolen_seconds()

    def lost_share(self) -> float | None:
        """Return which share of the threads' time others had so far; None where the system does not tell."""
        now, waited, stolen = time.perf_counter(), _waited_seconds(), _stolen_seconds()
        if waited is None or self._waited is None or now <= self._started:
            return None
        queued = 0.0 if self._crowded else (waited - self._waited) / self._threads
        return min(1.0, max(0.0, queued + (stolen - self._stolen) / self._cores) / (now - self._started))


def _waited_seconds() -> float | None:
    """Return how long this process's threads have waited for a processor; None where the system does not count it."""
    waits = []
    try:
        for thread in _QUEUES.iterdir():
            try:
                waits.append(int((thread / "schedstat").read_text().split()[1]))
            except (FileNotFoundError, ProcessLookupError):  # it ended since it was listed
                continue
    except (OSError, ValueError, IndexError):
        return None
    return sum(waits) / 1e9 if waits else None


def _stolen_seconds() -> float:
    """Return how long other guests have held the processors of this machine, all of them together."""
    return getattr(psutil.cpu_times(), "steal", 0.0)


Call = Callable[[], Any]
Pace = Callable[[Call], float]

TAKES = 5
#: Launches are repeated within a take until it lasts about this long, so that the clock's own cost is none of it.
TAKE_SECONDS = 1e-3
MOST_CALLS = 200
#: How long single calls on a CPU are repeated: where other programs run too, few of them are left alone.
CPU_SECONDS, LEAST_CALLS = 0.05, 5


def pace_of(device: torch.device) -> Pace:
    """Return what measures the seconds of a call on `device`."""
    return cuda_seconds if device.type == "cuda" else cpu_seconds


def cpu_seconds(call: Call) -> float:
    """Return the seconds of the fastest single `call`, as the host's clock has them."""
    call()  # pays for first touches and lazy initialisation
    best, calls, end = float("inf"), 0, time.perf_counter() + CPU_SECONDS
    while calls < LEAST_CALLS or time.perf_counter() < end:
        start = time.perf_counter_ns()
        call()
        best, calls = min(best, time.perf_counter_ns() - start), calls + 1
    return best / 1e9


def launch_seconds(call: Call) -> float:
    """Return the host's seconds for one of many calls in a row, which is not waited for: the fastest take's mean."""
    _host_take(call, MOST_CALLS)
    return min(_host_take(call, MOST_CALLS) for _ in range(TAKES))


def cuda_seconds(call: Call) -> float:
    """Return the seconds of `call` on the current CUDA device: many of them in one graph, so no launch is in it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def take(work: Call) -> float:
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    take(call)
    count = _count_for(take(call))
    graph = captured(call, count)
    graph.replay()
    return min(take(graph.replay) for _ in range(TAKES)) / count


def captured(call: Call, count: int) -> torch.cuda.CUDAGraph:
    """Capture `count` calls of `call`, which ran before: a capture must load no kernel. Its tensors have to live on."""
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # makes the workspace of this stream, which a capture would put into its own pool
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in repeat(None, count):
            call()
    return graph


@cache
def _side_stream(_device: int) -> torch.cuda.Stream:
    """Return the device's one stream for captures: a library keeps a workspace for each that it ever saw."""
    return torch.cuda.Stream()


def _count_for(seconds: float) -> int:
    return min(MOST_CALLS, max(1, math.ceil(TAKE_SECONDS / max(seconds, 1e-9))))


def _host_take(call: Call, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in repeat(None, count):
        call()
    return (time.perf_counter_ns() - start) / 1e9 / count


#: Bytes of a buffer that is copied and read; the last one is far larger than any cache.
SIZES = {
    "cpu": tuple(2**power for power in (18, 20, 22, 24, 26, 28)),
    "cuda": tuple(2**power for power in (20, 22, 24, 26, 28, 30)),
}
#: Widths of the square products. The next one is tried as long as one takes less than this.
WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
#: Channels, and the side of the image, of the convolutions.
CHANNELS, SIDE = (64, 128, 256), 64
ENOUGH_SECONDS = {"cpu": 0.01, "cuda": 1e-3}
#: Kernels whose own length is looked at.
KERNELS = 200


@torch.inference_mode()
def measure_ceilings(device: torch.device, dtype: torch.dtype, *, threads: int, tf32: bool) -> Ceilings:
    """Measure `device` with the run's threads and TF32; what it allocated is given back.

    Raises:
        RuntimeError: the device failed, or has next to no free memory.

    """
    started, pace = time.perf_counter(), pace_of(device)
    processor = ProcessorWatch(1 if device.type == "cuda" else threads)
    with _as_the_run(device, threads, tf32):
        points = dict(_bandwidths(device, pace))
        rate = _matmul_rate(device, dtype, pace)
        convolved = _conv_rate(device, dtype, pace)
        launch, gap, replay = _launch_costs(device)
    if not points or not rate:
        raise RuntimeError("too little memory is free to measure it")
    if device.type == "cuda":
        torch.cuda.empty_cache()
    copied, read = max(points.items())[1]
    return Ceilings(
        dtype=str(dtype).removeprefix("torch."),
        copy_bytes_per_s=copied,
        read_bytes_per_s=read,
        bandwidth=tuple((size, max(rates)) for size, rates in sorted(points.items())),
        matmul_flops_per_s=rate,
        conv_flops_per_s=convolved,
        launch_us=launch,
        gap_us=gap,
        replay_us=replay,
        seconds=time.perf_counter() - started,
        lost_share=processor.lost_share(),
    )


def _bandwidths(device: torch.device, pace: Pace) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield (bytes, (copy, read) in bytes per second); sizes of which an eighth of the free memory holds no two."""
    most = _free_bytes(device) / 8
    for size in (size for size in SIZES[device.type] if size <= most):
        source = torch.ones(size // 4, dtype=torch.float32, device=device)
        target, total = torch.empty_like(source), torch.empty((), device=device)
        ways = (  # in a graph the driver's own copy is slower than a kernel: on an H200 it takes 1.6 times as long
            lambda target=target, source=source: target.copy_(source),
            lambda target=target, source=source: torch.neg(source, out=target),
        )
        copied = 2 * size / min(pace(way) for way in ways)
        yield size, (copied, size / pace(lambda source=source, total=total: torch.sum(source, 0, out=total)))


def _matmul_rate(device: torch.device, dtype: torch.dtype, pace: Pace) -> float:
    """Return the best FLOPs per second of square products; numbers are random, since zeros draw less power."""
    best = 0.0
    generator = torch.Generator(device).manual_seed(0)
    most = _free_bytes(device) / 8
    for width in (width for width in WIDTHS if 4 * width**2 <= most):
        left, right = (torch.randn(width, width, device=device, generator=generator).to(dtype) for _ in range(2))
        product = torch.empty_like(left)
        seconds = pace(lambda a=left, b=right, out=product: torch.mm(a, b, out=out))
        best = max(best, 2 * width**3 / seconds)
        if seconds > ENOUGH_SECONDS[device.type]:
            break
    return best


def _conv_rate(device: torch.device, dtype: torch.dtype, pace: Pace) -> float | None:
    """Return the best FLOPs per second of 3 × 3 convolutions; None where there is none in `dtype` here."""
    best = 0.0
    generator = torch.Generator(device).manual_seed(0)
    images = 16 if device.type == "cuda" else 1
    for channels in CHANNELS:
        shapes = (images, channels, SIDE, SIDE), (channels, channels, 3, 3)
        given = (torch.randn(*shape, device=device, generator=generator).to(dtype) for shape in shapes)
        image, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in given)
        try:
            seconds = pace(lambda image=image, weight=weight: torch.conv2d(image, weight, padding=1))
        except RuntimeError:  # not implemented for this dtype
            return None
        best = max(best, 2 * images * SIDE**2 * channels**2 * 9 / seconds)
        if seconds > ENOUGH_SECONDS[device.type]:
            break
    return best


def _launch_costs(device: torch.device) -> tuple[float, float | None, float | None]:
    """Return microseconds: the host's for a launch, and on CUDA a graph's beyond a kernel, and a replay's."""
    operator = torch.ones(1, device=device).neg_
    launch = launch_seconds(operator) * 1e6
    if device.type != "cuda":
        return launch, None, None
    torch.cuda.synchronize()
    single = captured(operator, 1)
    in_row = pace_of(device)(operator) * 1e6  # one kernel and one gap
    # Launched one by one, as in the eager call whose replay is foretold: in a graph CUPTI has the same kernel take a
    # tenth longer and more.
    work = device_work(operator, calls=KERNELS)
    gap = None if work is None else max(0.0, in_row - work.busy_ms * 1e3 / work.kernels)
    replay = cpu_seconds(lambda: (single.replay(), torch.cuda.synchronize())) * 1e6
    return launch, gap, max(0.0, replay - in_row)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


@contextmanager
def _as_the_run(device: torch.device, threads: int, tf32: bool) -> Iterator[None]:
    """Set what a cell's process sets for the whole run, and put it back."""
    cuda = torch.backends.cuda.matmul
    before = torch.get_num_threads(), cuda.allow_tf32, torch.backends.cudnn.allow_tf32
    current = torch.cuda.current_device() if device.type == "cuda" else None
    try:
        torch.set_num_threads(threads)
        cuda.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        if device.type == "cuda":
            torch.cuda.set_device(device)
        yield
    finally:
        torch.set_num_threads(before[0])
        cuda.allow_tf32, torch.backends.cudnn.allow_tf32 = before[1:]
        if current is not None:
            torch.cuda.set_device(current)
