"""Measure the cost of measuring, and check the device clock: python benchmarks/harness_cost.py

1. Overhead: the timed loop around a step that does nothing: what an iteration costs beside the reported wall time,
   and what the clock adds to that. Looking for slow calls: after a call of usual length, and after a long one; and
   what it would take to read the counters after every call, so that nothing is apportioned.
2. Device clock: the eager world model measured by the harness and by a bare CUDA-event loop, alternating in one
   process so that drift of the device is in both. Expected: within 2%.
"""

import argparse
import statistics
import time
from contextlib import closing

import torch
from tabulate import tabulate

from models.initialisation import randomise
from models.world_model import WorldModel, WorldModelParams, world_model_inputs
from profiling.metrics.clocks import CallClock
from profiling.metrics.latency import TimedWindowMonitor
from profiling.metrics.monitor import CallMonitor, EventCounter
from profiling.metrics.sampling import Sample, Turn, collect_window

ROUNDS, CALLS = 5, 5000


def nothing() -> None:
    """Do nothing."""


def overhead_us(device: torch.device) -> tuple[float, float]:
    """Return (µs of an iteration outside the reported wall time, µs that the clock itself adds to it)."""
    clock, samples = CallClock(device), list[Sample]()
    with closing(CallMonitor(device)) as calls:
        observed = TimedWindowMonitor(device, calls).observed(lambda: clock.sample(nothing))
        start = time.perf_counter()
        while len(samples) < CALLS:
            samples += collect_window(observed, Turn(seconds=1.0, calls=CALLS), time.perf_counter)
        per_iteration = (time.perf_counter() - start) / len(samples) * 1e6
    reported = statistics.fmean(each.wall for each in samples) * 1e3
    return per_iteration - reported, reported


def observing_us(device: torch.device, count: int = 20_000) -> tuple[float, float]:
    """Return the µs that observing takes (after a call of usual length, after a long one), between samples."""
    with closing(CallMonitor(device)) as calls:
        times = []
        for every in (count, 10):
            start = time.perf_counter()
            for number in range(count):
                calls(3.0 if number % every == every - 1 else 1.0)
            times.append((time.perf_counter() - start) / count * 1e6)
    usual, mixed = times
    return usual, 10 * mixed - 9 * usual


def reading_us(device: torch.device, *, switches: bool, count: int = 5_000) -> float:
    """Return the µs that it takes to read the counters after a call in which nothing happened but a context switch.

    Calls with several threads have those: the kernel's files are then read, too.
    """
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # a process that compiled has more to read
    seconds = 0.0
    with closing(EventCounter(device, skips=True)) as counter:
        for number in range(count):
            if switches:
                time.sleep(1e-6)
            start = time.perf_counter()
            counter.read(number, look=False)
            seconds += time.perf_counter() - start
    return seconds / count * 1e6


def bare_event_loop(step, count: int) -> list[float]:
    """Time `step` with two events and nothing else around it."""
    times = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times


def device_clock(device: torch.device) -> list[tuple[str, float, float, float]]:
    with device:
        module = WorldModel(WorldModelParams.full()).bfloat16().eval()
    randomise(module, 0)
    generator = torch.Generator(device).manual_seed(0)
    inputs = world_model_inputs(module, batch=1, frames=1, generator=generator, device=device, dtype=torch.bfloat16)
    clock = CallClock(device)
    ours, bare = [], []
    with torch.inference_mode():
        step = lambda: module(**inputs)  # noqa: E731
        bare_event_loop(step, 50)
        for _ in range(ROUNDS):
            ours.append(statistics.median(clock.sample(step).device for _ in range(100)))
            bare.append(statistics.median(bare_event_loop(step, 100)))
    return [(str(i), a, b, a / b) for i, (a, b) in enumerate(zip(ours, bare, strict=True))] + [
        ("median", statistics.median(ours), statistics.median(bare), statistics.median(ours) / statistics.median(bare))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"harness cost on {name}, torch {torch.__version__}\n")
    rounds = [overhead_us(device) for _ in range(ROUNDS)]
    for clock, what in enumerate(("outside the sample", "inside the sample (events, waiting for them)")):
        values = sorted(pair[clock] for pair in rounds)
        spread = f"({values[0]:.1f} to {values[-1]:.1f})"
        print(f"a step that does nothing, {what}: {statistics.median(values):.1f} µs {spread}")
    print(f"({ROUNDS} rounds of 5000; outside the sample, at most 20 µs is the target)\n")
    observed = [observing_us(device) for _ in range(ROUNDS)]
    usual, long = (statistics.median(values) for values in zip(*observed, strict=True))
    print("looking for slow calls, outside the sample, every 64th reading included:")
    print(f"after a call of usual length {usual:.2f} µs (target 2), after one 20% longer {long:.0f} µs")
    idle, switched = (
        statistics.median(reading_us(device, switches=each) for _ in range(ROUNDS)) for each in (False, True)
    )
    print(f"reading the counters after every call instead: {idle:.2f} µs, with a context switch {switched:.0f} µs\n")
    if device.type == "cuda":
        rows = device_clock(device)
        headers = ("round", "harness, device ms", "bare events, ms", "ratio")
        print("eager world model (1B, bf16, one frame), median of 100 calls a round:\n")
        print(tabulate(rows, headers, tablefmt="github", floatfmt=".4f"))


if __name__ == "__main__":
    main()
