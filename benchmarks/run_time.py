"""Does a run with turns take longer than one that times each cell whole? python benchmarks/run_time.py [KEY=VALUE ...]

The main job's 12 cells, by this checkout and by the last revision that timed one cell after the other, in the order
A B B A, each in processes of its own. On a CPU, where nothing can be captured, two copies of eager take the place of
the captured variants. Further keys go to both: component=[image_decoder] scale=tiny compile_cache=shared.

With --sharing, both are of this checkout: cells that compile alike share one cold compile, against
compile_cache=cold, where each compiles from an empty cache. On a CPU a copy of compile takes the place of
compile+cuda_graph. The bar is then 0.6.

The ratio of two neighbouring runs must not be above the bar, 1 or --bar: from 6 pairs on by its 95% interval, with
fewer if all ratios are above. Otherwise it exits with 1. On an H200 a run takes minutes: --pairs 1 is one of each. With
--gpus 2 the two runs of a pair are made at the same time, each on a GPU and half of the cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from profiling.report.table import Column, Table, markdown
from profiling.results.jsonl import read_records
from profiling.results.judge import Cell, Spread, Windows, compare

ROOT = Path(__file__).resolve().parents[1]
#: The last revision in which each cell was timed whole, before the next one was prepared.
WHOLE_CELLS = "1649b1b"
EAGER = "${variant.baseline}"  # that of either revision
VARIANTS = {
    "cuda": ("baseline", "compile", "cuda_graph", "compile+cuda_graph"),
    "cpu": ("baseline", "compile", "eager_2", "eager_3"),
}
#: Variants of a run whose cells share compiles, on a CPU.
SHARING = ("baseline", "compile", "eager_2", "compile_2")
#: Copies that take the place of variants, by name.
COPIES = {"eager_2": EAGER, "eager_3": EAGER, "compile_2": "${variant.compile}"}
#: Most that the ratio may be: of turns to whole cells, and of shared compiles to cold ones.
BAR, SHARING_BAR = 1.0, 0.6


@dataclass(frozen=True)
class Timed:
    """A run: the seconds from its start to its end, and how many of its cells were measured."""

    seconds: float
    cells: int
    timing_s: float  # spent in timed calls


@dataclass(frozen=True)
class Pair:
    """A run in turns and one of whole cells, made one after the other."""

    number: int
    turns: Timed
    whole: Timed

    @property
    def ratio(self) -> float:
        """Seconds of the run in turns over those of the other."""
        return self.turns.seconds / self.whole.seconds


@contextmanager
def checkout(revision: str, folder: Path) -> Iterator[Path]:
    """Yield a folder with the files of `revision`, which may be a folder itself."""
    if Path(revision).is_dir():
        yield Path(revision).absolute()
        return
    subprocess.run(
        ["git", "-C", ROOT, "worktree", "add", "--detach", folder, revision], check=True, capture_output=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", folder], check=True)


def timed_run(
    code: Path, folder: Path, config: Path, device: str, keys: Sequence[str], variants: Sequence[str], gpu: int | None
) -> Timed:
    """Run the main job of the checkout `code` into `folder`; `gpu` 0 or 1 is one of two, with half of the cores.

    Raises:
        SystemExit: the run was refused, or one of its cells failed.

    """
    command = [sys.executable, "-m", "profiling.generic_forward", f"--config-dir={config}", f"hydra.run.dir={folder}"]
    command += [f"device={device}", f"variant=[{','.join(variants)}]", "ceilings=off", *keys]
    paths = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment, pinned = {**os.environ, "PYTHONPATH": paths}, []
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        pinned = ["taskset", "-c", ",".join(map(str, cores[gpu * half : (gpu + 1) * half]))]
    started = time.perf_counter()
    ended = subprocess.run([*pinned, *command], cwd=code, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\nin {code} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    walls = [record.metrics.wall_ms for record in read_records(folder).records if record.metrics.wall_ms is not None]
    return Timed(seconds, len(walls), sum(wall.mean * wall.n for wall in walls) / 1e3)


def table_of(pairs: Sequence[Pair], names: tuple[str, str]) -> Table[Pair]:
    return Table(
        "Runs",
        (
            Column[Pair]("pair", lambda pair: str(pair.number)),
            Column[Pair]("cells", lambda pair: pair.turns.cells, "count"),
            Column[Pair](names[0], lambda pair: pair.turns.seconds, "s"),
            Column[Pair]("of it timed calls", lambda pair: pair.turns.timing_s, "s"),
            Column[Pair](names[1], lambda pair: pair.whole.seconds, "s"),
            Column[Pair]("of it timed calls", lambda pair: pair.whole.timing_s, "s"),
            Column[Pair](" / ".join(names), lambda pair: pair.ratio, "ratio"),
        ),
        pairs,
    )


def verdict(pairs: Sequence[Pair], bar: float) -> tuple[str, bool]:
    """Return the ratio in words, and whether it is not above the bar."""
    seconds = ([getattr(pair, side).seconds for pair in pairs] for side in ("turns", "whole"))
    runs = compare(*(Cell((Windows.of(each, session="pairs"),), Spread(0.0)) for each in seconds))
    interval = runs.interval()
    if interval is not None:
        return f"{runs.ratio:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]", interval[0] <= bar
    ratios = [pair.ratio for pair in pairs]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", min(ratios) <= bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the main job, for both revisions")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="runs of each (default 3)")
    parser.add_argument("--against", default=WHOLE_CELLS, metavar="REVISION", help=f"default {WHOLE_CELLS}")
    parser.add_argument("--sharing", action="store_true", help="shared compiles against cold ones, of this checkout")
    parser.add_argument("--bar", type=float, help=f"most that the ratio may be (default {BAR:g}; shared {SHARING_BAR})")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1, help="2: both runs of a pair at the same time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder of the runs (default: they are deleted)")
    options = parser.parse_args()
    bar = options.bar or (SHARING_BAR if options.sharing else BAR)
    variants = SHARING if options.sharing and options.device == "cpu" else VARIANTS[options.device]
    names = ("shared compiles", "cold compiles") if options.sharing else ("in turns", "whole cells")
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="run-time-") as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        config = folder / "config"
        (config / "variant").mkdir(parents=True, exist_ok=True)
        for name, node in COPIES.items():
            (config / "variant" / f"{name}.yaml").write_text(yaml.safe_dump({name: node}))
        load = os.getloadavg()[0]
        against = str(ROOT) if options.sharing else options.against
        with checkout(against, folder / "whole") as whole, ThreadPoolExecutor(options.gpus) as pool:
            for number in range(1, options.pairs + 1):
                runs = {}
                for side, code in sorted({"turns": ROOT, "whole": whole}.items(), reverse=number % 2 == 0):
                    cold = ["compile_cache=cold"] if options.sharing and side == "whole" else []
                    gpu = None if options.gpus == 1 else len(runs)
                    where = (code, folder / f"{side}_{number}", config, options.device)
                    runs[side] = pool.submit(timed_run, *where, [*options.keys, *cold], variants, gpu)
                pairs.append(Pair(number, **{side: run.result() for side, run in runs.items()}))
                print(pairs[-1], file=sys.stderr, flush=True)
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {os.cpu_count()} cores"
    print(f"run time on {name}, torch {torch.__version__}, load average {load:.1f} before and ", end="")
    against = "compile_cache=cold" if options.sharing else options.against
    print(f"{os.getloadavg()[0]:.1f} at the end; {names[1]}: {against}\n\n{markdown(table_of(pairs, names))}\n")
    words, is_met = verdict(pairs, bar)
    print(f"{' / '.join(names)}: {words}; at most {bar:g}: {'met' if is_met else 'missed'}")
    raise SystemExit(not is_met)


if __name__ == "__main__":
    main()
