"""Time regional compilation from an empty cache: python benchmarks/regional.py   (needs a GPU; --tiny: a small network)

Compiles the world model whole, by blocks, and by blocks with the parts between them, each in a process of its own with
empty caches. The table has the seconds until the first call has returned, of these those in which Triton compiled
kernels in the process itself, because inductor's worker processes had not started yet, and the time of a later call (on
a GPU of a replay of a CUDA graph). Below it: the seconds of each frame that Dynamo compiled, and of inductor in it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
#: Options of inductor that skip autotuning, padding and loop reordering.
LESS_TUNING = {"triton.autotune_pointwise": False, "shape_padding": False, "loop_ordering_after_fusion": False}
SETTINGS = {
    "whole": {},
    "blocks": {"regional": True},
    "blocks, less tuning": {"regional": True, "options": LESS_TUNING},
    "blocks and rest": {"regional": True, "rest": True},
    "blocks and rest, less tuning": {"regional": True, "rest": True, "options": LESS_TUNING},
}
CALLS = 60


def measure(setting, tiny) -> dict:
    """Return the measurements of one setting, in this process."""
    import torch
    from torch._dynamo.utils import compilation_time_metrics, get_compilation_metrics

    from models.initialisation import randomise
    from models.world_model import WorldModel, WorldModelParams, world_model_inputs
    from profiling.variants.inductor import Inductor

    device = torch.device("cpu" if tiny else "cuda")
    compiler, folder = Inductor(**setting), Path(tempfile.mkdtemp())
    compiler.start_workers(device)
    params = WorldModelParams.tiny() if tiny else WorldModelParams.full()
    with device:
        model = WorldModel(params).eval()
    randomise(model, 0)
    dtype = torch.float32 if tiny else torch.bfloat16
    generator = torch.Generator(device).manual_seed(1)
    inputs = world_model_inputs(
        model.to(dtype), batch=1, frames=1, generator=generator, device=device.type, dtype=dtype
    )
    with torch.inference_mode(), compiler.flags(folder):
        expected = model(**inputs)[0].float()
        started = perf_counter()
        compiled = compiler.compile(model, [inputs], folder, {})
        output = compiled.call(**inputs)[0].float()
        error = float((output - expected).norm() / expected.norm())
        seconds = perf_counter() - started
        milliseconds = call_ms(lambda: compiled.call(**inputs), device)
    frames = [
        f"{each.co_name} {each.entire_frame_compile_time_s:.2f} s (inductor {each.inductor_compile_time_s or 0:.2f})"
        for each in get_compilation_metrics()
        if each.co_name and each.entire_frame_compile_time_s
    ]
    in_process_s = sum(compilation_time_metrics.get("async_compile.precompile", []))
    return {"seconds": seconds, "ms": milliseconds, "error": error, "frames": frames, "in_process_s": in_process_s}


def call_ms(call, device) -> float:
    """Return the median time of a call in ms: on a GPU that of a replay, between CUDA events."""
    import torch
    from ring_attention import replay_ms

    if device.type == "cuda":
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return replay_ms(graph, CALLS)
    times = []
    for _ in range(CALLS):
        started = perf_counter()
        call()
        times.append(1e3 * (perf_counter() - started))
    return statistics.median(times)


def measure_in_subprocess(name, tiny) -> dict:
    """Return the measurements of the setting `name`, from a process that starts with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, __file__, "--setting", name, *["--tiny"] * tiny]
        done = subprocess.run(
            command, env={**os.environ, **caches, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small network on the CPU")
    parser.add_argument("--setting", choices=SETTINGS, help="measure this one here, and print it as JSON")
    asked = parser.parse_args()
    if asked.setting:
        print(json.dumps(measure(SETTINGS[asked.setting], asked.tiny)))
        return
    import torch

    if not asked.tiny and not torch.cuda.is_available():
        raise SystemExit("benchmarks/regional.py needs a CUDA device; --tiny takes a small network and the CPU")
    where = "CPU, tiny network" if asked.tiny else torch.cuda.get_device_name()
    print(f"regional compilation: {where}, torch {torch.__version__}\n", flush=True)
    measure_in_subprocess("blocks", asked.tiny)  # reads torch's files into memory; not counted
    measured = {name: measure_in_subprocess(name, asked.tiny) for name in SETTINGS}
    whole = measured["whole"]["ms"]
    rows = [
        (name, each["seconds"], each["ms"], each["ms"] / whole, each["error"], each["in_process_s"])
        for name, each in measured.items()
    ]
    headers = (
        "compiled",
        "seconds",
        "call, ms",
        "relative to whole",
        "relative L2 to eager",
        "kernels in the process, s",
    )
    print(tabulate(rows, headers, "github", floatfmt=("", ".2f", ".3f", ".3f", ".1e", ".2f")))
    for name, each in measured.items():
        print(f"\n{name}: {'; '.join(each['frames'])}")


if __name__ == "__main__":
    main()
