"""What a launch costs on this machine: `python -m profiling.launch_overhead`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from profiling.cli.app import execute, main
from profiling.cli.config import read_config
from profiling.errors import InputError

TARGET = "launch_overhead"
CELL = "profiling.launch_overhead.cell.CalibrationCell"


def run(cfg: DictConfig, folder: Path) -> int:
    """Measure launch costs and write the result to the run's environment.json too."""
    config = read_config(cfg)
    if config.settings.trace:
        raise InputError("trace=true: launch_overhead has no step to trace. Leave it out.")
    procedure = {"_target_": CELL, "options": config.source["calibration"]}
    return execute(TARGET, replace(config, procedure=procedure), folder)


if __name__ == "__main__":
    main(TARGET, run)
