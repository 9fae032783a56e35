"""How long does the first answer take? python benchmarks/first_answer.py [--only TARGET] [KEY=VALUE ...]

Runs the main job and, on a GPU, the real-time loop as a user does: from empty compiler caches, and once more with the
caches that the first run has left. Prints the seconds of each and its bar, and exits with 1 if one is above it. The
machine must be idle; ceilings that were measured before are used. Further keys go to each run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tabulate import tabulate

from profiling.results.jsonl import read_records

ROOT = Path(__file__).resolve().parents[1]
#: Seconds, by device and target: from empty caches, and from filled ones.
BARS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cuda": {"generic_forward": (100.0, 45.0), "realtime": (120.0, 45.0)},
    "cpu": {"generic_forward": (60.0, 25.0)},
}
CACHES = ("cold", "warm")


@dataclass(frozen=True)
class Answer:
    """A run: its seconds from start to end, its cells that are correct, and all of them."""

    seconds: float
    correct: int
    cells: int


def answer(target: str, keys: Sequence[str], caches: Path, run: Path) -> Answer:
    """Run a target with the compiler's caches in a folder.

    Raises:
        SystemExit: the run did not end well.

    """
    words = [f"profiling.{target}", "compile_cache=shared", *keys, f"hydra.run.dir={run}"]
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=os.environ | folders, check=False)
    seconds = time.monotonic() - began
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {ended.returncode}: its time says nothing")
    records = read_records(run).records
    return Answer(seconds, sum(record.is_correct for record in records), len(records))


def rows(device: str, targets: Sequence[str], keys: Sequence[str]) -> list[tuple[str, str, int, float, float]]:
    """Run each target twice; return (target, caches, correct cells, seconds, bar) of each run."""
    found = []
    for target in targets:
        with TemporaryDirectory() as folder:
            for cache, bar in zip(CACHES, BARS[device][target], strict=True):
                ended = answer(target, keys, Path(folder), Path(folder) / cache)
                found.append((target, cache, ended.correct, ended.seconds, bar))
    return found


def main() -> None:
    """Measure, print the table, and exit with 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--only", choices=BARS[device], help="the target that is run")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    measured = rows(device, [options.only] if options.only else list(BARS[device]), options.keys)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"\n{where}, {len(os.sched_getaffinity(0))} CPU cores, torch {torch.__version__}\n")
    print(tabulate(measured, ("target", "compiler's caches", "correct cells", "s", "bar s"), floatfmt=".0f"))
    raise SystemExit(int(any(seconds > bar for *_, seconds, bar in measured)))


if __name__ == "__main__":
    main()
