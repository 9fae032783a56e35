"""Measure what the realtime loop adds to a frame: python benchmarks/loop_cost.py

Three stages that do nothing, as in pipeline=owl: a source and noise into the first, its two outputs into the others,
both delivered. The time of a frame is that of the loop: feeding, handing over, delivering, observing, journal. Target:
below 0.1 ms a frame (median); on a GPU without the copies themselves, which a loop of an application makes too.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

from profiling.components.component import Component
from profiling.components.spec import Settings
from profiling.machine.gc_policy import gc_policy
from profiling.metrics.monitor import FrameMonitor
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import parse_graph
from profiling.realtime.pipeline import StagedPipeline
from profiling.realtime.plan import LoopOptions, Plan
from profiling.realtime.play import Clock, FrameLoop, series_names
from profiling.results.frames import Journal, recover_series

TARGET_MS = 0.1
PIPELINE = {
    "sources": {"action": {"draw": {"a": "normal"}}},
    "stages": {
        "first": {"component": "nothing", "inputs": {"x": "normal", "a": "action.a"}},
        "second": {"component": "nothing", "inputs": {"x": "first"}},
        "third": {"component": "nothing", "inputs": {"x": "first"}},
    },
    "deliver": ["second", "third"],
}


class Nothing(nn.Module):
    """Returns its first input."""

    def forward(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        return x


def pipeline_of(device: torch.device, schedule: str) -> StagedPipeline:
    """Return the pipeline of three stages that do nothing."""
    graph = parse_graph(PIPELINE, ["nothing"])
    components = {
        name: Component(
            name=name,
            module=Nothing(),
            inputs={key: torch.zeros(1, 8, device=device) for key in stage.inputs},
            make_inputs=lambda generator: {},
            device=device,
            dtype=torch.float32,
            frames_per_call=1,
            weights="random",
        )
        for name, stage in graph.stages.items()
    }
    steps = {name: component.call for name, component in components.items()}
    plan = Plan(graph, LoopOptions(schedule=schedule), Settings(dtype="float32"), 16)
    return assemble(plan, components, steps)


@torch.inference_mode()
def measured(device: torch.device, schedule: str, frames: int) -> tuple[float, float]:
    """Return the median time of a frame and of the gap between two frames, in ms."""
    pipeline, monitor = pipeline_of(device, schedule), FrameMonitor(device)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), "loop", series_names(pipeline))
        loop = FrameLoop(pipeline, Clock(), monitor)
        with gc_policy("frozen"):
            loop.run(range(frames), journal.append, warmup=frames // 10, on_first=monitor.start)
        monitor.close()
        journal.close()
        series = recover_series(Path(folder), "loop")
    assert series is not None
    return float(np.median(series["frame_ms"])), float(np.nanmedian(series["gap_ms"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=3000)
    frames = parser.parse_args().frames
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    started, rows = time.perf_counter(), []
    for schedule in ("sequential", "overlap") if device.type == "cuda" else ("sequential",):
        frame_ms, gap_ms = measured(device, schedule, frames)
        ok = "yes" if frame_ms < TARGET_MS else "no"
        rows.append((device.type, schedule, f"{frame_ms:.4f}", f"{gap_ms:.4f}", f"< {TARGET_MS}", ok))
    headers = ("device", "schedule", "frame, ms", "between frames, ms", "target of a frame, ms", "reached")
    print(tabulate(rows, headers, "github", disable_numparse=True))
    print(f"{frames} frames each, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
