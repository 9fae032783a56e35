"""Energy of a call: the GPU's idle power, then windows of calls one after the other, by the driver's energy counter."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from profiling.errors import check_number, check_whole
from profiling.machine import nvml
from profiling.machine.energy import EnergyCounter, NoEnergy, energy_windows, idle_power
from profiling.machine.gc_policy import no_garbage_collection
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.results.energy import Energy as EnergySection
from profiling.results.energy import energy_section, others_reason
from profiling.results.measured import LEAST_VALUES
from profiling.trace.profiler import synchronize


@dataclass(frozen=True, kw_only=True)
class Energy(Metric):
    """Measure the joules of a call in windows of calls that follow each other, each of which is waited for.

    A window has `window_steps` steps of the driver's counter. It is longer where ten calls are, or where readings take
    so long that the moments of the steps would not be known to 1% of it, as far as all fit into `max_seconds`. Calls
    of `settle_seconds` come before, until the power has risen.

    Raises:
        InputError: an option that is out of range.

    """

    windows: int = 8
    window_steps: int = 5
    settle_seconds: float = 1.0
    max_seconds: float = 20.0

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("windows", self.windows, LEAST_VALUES)  # fewer carry no interval
        check_whole("window_steps", self.window_steps)
        for name in ("settle_seconds", "max_seconds"):
            check_number(name, getattr(self, name), above=0)

    def measure(self, subject: Subject) -> Measured:
        """Return `energy`, or the reason why it is not known."""
        try:
            return Measured({"energy": self._measured(subject)})
        except NoEnergy as reason:
            return Measured({"energy": EnergySection(reason=str(reason))})

    def _measured(self, subject: Subject) -> EnergySection:
        device = subject.component.device
        if device.type != "cuda":
            raise NoEnergy("the energy of a CPU is not measured")
        counter = EnergyCounter(device)

        def call() -> None:
            output = subject.step.call()
            synchronize(device)  # without holding the interpreter's lock
            del output

        with no_garbage_collection():
            synchronize(device)
            idle = idle_power(counter)
            began = perf_counter()
            windows = energy_windows(
                call,
                counter,
                idle.step_s,
                windows=self.windows,
                window_steps=self.window_steps,
                settle_s=self.settle_seconds,
                max_s=self.max_seconds,
            )
            others = others_reason(nvml.share_of_others(device, perf_counter() - began))
        if others is not None:
            raise NoEnergy(others)
        frames = subject.component.frames_per_call
        return energy_section(windows, frames_per_call=frames, idle_w=idle.watts, step_ms=1e3 * idle.step_s)
