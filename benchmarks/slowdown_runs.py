"""The runs of `slowdown.py`: the main job, started as a user does, on many chains under names of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

ROOT, HERE = Path(__file__).resolve().parents[1], Path(__file__).resolve().parent
#: [rows, width] of a link: kernels long enough that the device, and not the host that launches them, sets the time.
SIZES = {"cuda": (32768, 256), "cpu": (32, 128)}


@dataclass(frozen=True)
class Run:
    """How the main job is started; `keys` are handed to it as they are."""

    variant: str
    rounds: int
    isolation: str
    keys: Sequence[str]

    def on(self, folder: Path, names: Sequence[str], links: int) -> None:
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
        # 1: a cell failed or was disturbed, which its pair will say
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
