"""Does `profiling.compare` find a slowdown of 3%, and none where there is none? python benchmarks/slowdown.py

Runs on a GPU, or smaller on a CPU. A component is a chain of 100 equal links; a slower one has 103. Runs of the main
job hold many copies of it under names of their own, repeated in turns (rounds), and `profiling.compare` judges each
name as if it were the only cell:

  A/A        the same chain in two runs: at most 1 false alarm in 20 (a verdict of slower or faster), and at most 1 in
             20 that would stop a CI job (an exit code other than 0, which "cannot tell" has beyond the threshold)
  slowdown   100 links against 103: `slower`, with exit code 1, in at least 9 of 10

The device's own clock shows whether the planted slowdown is there: its ratio of medians is printed with each pair.

Limits of this benchmark: the cells of a run share one process and the same minutes, so pairs are not independent, and
all of them share one machine. The runs of a batch (A, the same again, slower) are made forwards and backwards in turn,
so that drift favours neither run. --isolation process starts a process for each cell of each round, which is the
default of the main job, and takes some seconds more for each of them.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import yaml

from profiling.compare.cells import PASSED, SLOWER, CellComparison, compare_cells, exit_code
from profiling.compare.loaded_run import LoadedRun, read_run
from profiling.errors import InputError
from profiling.report.format import count_of, estimate
from profiling.report.table import Column, Table, markdown
from profiling.results.environment import read_environment
from profiling.results.record import Summary

ROOT, HERE = Path(__file__).resolve().parents[1], Path(__file__).resolve().parent
LINKS, SLOWER_LINKS, THRESHOLD = 100, 103, 0.02
PLANTED = SLOWER_LINKS / LINKS
#: [rows, width] of a link: kernels long enough that the device, and not the host that launches them, sets the time.
SIZES = {"cuda": (32768, 256), "cpu": (32, 128)}
Kind = Literal["A/A", "slowdown"]


@dataclass(frozen=True)
class Pair:
    """One name in two runs. Ratios are B / A; None where a clock was not measured."""

    kind: Kind
    cell: CellComparison
    code: int
    device_ratio: float | None = None
    host_share: float | None = None  # host time over device time of a call of A

    @property
    def false_alarm(self) -> bool:
        return self.kind == "A/A" and self.cell.verdict in ("slower", "faster")

    @property
    def found(self) -> bool:
        return self.kind == "slowdown" and self.cell.verdict == "slower" and self.code == SLOWER

    @property
    def error(self) -> str | None:
        return "false alarm" if self.false_alarm else "missed" if self.kind == "slowdown" and not self.found else None


@dataclass(frozen=True)
class Criterion:
    """A target that all pairs together must reach."""

    name: str
    limit: str
    measured: str
    reached: bool


@dataclass(frozen=True)
class MainJob:
    """How the main job is started; `keys` are passed on unchanged."""

    variant: str
    rounds: int
    isolation: str
    keys: Sequence[str]

    def run(self, folder: Path, names: Sequence[str], links: int) -> None:
        """Run chains of `links`, one under each of `names`, into `folder`.

        Raises:
            SystemExit: the main job was refused, or ended without a record.

        """
        cuda = torch.cuda.is_available() and "device=cpu" not in self.keys
        config = write_chains(folder.with_name(f"{folder.name}_config"), names, links, SIZES["cuda" if cuda else "cpu"])
        command = [sys.executable, "-m", "profiling.generic_forward", f"--config-dir={config}"]
        command += [f"hydra.run.dir={folder}", f"component=[{','.join(names)}]", f"variant=[{self.variant}]"]
        command += [f"rounds={self.rounds}", f"isolation={self.isolation}", "ceilings=off", *self.keys]
        paths = os.pathsep.join([str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        # 1: a cell failed or is invalid, which its pair will show
        if ended.returncode not in (0, 1) or not (folder / "results.jsonl").exists():
            raise SystemExit(f"{' '.join(command)}\nended with {ended.returncode}:\n{ended.stderr[-2000:]}")


def write_chains(folder: Path, names: Sequence[str], links: int, size: tuple[int, int]) -> Path:
    """Write a folder for --config-dir in which each of `names` is a component: a chain of `links` of `size`."""
    rows, width = size
    chain = {
        "module": {"_target_": "slowdown_chain.Chain", "width": width, "links": links},
        "inputs": {"x": {"shape": [rows, width]}},
        "checkpoint": None,
    }
    (folder / "component").mkdir(parents=True)
    for name in names:
        (folder / "component" / f"{name}.yaml").write_text(yaml.safe_dump({name: chain}))
    return folder


def run_batch(folder: Path, number: int, same: int, slower: int, job: MainJob) -> list[Pair]:
    """Make the runs of `same` A/A pairs and `slower` slowdowns, which share their run A, and compare them."""
    names = [f"chain_{place:02}" for place in range(max(same, slower))]
    a, again, slow = (folder / f"{number}_{run}" for run in ("a", "same", "slower"))
    planned = [(a, names, LINKS), (again, names[:same], LINKS), (slow, names[:slower], SLOWER_LINKS)]
    for run, run_names, links in planned if number % 2 == 0 else reversed(planned):
        if run_names:
            job.run(run, run_names, links)
    alike = [pair_of("A/A", a, again, name, job.variant) for name in names[:same]]
    return alike + [pair_of("slowdown", a, slow, name, job.variant) for name in names[:slower]]


def pair_of(kind: Kind, a: Path, b: Path, name: str, variant: str) -> Pair:
    """Compare one name as `profiling.compare A B --cells NAME.VARIANT` does.

    Raises:
        InputError: a run without the cell.

    """
    before, after = (read_run(folder, f"{name}.{variant}") for folder in (a, b))
    cells = compare_cells(before, after, THRESHOLD)
    device, host = _p50(before, "device_ms"), _p50(before, "host_ms")
    ratio = _ratio(_p50(after, "device_ms"), device)
    return Pair(kind, cells[0], exit_code(cells, THRESHOLD), ratio, _ratio(host, device))


def _p50(run: LoadedRun, clock: str) -> float | None:
    (record,) = run.records.values()
    summary: Summary | None = getattr(record.metrics, clock)
    return None if summary is None else summary.p50


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or denominator is None else numerator / denominator


def criteria(pairs: Sequence[Pair]) -> list[Criterion]:
    """Return the targets that apply to the kinds of pairs and the clocks that were measured."""
    same, slow = ([pair for pair in pairs if pair.kind == kind] for kind in ("A/A", "slowdown"))
    compared = sum(pair.cell.interval is not None for pair in pairs)
    rows = [Criterion("pairs that could be compared", str(len(pairs)), str(compared), compared == len(pairs))]
    if same:
        most, alarms = max(1, len(same) // 20), sum(pair.false_alarm for pair in same)
        rows.append(Criterion(f"false alarms in {len(same)} A/A pairs", f"<= {most}", str(alarms), alarms <= most))
        red = sum(pair.code != PASSED for pair in same)
        name = f"exit codes other than 0 in {len(same)} A/A pairs"
        rows.append(Criterion(name, f"<= {most}", str(red), red <= most))
    if slow:
        detected, least = sum(pair.found for pair in slow), math.ceil(0.9 * len(slow))
        name = f"slowdowns of {PLANTED - 1:.0%} found, of {len(slow)}"
        rows.append(Criterion(name, f">= {least}", str(detected), detected >= least))
    if ratios := [pair.device_ratio for pair in slow if pair.device_ratio is not None]:
        middle, low, high = statistics.median(ratios), PLANTED - 0.005, PLANTED + 0.005
        name = "planted slowdown by the device's clock: median B / A"
        rows.append(Criterion(name, f"{low:.3f} to {high:.3f}", f"{middle:.4f}", low <= middle <= high))
    if shares := [pair.host_share for pair in pairs if pair.host_share is not None]:
        name = "host over device time of a call (below 1 the device sets the time), at most"
        rows.append(Criterion(name, "< 0.9", f"{max(shares):.2f}", max(shares) < 0.9))
    return rows


def undecided(pairs: Sequence[Pair]) -> str:
    """Return how many pairs of each kind are `cannot tell`: no criterion counts them, for noise alone is no error."""
    counts = []
    for kind, noun in (("A/A", "A/A pair"), ("slowdown", "slowdown")):
        verdicts = [pair.cell.verdict for pair in pairs if pair.kind == kind]
        if verdicts:
            counts.append(f"{verdicts.count('cannot tell')} of {count_of(len(verdicts), noun)}")
    return f"cannot tell: {', '.join(counts)}"


def pair_table(pairs: Sequence[Pair]) -> Table[Pair]:
    return Table(
        "Pairs",
        (
            Column[Pair]("pair", lambda pair: pair.kind),
            Column[Pair]("name", lambda pair: pair.cell.component),
            Column[Pair]("A p50", lambda pair: pair.cell.a_ms, "ms"),
            Column[Pair]("B / A", lambda pair: estimate(pair.cell.ratio, pair.cell.interval), "number"),
            Column[Pair]("device B / A", lambda pair: pair.device_ratio, "number"),
            Column[Pair]("verdict", lambda pair: pair.cell.verdict),
            Column[Pair]("exit code", lambda pair: pair.code, "count"),
            Column[Pair]("error", lambda pair: pair.error),
            Column[Pair]("why", lambda pair: pair.cell.reason or None),
        ),
        sorted(pairs, key=lambda pair: pair.kind),
    )


def criteria_table(pairs: Sequence[Pair]) -> Table[Criterion]:
    columns = (
        Column[Criterion]("criterion", lambda row: row.name),
        Column[Criterion]("limit", lambda row: row.limit),
        Column[Criterion]("measured", lambda row: row.measured),
        Column[Criterion]("reached", lambda row: row.reached, "flag"),
    )
    return Table("Criteria", columns, criteria(pairs))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "keys", nargs="*", metavar="KEY=VALUE", help="further keys of the main job: metric.latency.interval=…"
    )
    parser.add_argument("--pairs", type=int, default=10, help="slowdowns to find (default 10)")
    parser.add_argument("--same", type=int, default=20, help="A/A pairs (default 20)")
    parser.add_argument("--batches", type=int, default=2, help="batches of three runs to spread the pairs over (2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each run (default 3)")
    parser.add_argument("--variant", default="baseline", help="baseline (default), or cuda_graph on a GPU")
    parser.add_argument("--isolation", default="none", choices=("none", "process"))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder of the runs (default: they are deleted)")
    options = parser.parse_args()
    if min(options.pairs, options.same) < 0 or options.pairs + options.same == 0 or options.batches < 1:
        parser.error("--pairs and --same are 0 or more, not both 0, and --batches is at least 1")
    return options


def shares(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def measure(options: argparse.Namespace, folder: Path) -> None:
    job = MainJob(options.variant, options.rounds, options.isolation, options.keys)
    started = time.perf_counter()
    pairs: list[Pair] = []
    sizes = zip(shares(options.same, options.batches), shares(options.pairs, options.batches), strict=True)
    for number, (same, slower) in enumerate(sizes):
        if same or slower:
            pairs += run_batch(folder, number, same, slower, job)
    device = read_environment(folder / "0_a").device
    print(f"slowdown on {device and device.name}, torch {torch.__version__}: {job.variant}, ", end="")
    print(f"rounds={job.rounds}, isolation={job.isolation}, {time.perf_counter() - started:.0f} s\n")
    print(f"{markdown(pair_table(pairs))}\n\n{markdown(criteria_table(pairs))}\n\n{undecided(pairs)}")


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="slowdown-") as temporary:
        try:
            measure(options, (options.keep or Path(temporary)).absolute())
        except InputError as error:
            raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
