"""Measure the cost of a kernel launch on this machine: `python -m profiling.launch_overhead`."""

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
    """Measure launch costs."""
    config = read_config(cfg)
    if config.settings.trace:
        raise InputError("launch_overhead has no step to trace: leave out trace=true and counters=true.")
    return execute(TARGET, replace(config, procedure={"_target_": CELL}), folder)


if __name__ == "__main__":
    main(TARGET, run)
