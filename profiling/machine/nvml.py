"""Driver facts about the GPU, from NVML: version, clocks, power limit, reasons for lower clocks, other processes.

A fact that the driver does not report is None (absent in the record), never a default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pynvml
import torch

#: Reasons for lower clocks, by their bit in NVML's clocks event reasons.
THROTTLE_REASONS = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}


@cache
def _handle(device: torch.device) -> Any:
    """Return NVML's handle, looked up by UUID (CUDA_VISIBLE_DEVICES changes indices); None without a driver library."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None


def _query(device: torch.device, function: Callable[[Any], Any]) -> Any:
    handle = _handle(device)
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


def clock_mhz(device: torch.device, which: str, *, maximum: bool = False) -> int | None:
    """Return the current clock in MHz of `which` ("sm" or "memory"); with `maximum`, the highest possible one."""
    domain = {"sm": pynvml.NVML_CLOCK_SM, "memory": pynvml.NVML_CLOCK_MEM}[which]
    ask = pynvml.nvmlDeviceGetMaxClockInfo if maximum else pynvml.nvmlDeviceGetClockInfo
    return _query(device, lambda handle: ask(handle, domain))


def power_limit_w(device: torch.device) -> float | None:
    """Return the enforced power limit in watts."""
    milliwatts = _query(device, pynvml.nvmlDeviceGetEnforcedPowerLimit)
    return None if milliwatts is None else milliwatts / 1000


def other_processes(device: torch.device) -> int | None:
    """Return the number of other processes that compute on the device; None if they cannot be told from this process.

    Inside a container the driver reports process ids of the host, so this process is not among them.
    """
    processes = _query(device, pynvml.nvmlDeviceGetComputeRunningProcesses)
    pids = None if processes is None else {process.pid for process in processes}
    return None if pids is None or os.getpid() not in pids else len(pids) - 1


def throttle_reasons(device: torch.device) -> frozenset[str]:
    """Return the reasons for which clocks are lowered now; empty if there are none or the driver cannot report them."""
    bits = _query(device, pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
    return frozenset(text for bit, text in THROTTLE_REASONS.items() if bits & bit)
