"""How often does the tool claim a difference that is not there? python benchmarks/false_claims.py

Variants of a component take turns as in any run: `baseline`, `again` of the same code (A/A), and one for each planted
slowdown. What the tool says of a pair of them is counted: `baseline` is fastest, the other is, or it cannot tell.

  A/A        40 comparisons: at most 1 claim that one of them is faster
  slowdown   40 comparisons: 5% is found in at least 36 on a CPU; 3% in 38 and 1% in 30 of captured calls on a GPU
  two runs   the same cells in two runs of equal code, through `profiling.compare`: at most 1 verdict in 40 other than
             `same` and `cannot tell`

A component is a chain of 100 equal links; a planted slowdown has 1, 3 or 5 links more. Each comparison of a kind is of
a component of its own with processes of its own; half of the components are in a first run and half in a second one.
On a GPU all variants are captured, and --gpus 2 spreads the components over two GPUs of a host. --isolation none makes
all comparisons of a run in one process. On a GPU the tensors of a link are together six times as large as the L2 cache
of an H200, as those of a network are; with --rows 32768 they are about as large, where their places in memory matter
most.

--busy 2 starts two processes beside it that compute all the time. It exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
import yaml

from profiling.compare.cells import compare_cells
from profiling.compare.loaded_run import read_run
from profiling.errors import InputError, shell_words
from profiling.report.answer import Answer, answer_of
from profiling.report.format import estimate, listed, show
from profiling.report.run_data import load_run, wrong_because
from profiling.report.table import Column, Table, markdown
from profiling.results.environment import read_environment
from profiling.results.judgement import by_component
from profiling.results.record import BASELINE

ROOT, HERE = Path(__file__).resolve().parents[1], Path(__file__).resolve().parent
LINKS, THRESHOLD = 100, 0.02
#: [rows, width] of a link: kernels long enough that the device, and not the host that launches them, sets the time.
SIZES = {"cuda": (131072, 256), "cpu": (32, 128)}
#: How the call of each cell is captured; on a CPU all are eager.
CAPTURES = {"cuda": {"_target_": "profiling.variants.cuda_graph.CudaGraph"}, "cpu": None}
#: The recipe of all cells.
RECIPE = "false_claims_chain.Longer"
#: Least fraction of the comparisons in which a planted slowdown is found, by the number of planted links.
FOUND = {"cuda": {3: 38 / 40, 1: 30 / 40}, "cpu": {5: 36 / 40}}
#: Comparisons in which one false claim is allowed.
ONE_IN = 40
Said = Literal["faster", "slower", "cannot tell", "not measured"]
#: It ends with the process that started it, whatever ended that.
BUSY = "import math, os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(map(math.sqrt, range(100_000)))"


@dataclass(frozen=True)
class Comparison:
    """What the tool said of a variant beside `baseline`, or of run B beside run A; `words` are its numbers."""

    kind: Literal["in turns", "two runs"]
    planted: int  # links more
    name: str
    said: Said
    words: str
    ratio: float | None = None  # baseline over the variant, or B over A

    @property
    def is_false(self) -> bool:
        """Whether a claim was made that is not true."""
        return self.said in (("faster",) if self.planted else ("faster", "slower"))

    @property
    def is_found(self) -> bool:
        """Whether a planted slowdown was found."""
        return bool(self.planted) and self.said == "slower"


@dataclass(frozen=True)
class Job:
    """How a run of comparisons is started; `keys` are passed on unchanged."""

    device: Literal["cuda", "cpu"]
    isolation: str
    seconds: float
    rows: int | None
    keys: Sequence[str]

    def run(self, folder: Path, planted: Sequence[int], components: int, gpu: int) -> None:
        """Run `components` components into `folder`, each under `baseline` and a variant for each of `planted`.

        Raises:
            SystemExit: the run was refused, or ended without a record.

        """
        names = [f"chain_{number:02}" for number in range(components)]
        config = write_config(folder.with_name(f"{folder.name}_config"), names, planted, self)
        variants = [BASELINE, *map(variant_of, planted)]
        command = [sys.executable, "-m", "profiling.generic_forward", f"--config-dir={config}"]
        command += [f"hydra.run.dir={folder}", f"component=[{','.join(names)}]", f"variant=[{','.join(variants)}]"]
        command += ["metric=[parity,latency]", f"device={self.device}", f"isolation={self.isolation}", "ceilings=off"]
        command += [f"seconds={self.seconds:g}", *self.keys]
        command.append(f"+variant.{BASELINE}._target_={RECIPE}")  # of the tool's own YAML; the others are written here
        if capture := CAPTURES[self.device]:
            command.append(f"variant.{BASELINE}.capture={{_target_:{capture['_target_']}}}")
        paths = os.pathsep.join([str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths}
        if self.device == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        # 1: a cell failed or is invalid, which its comparison will show
        if ended.returncode not in (0, 1) or not (folder / "results.jsonl").exists():
            raise SystemExit(f"{' '.join(command)}\nended with {ended.returncode}:\n{ended.stderr[-2000:]}")


def variant_of(planted: int) -> str:
    """Return the name of the variant with this number of links more."""
    return f"slower_{planted}" if planted else "again"


def write_config(folder: Path, names: Sequence[str], planted: Sequence[int], job: Job) -> Path:
    """Write a folder for --config-dir: components of these names, and the variants beside `baseline`."""
    rows, width = SIZES[job.device]
    chain = {"_target_": "false_claims_chain.Chain", "width": width, "links": LINKS}
    node = {"module": chain, "inputs": {"x": {"shape": [job.rows or rows, width]}}, "checkpoint": None}
    files = {f"component/{name}": {name: node} for name in names}
    for links in planted:
        variant = {"_target_": RECIPE, "capture": CAPTURES[job.device], "planted": links}
        files[f"variant/{variant_of(links)}"] = {variant_of(links): variant}
    for path, content in files.items():
        file = folder / f"{path}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
    return folder


def in_turns(folder: Path) -> list[Comparison]:
    """Return what a run says of each variant beside the baseline of its component."""
    comparisons = []
    for component, group in by_component(load_run(folder).records).items():
        baseline, *others = sorted(group, key=lambda record: record.variant != BASELINE)
        for other in others:
            links = int(other.variant.rpartition("_")[2]) if other.variant != variant_of(0) else 0
            answer = answer_of(component, (baseline, other))
            comparisons.append(
                Comparison("in turns", links, f"{folder.name} {component} {other.variant}", *said(answer))
            )
    return comparisons


def said(answer: Answer) -> tuple[Said, str, float | None]:
    """Return what the answer says of a variant beside its baseline, its words and the ratio; a tie claims nothing."""
    wrong = [f"{each.variant} {wrong_because(each)}: {each.reason}" for each in answer.group if wrong_because(each)]
    timed = [each for each in answer.group if each.is_correct and each.median_ms is not None]
    if answer.fastest is None or len(timed) < 2:
        return "not measured", "; ".join(wrong) or "a cell without times", None
    doubts = [doubt.mark for doubt in answer.doubts]
    other = next(record for record in answer.group if record.variant != BASELINE)
    value = None if other.speedup is None else other.speedup.wall
    ratio = None if other.speedup is None else show(estimate(other.speedup.wall, other.speedup.ci95), "ratio")
    windows = 0 if other.turns is None else len(other.turns.windows)
    words = f"{answer.fastest.variant} is fastest, {other.variant} {ratio}, {windows} windows; {', '.join(doubts)}"
    if not answer.is_ranked or answer.is_tied:
        return "cannot tell", words, value
    return ("faster" if answer.fastest is other else "slower"), words, value


def over_runs(a: Path, b: Path) -> list[Comparison]:
    """Return what `profiling.compare A B` says of each baseline that both runs hold, as if it were their only cell."""
    both = [{record.cell for record in load_run(folder).records if record.variant == BASELINE} for folder in (a, b)]
    comparisons = []
    for component, variant in sorted(both[0] & both[1]):
        one, two = (read_run(folder, f"{component}.{variant}") for folder in (a, b))
        cell = compare_cells(one, two, THRESHOLD)[0]
        words = f"B / A {show(estimate(cell.ratio, cell.interval), 'ratio')}; {cell.reason}"
        verdict: Said = cell.verdict if cell.verdict in ("faster", "slower", "cannot tell") else "cannot tell"
        if cell.verdict == "not compared":
            verdict = "not measured"
        comparisons.append(Comparison("two runs", 0, f"{a.name} {b.name} {component}", verdict, words, cell.ratio))
    return comparisons


@dataclass(frozen=True)
class Row:
    """The comparisons of one kind, and the bar that they must reach together."""

    comparisons: Sequence[Comparison]
    least_found: float | None  # fraction of the comparisons; None: no bar

    @property
    def what(self) -> str:
        """What was compared."""
        first = self.comparisons[0]
        planted = f"{first.planted}% slower" if first.planted else "equal code"
        return f"{planted}, {'in turns' if first.kind == 'in turns' else 'two runs, profiling.compare'}"

    def count(self, said: Said) -> int:
        """Return how often the tool said this."""
        return sum(each.said == said for each in self.comparisons)

    @property
    def false_claims(self) -> int:
        """The number of false claims."""
        return sum(each.is_false for each in self.comparisons)

    @property
    def found(self) -> int | None:
        """The number of planted slowdowns that were found; None where none was planted."""
        return sum(each.is_found for each in self.comparisons) if self.comparisons[0].planted else None

    @property
    def most_false(self) -> int:
        """The number of false claims that are allowed."""
        return math.ceil(len(self.comparisons) / ONE_IN)

    @property
    def bar(self) -> str:
        """The bar in words."""
        false = f"at most {self.most_false} false"
        return false if self.least_found is None else f"{false}, at least {self._least} found"

    @property
    def _least(self) -> int:
        return math.ceil(round((self.least_found or 0) * len(self.comparisons), 6))

    @property
    def is_met(self) -> bool:
        """Whether the bar is met; a comparison that could not be measured meets none."""
        return (
            self.false_claims <= self.most_false
            and not self.count("not measured")
            and (self.least_found is None or (self.found or 0) >= self._least)
        )


def rows_of(comparisons: Sequence[Comparison], device: str, *, busy: int) -> list[Row]:
    """Return a row for each kind of comparison; beside busy processes nothing has to be found."""
    least = {} if busy else FOUND[device]
    kinds = dict.fromkeys((each.kind, each.planted) for each in comparisons)
    return [
        Row([each for each in comparisons if (each.kind, each.planted) == kind], least.get(kind[1])) for kind in kinds
    ]


def bars_table(rows: Sequence[Row], machine: str, condition: str) -> Table[Row]:
    return Table(
        "Bars",
        (
            Column[Row]("machine", lambda _: machine),
            Column[Row]("condition", lambda _: condition),
            Column[Row]("comparison", lambda row: row.what),
            Column[Row]("comparisons", lambda row: len(row.comparisons), "count"),
            Column[Row]("false claims", lambda row: row.false_claims, "count"),
            Column[Row]("found", lambda row: row.found, "count"),
            Column[Row]("cannot tell", lambda row: row.count("cannot tell"), "count"),
            Column[Row]("not measured", lambda row: row.count("not measured") or None, "count"),
            Column[Row]("bar", lambda row: row.bar),
            Column[Row]("met", lambda row: row.is_met, "flag"),
        ),
        rows,
    )


def details(rows: Sequence[Row]) -> str:
    """Return a line for each comparison that counts against a bar."""
    lines = []
    for row in rows:
        for each in row.comparisons:
            if each.is_false or each.said == "not measured" or (each.planted and not each.is_found):
                fault = "false claim" if each.is_false else "not found" if each.said == "cannot tell" else each.said
                lines.append(f"{fault}: {each.name}: {each.words}")
    return "\n".join(lines)


def spread(rows: Sequence[Row]) -> str:
    """Return the range of the time ratios of equal code, a line for each kind of comparison."""
    lines = []
    for row in rows:
        ratios = [each.ratio for each in row.comparisons if each.ratio is not None and not each.planted]
        if ratios:
            most = max(max(ratio, 1 / ratio) for ratio in ratios) - 1
            extent = f"{min(ratios):.4f} to {max(ratios):.4f}, {most:.1%} apart at most"
            lines.append(f"{row.what}: ratios of {len(ratios)} pairs from {extent}")
    return "\n".join(lines)


def kept(folder: Path) -> list[Comparison]:
    """Return the comparisons in turns of the runs in a folder of --keep, including interrupted runs."""
    runs = sorted(run for run in folder.glob("run_*") if (run / "results.jsonl").is_file())
    return [each for run in runs for each in in_turns(run) if each.said != "not measured"]


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Let `number` processes compute all the time inside the block."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="further keys of the main job: threads=1")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="busy processes beside it (default 0)")
    parser.add_argument("--pairs", type=int, default=40, metavar="N", help="comparisons of each kind (default 40)")
    parser.add_argument(
        "--plant",
        type=float,
        action="append",
        metavar="FACTOR",
        help="1.05: 5%% slower; 1: none; may be repeated (default 1.05; on a GPU 1.03 and 1.01; none with --busy)",
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="at most for the turns of a component (default 6)")
    parser.add_argument("--isolation", choices=("process", "none"), default="process", help="default: process")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a link (default 32; on a GPU 131072)")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs to spread the components over (1)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder of the runs (default: they are deleted)")
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="judge the runs of --keep again, and measure none")
    options = parser.parse_args()
    if min(options.pairs - 1, options.busy, options.gpus - 1) < 0:
        parser.error("--pairs and --gpus are at least 1, --busy at least 0")
    planted = options.plant or ([1.0] if options.busy else [1 + links / LINKS for links in FOUND[options.device]])
    options.planted = [round(LINKS * (factor - 1)) for factor in planted if factor > 1]
    return options


def shares(components: int, parts: int) -> list[int]:
    """Return how many of the components each part has."""
    bounds = [-(-part * components // parts) for part in range(parts + 1)]
    return [high - low for low, high in pairwise(bounds)]


def measure(options: argparse.Namespace, folder: Path) -> list[Comparison]:
    """Make two runs on each GPU, one after the other, and judge what they say."""
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(options.device, options.isolation, options.seconds, options.rows, options.keys)
    components = shares(options.pairs, 2 * options.gpus)

    def on_gpu(gpu: int) -> list[Comparison]:
        runs = [folder / f"run_{2 * gpu + half}" for half in (0, 1)]
        for run, number in zip(runs, components[2 * gpu :], strict=False):
            if number:
                job.run(run, (0, *options.planted), number, gpu)
        made = [run for run in runs if run.exists()]
        over = over_runs(*made) if len(made) == 2 else []
        return [each for run in made for each in in_turns(run)] + over

    with ThreadPoolExecutor(options.gpus) as pool:
        return [each for part in pool.map(on_gpu, range(options.gpus)) for each in part]


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="false-claims-") as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        started, load = time.perf_counter(), os.getloadavg()[0]
        try:
            with busy_processes(options.busy):
                comparisons = measure(options, folder) if options.read is None else kept(options.read)
                load = f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} at the end"
        except InputError as error:
            raise SystemExit(f"error: {error}") from error
        environment = read_environment((options.read or folder) / "run_0")
    seconds = time.perf_counter() - started
    name = environment.device.name if environment.device else options.device
    name += f", {os.cpu_count()} CPU cores" if options.read is None else ""
    condition = f"{options.busy} busy processes" if options.busy else "nothing beside it"
    rows = rows_of(comparisons, options.device, busy=options.busy)
    kind = f"{seconds:.0f} s, {load}" if options.read is None else "kept runs, judged again"
    print(f"false claims, torch {environment.versions.get('torch')}: {kind}")
    folders = ("--keep", "--read", str(options.keep), str(options.read))
    given = [argument for argument in sys.argv[1:] if argument not in folders]
    print(f"$ {shell_words(['python', 'benchmarks/false_claims.py', *given])}\n")
    print(markdown(bars_table(rows, name, condition)))
    print(f"\n{spread(rows)}")
    if options.read is None and (lines := details(rows)):
        print(f"\n{lines}")
    missed = [row.what for row in rows if not row.is_met]
    if missed:
        raise SystemExit(f"\nmissed: {listed(missed)}")


if __name__ == "__main__":
    main()
