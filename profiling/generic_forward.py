"""Profile components under variants: `python -m profiling.generic_forward` (the main job)."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from omegaconf import DictConfig

from profiling.app import INTERRUPTED, launch
from profiling.core.config import read_config
from profiling.core.folder import command_of
from profiling.core.progress import make_progress
from profiling.core.records import RESULTS_FILE
from profiling.core.runner import Run
from profiling.reporting.render import write_report

TARGET = "generic_forward"


def run(cfg: DictConfig, folder: Path) -> int:
    """Run the cells of `cfg` into `folder`, print the table, return the exit code."""
    progress = make_progress()
    try:
        code = Run(TARGET, read_config(cfg), folder, progress).execute()
    except KeyboardInterrupt:
        progress.close()
        progress.say(f"interrupted; the cells that had ended are kept. Go on: {command_of(folder)} resume={folder}")
        code = INTERRUPTED
    finally:
        progress.close()
    if (folder / RESULTS_FILE).exists():
        print(write_report(folder))
    return code


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without × shows a ? and not a traceback
    sys.exit(launch(TARGET, run))
