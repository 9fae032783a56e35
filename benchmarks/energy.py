"""Check the joules of calls and of a paced loop: python benchmarks/energy.py   (needs a GPU that nobody else uses)

1. One captured cell, measured three times: all of its windows must be within 3% of each other.
2. The same network twice in a captured call: 2.0 ± 0.1 times the energy above idle.
3. A paced loop: the sum over its frames must agree within 5% with power times time, where the power is what the driver
   reports (nvmlDeviceGetPowerUsage, as in nvidia-smi), sampled every 20 ms by another process.

Beside it: the step of the driver's counter, what a reading costs, the idle power, and the same cell without a capture.
Exit code 0 where all three are reached.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import nn

from models.initialisation import randomise
from models.world_model import WorldModel, WorldModelParams, world_model_inputs
from profiling.components.component import Component
from profiling.components.spec import Settings
from profiling.graphs import CudaGraphed
from profiling.machine.energy import EnergyCounter, idle_power
from profiling.machine.gc_policy import gc_policy
from profiling.metrics.energy import Energy
from profiling.metrics.metric import Subject
from profiling.metrics.monitor import FrameMonitor
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import parse_graph
from profiling.realtime.plan import LoopOptions, Plan
from profiling.realtime.play import Clock, FrameLoop, series_names
from profiling.realtime.summary import loop_energy, summarize_frames
from profiling.results.energy import Energy as EnergySection
from profiling.results.frames import ENERGY, Journal, recover_series
from profiling.results.loop import Realtime
from profiling.variants.variant import Step

#: Largest spread of windows, of the ratio of the energies, and of the two ways to measure a loop.
WINDOWS_BAR, TWICE_BAR, LOOP_BAR = 0.03, 0.1, 0.05
REPEATS, READS = 3, 200
#: Runs of the network in a frame of the loop, and its frame rate.
RUNS, FPS = 4, 60.0
#: Prints the time and the watts that the driver reports, mean of the last second and now. Arguments: UUID, seconds.
SAMPLER = """
import sys, time, pynvml as n
n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByUUID(sys.argv[1]); end = time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    now = n.nvmlDeviceGetFieldValues(gpu, [n.NVML_FI_DEV_POWER_INSTANT])[0]
    watts = now.value.uiVal / 1e3 if now.nvmlReturn == 0 else float("nan")
    print(time.perf_counter(), n.nvmlDeviceGetPowerUsage(gpu) / 1e3, watts, flush=True)
    time.sleep(0.02)
"""


class Repeated(nn.Module):
    """Calls a network so many times, on the same inputs."""

    def __init__(self, net: nn.Module, times: int) -> None:
        super().__init__()
        self.net, self.times = net, times

    def forward(self, **inputs: Any) -> Any:
        for _ in range(self.times):
            output = self.net(**inputs)
        return output


def world_model(device: torch.device) -> tuple[nn.Module, dict[str, Any]]:
    """Return the world model of 1B parameters and the inputs of one frame."""
    with device:
        module = WorldModel(WorldModelParams.full()).bfloat16().eval()
    randomise(module, 0)
    generator = torch.Generator(device).manual_seed(0)
    options = {"batch": 1, "frames": 1, "device": device, "dtype": torch.bfloat16}
    return module, world_model_inputs(module, generator=generator, **options)


def component_of(module: nn.Module, inputs: dict[str, Any], device: torch.device, name: str = "net") -> Component:
    """Return the component whose calls are measured."""
    return Component(
        name=name,
        module=module,
        inputs=inputs,
        make_inputs=lambda generator: {},
        device=device,
        dtype=torch.bfloat16,
        frames_per_call=1,
        weights="random",
    )


def captured(module: nn.Module, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Return the call of a module as a replay of its CUDA graph."""
    graphed = CudaGraphed(module, alias_outputs=True)
    _, static = graphed.static_inputs(**inputs)
    return lambda: graphed(**static)


def energy_of(call: Callable[[], Any], component: Component) -> EnergySection:
    """Return the energy of a call.

    Raises:
        SystemExit: it is not known.

    """
    section = Energy().measure(Subject(component, Step(call), None, None, 0)).sections["energy"]
    if section.reason is not None:
        raise SystemExit(f"no energy: {section.reason}")
    return section


def counter_row(device: torch.device) -> str:
    """Return what the counter is like: its step, the cost of a reading, and the idle power."""
    counter, costs = EnergyCounter(device), []
    idle = idle_power(counter)
    for _ in range(READS):
        started = time.perf_counter()
        counter.read()
        costs.append(1e6 * (time.perf_counter() - started))
    cost = f"a reading takes {median(costs):.0f} µs (at most {max(costs):.0f})"
    return f"the counter steps every {1e3 * idle.step_s:.1f} ms; {cost}; idle {idle.watts:.1f} W"


def window_spread(sections: list[EnergySection]) -> float:
    """Return the largest difference of two windows over their median, without unit."""
    values = [each.joules / each.calls for section in sections for each in section.windows]
    return (max(values) - min(values)) / median(values)


@contextmanager
def sampled_power(device: torch.device, seconds: float) -> Iterator[Path]:
    """Sample the power in another process for so long; the file has a line for each sample when the block has ended."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        process = subprocess.Popen([sys.executable, "-c", SAMPLER, uuid, str(seconds)], stdout=file)
        try:
            yield Path(file.name)
        finally:
            process.terminate()
            process.wait()


def loop_row(
    call: Callable[[], Any], component: Component, frames: int, idle: EnergySection
) -> tuple[EnergySection, float, list[float]]:
    """Play a paced loop; return its energy, the joules of its sum, and those by each kind of sampled power."""
    device = component.device
    stage = {"component": "net", "inputs": dict.fromkeys(component.inputs, "fixed")}
    graph = parse_graph({"stages": {"net": stage}, "deliver": ["net"]}, ["net"])
    options = LoopOptions(pace="realtime", fps=FPS, deliver="device")
    plan = Plan(graph, options, Settings(dtype="bfloat16"), 16)
    pipeline = assemble(plan, {"net": component}, {"net": call})
    monitor, began = FrameMonitor(device), list[float]()

    def on_first() -> None:
        monitor.start()
        began.append(time.perf_counter())

    warmup = int(3 * FPS)
    with tempfile.TemporaryDirectory() as folder, sampled_power(device, (frames + warmup) / FPS + 60) as samples:
        journal = Journal(Path(folder), "loop", series_names(pipeline))
        loop = FrameLoop(pipeline, Clock(), monitor, period=1 / FPS)
        with gc_policy("frozen"):
            loop.run(range(frames), journal.append, warmup=warmup, on_first=on_first)
        monitor.close()
        journal.close()
        series = recover_series(Path(folder), "loop")
        time.sleep(1.0)
        lines = [line.split() for line in samples.read_text().splitlines()]
    assert series is not None
    section = summarize_frames(series, Realtime(frames=0, target_fps=FPS, pace="realtime"))
    energy = loop_energy(series, section, idle_w=idle.idle_w, step_ms=idle.step_ms)
    if energy is None or energy.reason is not None:
        raise SystemExit(f"no energy of the loop: {energy.reason if energy is not None else monitor.energy_reason}")
    read = np.flatnonzero(np.isfinite(series[ENERGY]))[[0, -1]]
    first_s, last_s = began[0] + series["delivered_ms"][read] / 1e3
    times, *watts = np.array([[float(each) for each in line] for line in lines if len(line) == 3]).T
    moments = np.linspace(first_s, last_s, 100_000)
    power = [float(np.interp(moments, times, each).mean()) * (last_s - first_s) for each in watts]
    return energy, sum(each.joules for each in energy.windows), power


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1200, help="frames of the paced loop")
    frames = parser.parse_args().frames
    if not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device")
    device, started = torch.device("cuda:0"), time.perf_counter()
    print(f"energy on {torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    module, inputs = world_model(device)
    net = component_of(module, inputs, device)
    calls = {times: captured(Repeated(module, times), inputs) for times in (1, 2, RUNS)}
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    print(f"{counter_row(device)}\n")

    cells = {"captured": 1, "captured, twice the work": 2}
    measured: dict[str, list[EnergySection]] = {name: [] for name in cells}
    for repeat in range(REPEATS):
        for name, times in cells.items() if repeat % 2 == 0 else reversed(cells.items()):
            measured[name].append(energy_of(calls[times], net))
    measured["not captured"] = [energy_of(lambda: module(**inputs), net)]
    rows = []
    for name, sections in measured.items():
        for each in sections:
            windows = [window.joules / window.calls for window in each.windows]
            numbers = (each.idle_w, each.watts, each.joules_per_call, *(each.joules_per_call_ci95 or ("", "")))
            took = 1e3 * sum(w.seconds for w in each.windows) / sum(w.calls for w in each.windows)
            rows.append((name, *numbers, each.above_idle_per_call, min(windows), max(windows), took))
    headers = (
        "cell",
        "idle W",
        "mean W",
        "J/call",
        "low",
        "high",
        "above idle J",
        "least window",
        "largest",
        "call, ms",
    )
    print(tabulate(rows, headers, "github", floatfmt=(".0f", ".1f", ".1f", *[".4f"] * 7)))

    energy, joules, power = loop_row(calls[RUNS], net, frames, measured["captured"][0])
    once, twice = (median(each.above_idle_per_call or 0.0 for each in measured[name]) for name in cells)
    spread, ratio, difference = window_spread(measured["captured"]), twice / once, joules / power[0] - 1
    low, high = energy.joules_per_call_ci95 or (float("nan"), float("nan"))
    per_frame = f"{energy.joules_per_frame:.3f} J/frame [{low:.3f}, {high:.3f}]"
    sampled = f"sampled power x time {power[0]:.1f} J (by the power of the moment {power[1]:.1f} J)"
    print(f"\na loop at {FPS:g} FPS, {RUNS} calls of the network in each frame, {frames} frames: {energy.watts:.1f} W,")
    print(f"{per_frame}, above idle {energy.above_idle_per_frame:.3f} J; sum {joules:.1f} J, {sampled}\n")
    bars = [
        ("windows of one captured cell", f"{spread:.2%}", f"within {WINDOWS_BAR:.0%}", spread <= WINDOWS_BAR),
        ("twice the work, above idle", f"{ratio:.3f}", f"2.0 ± {TWICE_BAR}", abs(ratio - 2) <= TWICE_BAR),
        ("loop against sampled power", f"{difference:+.2%}", f"within {LOOP_BAR:.0%}", abs(difference) <= LOOP_BAR),
    ]
    rows = [(*row, "yes" if reached else "NO") for *row, reached in bars]
    print(tabulate(rows, ("bar", "measured", "target", "reached"), "github", disable_numparse=True))
    print(f"{time.perf_counter() - started:.0f} s")
    return int(not all(reached for *_, reached in bars))


if __name__ == "__main__":
    sys.exit(main())
