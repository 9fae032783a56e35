"""Measures the ceilings of a device, in a few seconds: what is fastest counts, since a ceiling is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from profiling.limits.ceilings import Ceilings
from profiling.limits.pace import Pace, captured, cpu_seconds, launch_seconds, pace_of
from profiling.limits.processor import ProcessorWatch
from profiling.tracing.device_work import device_work

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
