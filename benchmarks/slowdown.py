"""Is a slowdown of 3% found, and none where there is none? python benchmarks/slowdown.py   (a GPU, or a CPU: smaller)

A component is a chain of 100 equal links; a slower one has 103. Runs of the main job hold many copies of it under names
of their own, played in turns (rounds), and `profiling.compare` judges each name by itself, as if it were the only cell:

  A/A        the same chain in two runs: at most 1 false alarm in 20, that is a verdict of slower or faster, and at most
             1 in 20 that would stop a CI job: an exit code other than 0, which "can't tell" has beyond the threshold
  slowdown   100 links against 103: `slower`, with exit code 1, in at least 9 of 10

The device's own clock says whether what was planted is there: its ratio of medians stands beside each pair.

What this cannot show: the names of a run share its process and its minutes, so pairs are not independent, and all of
them share one machine. The runs of a batch (A, the same again, slower) are made in turns forth and back, so that drift
favours no side. --isolation process starts a process for each cell of each round, as the main job does by itself, and
takes some seconds more for each of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from slowdown_pairs import HEADERS, LINKS, SLOWER_LINKS, Kind, Pair, bars, pair_of, row, untold
from slowdown_runs import Run
from tabulate import tabulate

from profiling.errors import InputError
from profiling.reporting.facts import at


def batch(folder: Path, number: int, same: int, slower: int, run: Run) -> list[Pair]:
    """Make the runs of `same` A/A pairs and `slower` slowdowns, which share their run A, and judge them."""
    names = [f"chain_{place:02}" for place in range(max(same, slower))]
    a, again, slow = (folder / f"{number}_{what}" for what in ("a", "same", "slower"))
    planned = [(a, names, LINKS), (again, names[:same], LINKS), (slow, names[:slower], SLOWER_LINKS)]
    for into, of_it, links in planned if number % 2 == 0 else reversed(planned):
        if of_it:
            run.on(into, of_it, links)
    alike = [pair_of("A/A", a, again, name, run.variant) for name in names[:same]]
    return alike + [pair_of("slowdown", a, slow, name, run.variant) for name in names[:slower]]


def show(pairs: Sequence[Pair]) -> None:
    kinds: tuple[Kind, ...] = ("A/A", "slowdown")
    sorted_ = [(i, pair) for kind in kinds for i, pair in enumerate([pair for pair in pairs if pair.kind == kind], 1)]
    print(tabulate([row(i, pair) for i, pair in sorted_], HEADERS, "github", disable_numparse=True), end="\n\n")
    shown = [(what, bar, value, "yes" if ok else "no") for what, bar, value, ok in bars(pairs)]
    print(tabulate(shown, ("what", "bar", "measured", "reached"), "github", disable_numparse=True))
    print(f"\n{untold(pairs)}")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="more for the main job: metric.latency.interval=…")
    parser.add_argument("--pairs", type=int, default=10, help="slowdowns to find (default 10)")
    parser.add_argument("--same", type=int, default=20, help="A/A pairs (default 20)")
    parser.add_argument("--batches", type=int, default=2, help="how many times three runs they are spread over (2)")
    parser.add_argument("--rounds", type=int, default=3, help="of each run (default 3)")
    parser.add_argument("--variant", default="baseline", help="baseline (default), or cuda_graph on a GPU")
    parser.add_argument("--isolation", default="none", choices=("none", "process"))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the runs stay (default: they are deleted)")
    options = parser.parse_args()
    if min(options.pairs, options.same) < 0 or options.pairs + options.same == 0 or options.batches < 1:
        parser.error("--pairs and --same are 0 or more, not both 0, and --batches is at least 1")
    return options


def shares(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def measure(options: argparse.Namespace, folder: Path) -> None:
    run = Run(options.variant, options.rounds, options.isolation, options.keys)
    started = time.perf_counter()
    found: list[Pair] = []
    sizes = zip(shares(options.same, options.batches), shares(options.pairs, options.batches), strict=True)
    for number, (same, slower) in enumerate(sizes):
        if same or slower:
            found += batch(folder, number, same, slower, run)
    environment = json.loads((folder / "0_a" / "environment.json").read_text())
    print(f"slowdown on {at(environment, 'device', 'name')}, torch {torch.__version__}: {run.variant}, ", end="")
    print(f"rounds={run.rounds}, isolation={run.isolation}, {time.perf_counter() - started:.0f} s\n")
    show(found)


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="slowdown-") as temporary:
        try:
            measure(options, (options.keep or Path(temporary)).absolute())
        except InputError as error:
            raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
