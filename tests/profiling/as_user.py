"""Running the main job as a user does: in a process, from a folder of their own."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from profiling.core.records import Record, read_records

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ROOT / "tests" / "data" / "outside"
#: Few samples: these tests ask what happens, not how long it takes.
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
        return {record.cell: record for record in read_records(self.folder)}

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
    return [*start, *flags, f"hydra.run.dir={folder}", *quick, *keys]
