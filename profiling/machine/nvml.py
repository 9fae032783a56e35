"""Driver facts about the GPU, from NVML: version, clocks, power limit, reasons for lower clocks, other processes.

A fact that the driver does not report is None (absent in the record), never a default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from statistics import median
from time import perf_counter
from typing import Any

import pynvml
import torch

from profiling.machine.run_queue import processes_of_run
from profiling.results.measured import ClockConditions

#: Field ids of the driver's counters of the ns for which it held the clocks down, by reason. Older drivers know the
#: last three by the second id; a driver that does not know an id says so.
LIMIT_FIELDS = {
    "power cap": (74,),
    "thermal policy": (75,),
    "software thermal slowdown": (269, 251),
    "hardware thermal slowdown": (270, 252),
    "power brake": (271, 253),
}
#: Processes of this run that were seen on a device: to look for them takes tens of milliseconds.
OF_RUN: set[int] = set()
#: Shortest window whose share of limited time is known: the counters step every 0.1 s.
LEAST_LIMIT_WINDOW = 1.0


class ClockMonitor:
    """Observes the clocks of a device from its construction on, except while paused; on a CPU (None) nothing."""

    def __init__(self, device: torch.device | None) -> None:
        self._device, self._clocks = device, list[int]()
        self._seconds, self._limited = 0.0, dict[str, int]()  # until the last pause
        self.resume()

    def resume(self) -> None:
        """Observe from now on."""
        self._started, self._before = perf_counter(), {} if self._device is None else limited_ns(self._device)

    def pause(self) -> None:
        """Observe nothing until `resume`."""
        self._seconds, self._limited = self._so_far()
        self._started = None

    def read(self) -> int | None:
        """Read the SM clock in MHz, which takes the driver tens of microseconds; None where it is not known."""
        clock = None if self._device is None else sm_clock_mhz(self._device)
        self._clocks += [] if clock is None else [clock]
        return clock

    def conditions(self) -> ClockConditions:
        """Return the SM clocks that were read, and the share of the observed time that was spent limited."""
        seconds, ns = self._so_far()
        limited = None
        if ns and seconds >= LEAST_LIMIT_WINDOW:
            shares = {reason: each / (1e9 * seconds) for reason, each in ns.items()}
            limited = {reason: min(1.0, share) for reason, share in shares.items() if share > 0}
        return ClockConditions(
            limited_share=limited,
            sm_clock_median_mhz=median(self._clocks) if self._clocks else None,
        )

    def _so_far(self) -> tuple[float, dict[str, int]]:
        """Return (observed seconds, ns spent limited in them by reason)."""
        if self._started is None:
            return self._seconds, self._limited
        now = limited_ns(self._device) if self._before and self._device is not None else {}
        limited = {
            reason: self._limited.get(reason, 0) + now[reason] - ns
            for reason, ns in self._before.items()
            if reason in now
        }
        return self._seconds + perf_counter() - self._started, limited or self._limited


def limited_ns(device: torch.device) -> dict[str, int]:
    """Return for how many ns the driver has held the clocks down since it was loaded, by reason; empty if unknown."""
    ids = [each for fields in LIMIT_FIELDS.values() for each in fields]
    values = _query(device, lambda handle: pynvml.nvmlDeviceGetFieldValues(handle, ids)) or ()
    known = {each.fieldId: int(each.value.ullVal) for each in values if each.nvmlReturn == pynvml.NVML_SUCCESS}
    chosen = {reason: next((each for each in fields if each in known), None) for reason, fields in LIMIT_FIELDS.items()}
    return {reason: known[each] for reason, each in chosen.items() if each is not None}


@cache
def handle_of(device: torch.device) -> Any:
    """Return NVML's handle, looked up by UUID (CUDA_VISIBLE_DEVICES changes indices); None without a driver library."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None


def _query(device: torch.device, function: Callable[[Any], Any]) -> Any:
    handle = handle_of(device)
    if handle is None:
        return None
    try:
        return function(handle)
    except pynvml.NVMLError:
        return None


def driver_version() -> str | None:
    """Return the driver's version, '580.159.04' for example."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def sm_clock_mhz(device: torch.device) -> int | None:
    """Return the current clock of the multiprocessors in MHz."""
    return _query(device, lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))


def memory_used(device: torch.device) -> int | None:
    """Return the bytes in use on the whole device, by any process. Unlike CUDA, NVML may be asked during a capture."""
    memory = _query(device, pynvml.nvmlDeviceGetMemoryInfo)
    return None if memory is None else memory.used


def power_limit_w(device: torch.device) -> float | None:
    """Return the enforced power limit in watts."""
    milliwatts = _query(device, pynvml.nvmlDeviceGetEnforcedPowerLimit)
    return None if milliwatts is None else milliwatts / 1000


def energy_mj(device: torch.device) -> int:
    """Return the energy that the GPU has taken since the driver was loaded, in millijoules, for all processes on it.

    Raises:
        pynvml.NVMLError: there is no such counter, or it may not be read.

    """
    handle = handle_of(device)
    if handle is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)


def is_mig(device: torch.device) -> bool:
    """Return whether the GPU is divided into instances (MIG)."""
    modes = _query(device, pynvml.nvmlDeviceGetMigMode)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def utilisation(device: torch.device) -> float | None:
    """Return the share of the last second or less (0 to 1) in which a kernel of any process ran; None if unknown."""
    rates = _query(device, pynvml.nvmlDeviceGetUtilizationRates)
    return None if rates is None else rates.gpu / 100


def share_of_others(device: torch.device, seconds: float) -> float | None:
    """Return the share of the last seconds (at least one) in which processes that are not of this run used the device.

    Where there are any, the driver takes tens of milliseconds for the answer, from about six samples a second. None
    where processes cannot be told: inside a container the driver reports process ids of the host, so this process is
    not among them.
    """
    processes = _query(device, pynvml.nvmlDeviceGetComputeRunningProcesses) or ()
    computing = frozenset(process.pid for process in processes)
    if os.getpid() not in computing:
        return None
    if not computing <= OF_RUN:
        OF_RUN.clear()
        OF_RUN.update(processes_of_run())
    if computing <= OF_RUN:
        return 0.0
    since_us = int(1e6 * (time.time() - max(1.0, seconds)))
    busy: dict[int, list[int]] = {}
    samples = _query(device, lambda handle: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
    if samples is None:
        return None
    for sample in samples:
        busy.setdefault(sample.pid, []).append(sample.smUtil)
    return min(1.0, sum(sum(values) / len(values) / 100 for pid, values in busy.items() if pid not in OF_RUN))
