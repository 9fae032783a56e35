"""Runs a target as a user does: as a process, from a folder outside the repository."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warm_process import HAS_GPU, WarmRun, run_warm

from profiling.results.jsonl import read_records
from profiling.results.record import Record

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ROOT / "tests" / "data" / "outside"
#: Few samples: these tests do not depend on the measured times.
QUICK = (
    "device=cpu",
    "scale=tiny",
    "threads=1",
    "ceilings=off",
    "metric.latency.min_iterations=5",
    "metric.latency.max_iterations=100",
    "metric.latency.warmup_min_iterations=1",
    "metric.latency.max_seconds=0.5",
    "metric.latency.warmup_max_seconds=0.5",
)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str
    folder: Path

    @property
    def records(self) -> dict[tuple[str, str], Record]:
        return {record.cell: record for record in read_records(self.folder).records}

    @property
    def lines(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "results.jsonl").read_text().splitlines()]


def environment(**extra: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(OUTSIDE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **extra}


def command(
    folder: Path, *overrides: str, target: str = "generic_forward", quick: tuple[str, ...] = QUICK
) -> list[str]:
    start = [sys.executable, "-m", f"profiling.{target}", f"--config-dir={OUTSIDE}"]
    flags = [item for item in overrides if item.startswith("--")]  # argparse wants them before the overrides
    keys = [item for item in overrides if not item.startswith("--")]
    given = {item.partition("=")[0] for item in keys}
    defaults = [item for item in (f"hydra.run.dir={folder}", *quick) if item.partition("=")[0] not in given]
    return [*start, *flags, *defaults, *keys]


def finished(start: list[str], cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run the command `start` to its end in `cwd`, with the environment variables `extra`.

    It is forked from a warm process, unless torch has to read a variable when it is imported: trace=true sets one for
    what compiles.
    Beside a GPU only runs with isolation=none are.
    """
    env = environment(**extra)
    compiles = any(word.startswith("variant=") and re.search("compile|regional|aot", word) for word in start)
    read_by_torch = ("trace=true" in start and compiles) or any(name.startswith("TORCH") for name in extra)
    if not read_by_torch and ("isolation=none" in start or not HAS_GPU):
        return run_warm(start, cwd=cwd, env=env)
    return subprocess.run(start, cwd=cwd, env=env, capture_output=True, text=True)


def outcome_of(
    folder: Path,
    *overrides: str,
    target: str = "generic_forward",
    quick: tuple[str, ...] = QUICK,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a target in `cwd`, by default the parent of its run folder `folder`, and return its outcome."""
    done = finished(command(folder, *overrides, target=target, quick=quick), cwd or folder.parent, **(variables or {}))
    return Outcome(done.returncode, done.stdout, done.stderr, folder)


def begun(start: list[str], cwd: Path) -> WarmRun | subprocess.Popen[str]:
    """Begin the command `start`, which the test interrupts, in `cwd`; forked from a warm process as in `finished`."""
    if HAS_GPU:
        return subprocess.Popen(start, cwd=cwd, env=environment(), stdout=-1, stderr=-1, text=True)
    return WarmRun(start, cwd=cwd, env=environment())
