"""What the targets that run cells share: progress, an interruption that loses nothing, the report at the end."""

from __future__ import annotations

import sys
from pathlib import Path

from profiling.app import INTERRUPTED, Target, launch
from profiling.core.config import RunConfig
from profiling.core.folder import clear_refused, command_of
from profiling.core.progress import make_progress
from profiling.core.records import RESULTS_FILE
from profiling.core.runner import Run
from profiling.errors import InputError
from profiling.reporting.render import write_report
from profiling.reporting.terminal import print_what_it_can


def execute(target: str, config: RunConfig, folder: Path) -> int:
    """Run the cells of `config` into `folder`, print the report, return the exit code."""
    progress = make_progress()
    try:
        code = Run(target, config, folder, progress).execute()
    except InputError:
        if config.resume is None:
            clear_refused(folder)
        raise
    except KeyboardInterrupt:
        progress.close()
        progress.say(f"interrupted; the cells that had ended are kept. Go on: {command_of(folder)} resume={folder}")
        code = INTERRUPTED
    finally:
        progress.close()
    if (folder / RESULTS_FILE).exists():
        print(write_report(folder))
    return code


def main(target: str, run: Target) -> None:
    """Start a target from the command line; does not return."""
    print_what_it_can()
    sys.exit(launch(target, run))
