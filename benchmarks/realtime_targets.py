"""Targets for the loop, checked on the runs in FOLDER: python benchmarks/realtime_targets.py FOLDER

The runs, on one GPU:
  h200_world_model_step  generic_forward component=[world_model_step]
  h200_realtime_long     realtime, sequential, free, 10000 frames after 2000 to warm up
  h200_realtime_overlap  the same with loop.schedule=overlap
  h200_realtime_paced    600 sequential frames, loop.pace=realtime

Memory and slope have targets for the default schedule (sequential); those of overlapping frames are shown beside them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

from profiling.results.jsonl import read_records
from profiling.results.loop import Realtime
from profiling.results.record import Record

FRAME_MS = 16.6  # 60 FPS


def record(folder: Path, run: str, component: str, variant: str = "compile_cuda_graph") -> Record:
    return {each.cell: each for each in read_records(folder / f"h200_{run}").records}[component, variant]


def loop(folder: Path, run: str) -> Realtime:
    realtime = record(folder, run, "realtime").realtime
    assert realtime is not None, run
    return realtime


def targets(folder: Path) -> list[tuple[str, str, str, bool]]:
    """Return (quantity, target, measured, reached)."""
    step = record(folder, "world_model_step", "world_model_step").metrics.device_ms.p50
    sequential, paced, overlap = (loop(folder, f"realtime{end}") for end in ("_long", "_paced", "_overlap"))
    p99 = sequential.frame_ms.p99
    p50_ratio, p99_ratio = (getattr(overlap.frame_ms, q) / getattr(sequential.frame_ms, q) for q in ("p50", "p99"))
    spent = sequential.budget.parts["unaccounted"].host_ms
    share = spent / sequential.frame_ms.p50
    return [
        ("world_model_step, captured, device median, ms", "<= 1.5", f"{step:.3f}", step <= 1.5),
        ("sequential, delivered to the host, p99, ms", f"<= {FRAME_MS:.1f}", f"{p99:.2f}", p99 <= FRAME_MS),
        ("overlap / sequential, median frame", "<= 1", f"{p50_ratio:.3f}", p50_ratio <= 1),
        ("overlap / sequential, p99", "<= 1", f"{p99_ratio:.3f}", p99_ratio <= 1),
        (f"late of {paced.frames} paced frames", "0", str(paced.late), paced.late == 0),
        ("overhead of the loop, ms (share)", "< 0.2 or 5%", f"{spent:.3f} ({share:.1%})", spent < 0.2 or share < 0.05),
        *_growth(f"{sequential.frames} frames", sequential),
        *_growth(f"{overlap.frames} overlapping frames", overlap),
    ]


def _growth(what: str, loop: Realtime) -> Iterator[tuple[str, str, str, bool]]:
    allocated = loop.memory["allocated"]
    grown = allocated.max - allocated.min
    yield f"allocated over {what}, max - min, bytes", "0", str(grown), grown == 0
    low, high = loop.slope.ci95
    slope = f"[{1000 * low:.3g}, {1000 * high:.3g}]"
    yield f"slope over {what}, ns a frame, 95% interval", "contains 0", slope, low <= 0 <= high


def main() -> None:
    folder = Path(sys.argv[1])
    rows = [(quantity, target, value, "yes" if ok else "no") for quantity, target, value, ok in targets(folder)]
    print(tabulate(rows, ("quantity", "target", "measured", "reached"), "github", disable_numparse=True))


if __name__ == "__main__":
    main()
