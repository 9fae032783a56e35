"""Measures a device's ceilings in a few seconds: bandwidth, FLOP rate, launch costs; each from its fastest sample."""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from profiling.machine.ceilings import MOST_LOST
from profiling.machine.memory import free_bytes
from profiling.machine.run_queue import RunQueueMonitor
from profiling.machine.tf32 import kept_tf32, set_tf32
from profiling.results.environment import Ceilings
from profiling.trace.device_work import device_work

Call = Callable[[], Any]

#: Bytes of the buffers that are copied and read; the largest exceeds any cache.
SIZES = {
    "cpu": tuple(2**power for power in (18, 20, 22, 24, 26, 28)),
    "cuda": tuple(2**power for power in (20, 22, 24, 26, 28, 30)),
}
#: Widths of the square matrix products; channels and image side of the convolutions. They are measured in this order,
#: until one takes ENOUGH_SECONDS or more: a larger one would not reach a higher rate.
WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
CHANNELS, SIDE = (64, 128, 256), 64
ENOUGH_SECONDS = {"cpu": 0.01, "cuda": 1e-3}
#: Number of kernels whose duration is profiled.
KERNELS = 200

#: Samples per timing; each repeats the call for about SAMPLE_SECONDS, so that the cost of reading the clock is small.
SAMPLES = 5
SAMPLE_SECONDS = 1e-3
MOST_CALLS = 200
#: Seconds for which single calls on a CPU are repeated: beside other programs only few calls run undisturbed.
CPU_SECONDS, LEAST_CALLS = 0.05, 5


def seconds_of(call: Call, device: torch.device) -> float:
    """Return the seconds of `call` on `device`."""
    return cuda_seconds(call) if device.type == "cuda" else cpu_seconds(call)


def cpu_seconds(call: Call) -> float:
    """Return the seconds of the fastest single `call` on the host's clock."""
    call()  # pays for first touches and lazy initialisation
    best, calls, end = float("inf"), 0, time.perf_counter() + CPU_SECONDS
    while calls < LEAST_CALLS or time.perf_counter() < end:
        start = time.perf_counter_ns()
        call()
        best, calls = min(best, time.perf_counter_ns() - start), calls + 1
    return best / 1e9


def cuda_seconds(call: Call) -> float:
    """Return the seconds of `call` on the current CUDA device, without launches: from a CUDA graph of many calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(work: Call) -> float:
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    sample(call)
    count = min(MOST_CALLS, max(1, math.ceil(SAMPLE_SECONDS / max(sample(call), 1e-9))))
    graph = captured(call, count)
    graph.replay()
    return min(sample(graph.replay) for _ in range(SAMPLES)) / count


def captured(call: Call, count: int) -> torch.cuda.CUDAGraph:
    """Capture `count` calls of `call`, which must have run once (captures load no kernels). Keep its tensors alive."""
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # allocates the library workspace of this stream outside the graph's pool
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in repeat(None, count):
            call()
    return graph


@cache
def _side_stream(_device: int) -> torch.cuda.Stream:
    """Return the device's stream for captures, always the same one: libraries keep a workspace for each stream."""
    return torch.cuda.Stream()


@torch.inference_mode()
def measure_ceilings(device: torch.device, dtype: torch.dtype, *, threads: int, tf32: bool) -> Ceilings:
    """Measure `device` in `dtype` with the run's number of threads and TF32 setting; memory is released at the end.

    Raises:
        RuntimeError: the device failed, or has too little free memory.

    """
    started, run_queue = time.perf_counter(), RunQueueMonitor()
    with _as_the_run(device, threads, tf32):
        points = dict(_bandwidths(device))
        rate = _best_rate(_products(device, dtype), device)
        convolved = None
        with suppress(RuntimeError):  # not implemented for this dtype
            convolved = _best_rate(_convolutions(device, dtype), device)
        others = _other_rates(device, dtype)
        launch, gap, replay = _launch_costs(device)
    if not points or not rate:
        raise RuntimeError("too little free memory to measure ceilings")
    if device.type == "cuda":
        torch.cuda.empty_cache()
    copied, read = max(points.items())[1]
    lost_share = run_queue.lost_share()
    return Ceilings(
        dtype=str(dtype).removeprefix("torch."),
        copy_bytes_per_s=copied,
        read_bytes_per_s=read,
        bandwidth=tuple((size, max(rates)) for size, rates in sorted(points.items())),
        matmul_flops_per_s=rate,
        conv_flops_per_s=convolved,
        other_flops_per_s=others,
        launch_us=launch,
        gap_us=gap,
        replay_us=replay,
        seconds=time.perf_counter() - started,
        lost_share=lost_share,
        disturbed=(lost_share or 0.0) > MOST_LOST,
    )


def _bandwidths(device: torch.device) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield (bytes, (copy, read) in bytes/s) for each size of at most an eighth of the free memory."""
    most = free_bytes(device) / 8
    for size in (size for size in SIZES[device.type] if size <= most):
        source = torch.ones(size // 4, dtype=torch.float32, device=device)
        target, total = torch.empty_like(source), torch.empty((), device=device)
        copies = (  # in a graph the driver's copy takes 1.6 times as long as a kernel (H200)
            lambda target=target, source=source: target.copy_(source),
            lambda target=target, source=source: torch.neg(source, out=target),
        )
        copied = 2 * size / min(seconds_of(copy, device) for copy in copies)
        read = seconds_of(lambda source=source, total=total: torch.sum(source, 0, out=total), device)
        yield size, (copied, size / read)


def _other_rates(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Return the best rates of products of dtypes other than the run's, without those that the device lacks.

    A network may compute in several dtypes: quantised, under autocast, or with a part that is kept in float32. A CPU
    converts float16 and float8 first, and its float32 rate is the better ceiling for them.
    """
    others = [torch.float32, torch.bfloat16, torch.int8]
    if device.type == "cuda":
        others += [torch.float16, torch.float8_e4m3fn]
    found: dict[str, float] = {}
    for each in others:
        if each != dtype:
            with suppress(RuntimeError, ValueError):  # not implemented on this device
                name = str(each).removeprefix("torch.").removesuffix("_e4m3fn")
                found[name] = _best_rate(_products(device, each), device)
    return {name: rate for name, rate in found.items() if rate}


def _best_rate(work: Iterable[tuple[float, Call]], device: torch.device) -> float:
    """Return the best FLOP/s of (FLOPs, call), the smallest first; 0 of none. Stops where a larger one adds nothing."""
    best = 0.0
    for flops, call in work:
        seconds = seconds_of(call, device)
        best = max(best, flops / seconds)
        if seconds > ENOUGH_SECONDS[device.type]:
            break
    return best


def _products(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[float, Call]]:
    """Yield (FLOPs, call) of square products in `dtype` (int8: operations), those that memory has room for."""
    generator, most = torch.Generator(device).manual_seed(0), free_bytes(device) / 8
    for width in (width for width in WIDTHS if 4 * width**2 <= most):
        # Random numbers: zeros draw less power and run faster.
        left, right = (torch.randn(width, width, device=device, generator=generator) for _ in range(2))
        yield 2 * width**3, _product(left, right, dtype)


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Call:
    """Return the product of two float32 matrices in `dtype`; libraries want the second one by columns in 8 bits."""
    if dtype == torch.int8:
        left, right = (each.mul(32).clamp(-127, 127) for each in (left, right))
    left, right = left.to(dtype), right.to(dtype)
    if dtype == torch.int8:
        return lambda: torch.ops.aten._int_mm(left, right.t())
    if dtype == torch.float8_e4m3fn:
        one = torch.ones((), device=left.device)
        how = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        return lambda: torch.ops.aten._scaled_mm(left, right.t(), **how)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _convolutions(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[float, Call]]:
    """Yield (FLOPs, call) of 3 × 3 convolutions in `dtype`."""
    generator, images = torch.Generator(device).manual_seed(0), 16 if device.type == "cuda" else 1
    for channels in CHANNELS:
        shapes = (images, channels, SIDE, SIDE), (channels, channels, 3, 3)
        given = (torch.randn(*shape, device=device, generator=generator).to(dtype) for shape in shapes)
        image, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in given)
        yield 2 * images * SIDE**2 * channels**2 * 9, partial(torch.conv2d, image, weight, padding=1)


def _launch_costs(device: torch.device) -> tuple[float, float | None, float | None]:
    """Return µs: host time of a launch and, on CUDA only, the gap between graph nodes and the cost of a replay."""
    operator = torch.ones(1, device=device).neg_
    rows = timeit.repeat(operator, number=MOST_CALLS, repeat=1 + SAMPLES)  # of calls without synchronization
    launch = 1e6 * min(rows) / MOST_CALLS
    if device.type != "cuda":
        return launch, None, None
    torch.cuda.synchronize()
    single = captured(operator, 1)
    in_row = seconds_of(operator, device) * 1e6  # one kernel and one gap
    # The kernel is profiled in an eager call, because the gap is used to predict the replay of eager calls: inside a
    # graph CUPTI reports a duration at least a tenth longer for the same kernel.
    work = device_work(operator, calls=KERNELS)
    gap = None if work is None else max(0.0, in_row - work.busy_ms * 1e3 / work.kernels)
    replay = cpu_seconds(lambda: (single.replay(), torch.cuda.synchronize())) * 1e6
    return launch, gap, max(0.0, replay - in_row)


@contextmanager
def _as_the_run(device: torch.device, threads: int, tf32: bool) -> Iterator[None]:
    """Set threads, TF32 and the current device as a cell's process does, and restore them."""
    before = torch.get_num_threads()
    with kept_tf32(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        set_tf32(tf32)
        if threads != before:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if threads != before:
                torch.set_num_threads(before)
