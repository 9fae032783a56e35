"""Measure the cost of a kernel launch on this machine: `python -m profiling.launch_overhead`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from profiling.cli.app import execute, main
from profiling.cli.config import read_config
from profiling.components.spec import decode_options
from profiling.errors import InputError
from profiling.launch_overhead.options import CalibrationOptions
from profiling.results.record import Record
from profiling.run.job import CellFiles

TARGET = "launch_overhead"
CELL = "profiling.launch_overhead.cell.CalibrationCell"


class LaunchCosts(CellFiles):
    """Copies the measured launch costs into the environment of the run, where reports look for them."""

    def environment(self, records: Iterable[Record]) -> Mapping[str, Any]:
        """Return the costs of the newest record that has them."""
        costs = [record.launches.launch_calibration for record in records if record.launches]
        return {"launch_calibration": costs[-1]} if costs else {}


def run(cfg: DictConfig, folder: Path) -> int:
    """Measure launch costs and write the result to the run's environment.json too."""
    config = read_config(cfg)
    if config.settings.trace:
        given = "counters" if config.settings.counters else "trace"
        raise InputError(f"{given}=true: launch_overhead has no step to trace. Leave it out.")
    decode_options(CalibrationOptions, config.source["calibration"], "calibration")  # before any process is started
    procedure = {"_target_": CELL, "options": config.source["calibration"]}
    return execute(TARGET, replace(config, procedure=procedure, files=LaunchCosts()), folder)


if __name__ == "__main__":
    main(TARGET, run)
