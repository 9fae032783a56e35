"""Time how long the first run of a day measures ceilings: python benchmarks/ceilings_cost.py [--device cpu]

One process starts after the libraries of torch, CUDA and cuDNN were dropped from the page cache, as on a machine that
has just started; another starts with them in it. Each measures twice: the first time includes loading libraries and
starting the device, the second is the measurement alone. Target: at most 5 s for the first. Expected: below 2 s on a
GPU, below 4 s on a CPU, and torch's compiler, whose import takes seconds, is not loaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from tabulate import tabulate

BAR_SECONDS = 5
MEASURE = """
import json, sys, torch
from profiling.roofline.measure_ceilings import measure_ceilings
device = torch.device(sys.argv[1], 0)
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
threads = torch.get_num_threads()
seconds = [measure_ceilings(device, dtype, threads=threads, tf32=False).seconds for _ in range(2)]
print(json.dumps([*seconds, "torch._inductor.config" in sys.modules]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="default: cuda")
    device = parser.parse_args().device
    rows = []
    for cache in ("cold", "warm", "warm"):
        if cache == "cold":
            forget_libraries()
        first, second, compiler = seconds(device)
        within = "yes" if first <= BAR_SECONDS else "no"
        rows.append((cache, f"{first:.2f}", f"{second:.2f}", within, "yes" if compiler else "no"))
    print(f"ceilings on {device}")
    headers = ("page cache", "first, s", "second, s", f"first within {BAR_SECONDS} s", "compiler loaded")
    print(tabulate(rows, headers, "github", disable_numparse=True))


def seconds(device: str) -> tuple[float, float, bool]:
    """Return the seconds of the first and the second measurement of a new process, and whether it imported inductor."""
    command = [sys.executable, "-c", MEASURE, device]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        reason = (ended.stderr.strip().splitlines() or ["no error output"])[-1]
        raise SystemExit(f"error: {device} was not measured: {reason}. Without a GPU: --device cpu")
    return json.loads(ended.stdout)


def forget_libraries() -> None:
    """Drop torch's and NVIDIA's shared libraries from the page cache; this process must not have loaded them."""
    torch_spec = importlib.util.find_spec("torch")
    if torch_spec is None or torch_spec.origin is None:
        raise SystemExit("torch is not installed: pip install -e .")
    package = Path(torch_spec.origin).parent
    for folder in (package, package.parent / "nvidia"):
        for path in folder.rglob("*.so*"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


if __name__ == "__main__":
    main()
