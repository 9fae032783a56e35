"""Measure the cost of the graph engine beyond that of the graph: python benchmarks/graph_cost.py   (needs a GPU)

1. Host time of a `CudaGraphed` call over a bare `graph.replay()`, inputs in place, alternating in one process.
   Expected: at most 15 µs, for a network with one input and for the world model's five.
2. Memory of five recorded shapes in the shared pool against the largest alone. Expected: at most 1.3 times.
3. Seconds to capture, per network.
"""

import statistics
import time

import torch
from tabulate import tabulate

from models.clip import build_clip_text, clip_text_inputs
from models.hub import randomise_library
from models.initialisation import randomise
from models.world_model import WorldModel, WorldModelParams, world_model_inputs
from profiling.graphs import CudaGraphed

ROUNDS, CALLS = 9, 200


def world_model():
    with torch.device("cuda"):
        module = WorldModel(WorldModelParams.full()).bfloat16().eval()
    randomise(module, 0)
    generator = torch.Generator("cuda").manual_seed(0)
    return module, lambda frames: world_model_inputs(
        module, batch=1, frames=frames, generator=generator, device="cuda", dtype=torch.bfloat16
    )


def clip_text():
    with torch.device("cuda"):
        module = build_clip_text().bfloat16().eval()
    randomise_library(module, 0)
    generator = torch.Generator("cuda").manual_seed(0)
    return module, lambda batch: clip_text_inputs(
        module, batch=batch, tokens=77, generator=generator, device="cuda", dtype=torch.bfloat16
    )


def host_us(call) -> float:
    """Return host µs until `call` returns; the device is waited for after each, so that no queue fills up."""
    seconds = 0.0
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        seconds += time.perf_counter() - start
        torch.cuda.synchronize()
    return seconds / CALLS * 1e6


def overhead(name, module, inputs) -> tuple[str, float, float, float, float, float]:
    """Return (name, µs of a bare replay, of a call with inputs in place, their difference, with a copy, capture s)."""
    graphed = CudaGraphed(module, alias_outputs=True)
    copying = CudaGraphed(module)
    started = time.perf_counter()
    _, static = graphed.static_inputs(**inputs)
    captured = time.perf_counter() - started
    bare = graphed.newest.graph.replay
    calls = (bare, lambda: graphed(**static), lambda: copying(**inputs))
    for call in calls:
        call()
    rounds = [[host_us(call) for call in calls] for _ in range(ROUNDS)]
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    difference = statistics.median(in_place - alone for alone, in_place, _ in rounds)
    return name, medians[0], medians[1], difference, medians[2], captured


def pool(module, make, sizes) -> tuple[float, float, float]:
    """Return MiB of the pool of the largest size alone, of all sizes in one, and the ratio."""
    alone, together = CudaGraphed(module), CudaGraphed(module)
    alone(**make(max(sizes)))
    largest = alone.counters.pool_bytes
    alone.clear()
    for size in sizes:
        together(**make(size))
    shared = together.counters.pool_bytes
    together.clear()
    return largest / 2**20, shared / 2**20, shared / largest


def main() -> None:
    print(f"graph engine on {torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    costs, pools = [], []
    with torch.inference_mode():
        for name, make, one, sizes in (
            ("clip_text (1 input)", clip_text, 1, (1, 2, 4, 8, 16)),
            ("world_model (5 inputs)", world_model, 1, (1, 2, 4, 8, 16)),
        ):
            module, inputs = make()
            costs.append(overhead(name, module, inputs(one)))
            for order in (sizes, tuple(reversed(sizes))):
                pools.append((name, " ".join(map(str, order)), *pool(module, inputs, order)))
            del module, inputs
    headers = ("network", "bare replay µs", "call, in place µs", "difference µs", "call, copied µs", "capture s")
    print(f"host time, median of {ROUNDS} rounds of {CALLS} calls:\n")
    print(tabulate(costs, headers, tablefmt="github", floatfmt=".3g"))
    print("\nmemory of the pool, batch or frames in the order recorded:\n")
    print(tabulate(pools, ("network", "shapes", "largest alone MiB", "all MiB", "ratio"), "github", floatfmt=".3g"))


if __name__ == "__main__":
    main()
