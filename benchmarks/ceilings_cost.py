"""What measuring the ceilings costs the first run of a day: python benchmarks/ceilings_cost.py [--device cpu]

In processes of their own: after the kernel was asked to forget the libraries of torch, CUDA and cuDNN, as on a machine
that has just started, and with them in its page cache. In each the import of torch's compiler, which on CUDA torch's
profiler makes at its first start (a run with a compile variant has made it before, any other pays for it here), then
the first measurement, which also loads libraries and starts the device, and a second one: what measuring itself takes.
Bar: 5 s for the first, without the import and, on CUDA, with it. Expected: below 2 s, and some seconds for the import.
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
import json, sys, time, torch
started = time.perf_counter()
import torch._inductor.config
imported = time.perf_counter() - started
from profiling.limits.measure import measure_ceilings
device = torch.device(sys.argv[1], 0)
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
threads = torch.get_num_threads()
taken = [measure_ceilings(device, dtype, threads=threads, tf32=False).seconds for _ in range(2)]
print(json.dumps([imported, *taken]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="default: cuda")
    device = parser.parse_args().device
    rows = []
    for cache in ("cold", "warm", "warm"):
        if cache == "cold":
            forget_libraries()
        imported, first, second = seconds(device)
        sums = (first, imported + first) if device == "cuda" else (first,)
        within = ("yes" if total <= BAR_SECONDS else "no" for total in sums)
        rows.append((cache, f"{imported:.2f}", f"{first:.2f}", f"{second:.2f}", *within))
    print(f"ceilings on {device}")
    headers = ("page cache", "import of the compiler, s", "first, s", "second, s", f"first within {BAR_SECONDS} s")
    headers = (*headers, "and with the import") if device == "cuda" else headers
    print(tabulate(rows, headers, "github", disable_numparse=True))


def seconds(device: str) -> list[float]:
    """Return the seconds of the import, of the first and of the second measurement of a new process."""
    command = [sys.executable, "-c", MEASURE, device]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        reason = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise SystemExit(f"error: {device} was not measured: {reason}. Without a GPU: --device cpu")
    return json.loads(ended.stdout)


def forget_libraries() -> None:
    """Drop torch's and NVIDIA's shared libraries from the page cache; this process must not have loaded them."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit("torch is not installed: pip install -e .")
    package = Path(found.origin).parent
    for folder in (package, package.parent / "nvidia"):
        for path in folder.rglob("*.so*"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


if __name__ == "__main__":
    main()
