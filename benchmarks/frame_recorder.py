"""Measure the host time that recording a frame costs: python benchmarks/frame_recorder.py [--device cpu|cuda] [--quick]

A loop of empty stages is timed with the recorder and without it, in turns, by the CPU time of its thread. On a CUDA
device each stage launches a small kernel, so that events are recorded and read as in an application; the same launches
without a recorder are subtracted. Targets: at most 20 µs a frame and 5 µs a stage.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

from profiling.realtime.recorder import FrameRecorder

ROUNDS, FRAMES = 7, 2000
STAGES = (0, 1, 3, 10)
FRAME_US, STAGE_US = 20.0, 5.0


def kernel(device: str) -> Callable[[], object]:
    if device == "cpu":
        return lambda: None
    import torch

    buffer = torch.zeros(1024, device=device)
    return lambda: buffer.add_(1.0)


def bare(stages: int, frames: int, work: Callable[[], object]) -> float:
    """Return the µs of a frame without blocks."""
    start = time.thread_time()
    for _ in range(frames):
        for _ in range(stages):
            work()
    return (time.thread_time() - start) / frames * 1e6


def recorded(stages: int, frames: int, work: Callable[[], object], device: str, folder: Path) -> float:
    """Return the µs of a recorded frame."""
    names = [f"stage {number}" for number in range(stages)]
    with FrameRecorder(device=device, folder=folder) as recorder:
        for _ in range(10):
            with recorder.frame():
                for name in names:
                    with recorder.stage(name):
                        work()
        start = time.thread_time()
        for _ in range(frames):
            with recorder.frame():
                for name in names:
                    with recorder.stage(name):
                        work()
        return (time.thread_time() - start) / frames * 1e6


def costs(device: str, frames: int, rounds: int) -> dict[int, float]:
    """Return the median µs that recording adds to a frame, by its number of stages."""
    work = kernel(device)
    added: dict[int, list[float]] = {stages: [] for stages in STAGES}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):  # that no frame was saved
        for round_ in range(rounds):
            for stages in STAGES:
                run = Path(folder) / f"{round_}-{stages}"
                before = bare(stages, frames, work)
                added[stages].append(recorded(stages, frames, work, device, run) - before)
    return {stages: statistics.median(times) for stages, times in added.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="few frames: does it run at all?")
    options = parser.parse_args()
    added = costs(options.device, *((50, 1) if options.quick else (FRAMES, ROUNDS)))
    rows = []
    for stages, us in added.items():
        allowed = FRAME_US + STAGE_US * stages
        rows.append((stages, f"{us:.1f}", f"{allowed:.0f}", "yes" if us <= allowed else "no"))
    print(f"host time added to a frame on {options.device}, median of {ROUNDS} rounds of {FRAMES} frames\n")
    print(tabulate(rows, ("stages", "added µs", "allowed µs", "reached"), "github", disable_numparse=True))
    most = max(STAGES)
    print(f"\na stage: {(added[most] - added[0]) / most:.1f} µs")


if __name__ == "__main__":
    main()
