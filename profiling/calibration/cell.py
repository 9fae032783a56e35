"""The cell of `launch_overhead`: calibrate, once, in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from profiling.calibration.launches import calibrate
from profiling.calibration.options import CalibrationOptions
from profiling.core.cell import Cell


@dataclass
class CalibrationCell(Cell):
    """Measure what a launch costs on the run's device, in its dtype and with its seed."""

    options: CalibrationOptions = field(default_factory=CalibrationOptions)

    def measure(self) -> None:
        """Add the calibration as the record's section `launches`."""
        settings = self.job.settings
        options = replace(self.options, dtype=settings.dtype, seed=settings.seed)
        with self.phase("calibrate"):
            content = calibrate(torch.device(settings.device), options, lambda line: print(line, flush=True))
        self.add(launches=content)
