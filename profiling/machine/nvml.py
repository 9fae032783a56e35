"""What the driver knows about the GPU: name, clocks, power limit, and why it slows down.

Every answer that the driver does not give is None: absent, never a default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pynvml
import torch

#: Reasons for a clock below what the load asks for, by the bit that reports them (NVML's clocks event reasons).
THROTTLE_REASONS = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}


@cache
def _handle(device: torch.device) -> Any:
    """Return NVML's handle by UUID: indices differ under CUDA_VISIBLE_DEVICES. None without a driver library."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None


def _ask(device: torch.device, question: Callable[[Any], Any]) -> Any:
    handle = _handle(device)
    if handle is None:
        return None
    try:
        return question(handle)
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
    """Return the clock of `which` ("sm" or "memory") in MHz, now or at most."""
    domain = {"sm": pynvml.NVML_CLOCK_SM, "memory": pynvml.NVML_CLOCK_MEM}[which]
    ask = pynvml.nvmlDeviceGetMaxClockInfo if maximum else pynvml.nvmlDeviceGetClockInfo
    return _ask(device, lambda handle: ask(handle, domain))


def power_limit_w(device: torch.device) -> float | None:
    """Return the enforced power limit in watts."""
    milliwatts = _ask(device, pynvml.nvmlDeviceGetEnforcedPowerLimit)
    return None if milliwatts is None else milliwatts / 1000


def other_processes(device: torch.device) -> int | None:
    """Return how many other processes compute on the device; None where the driver does not tell them from this one.

    Inside a container the driver's numbers are those of the host, and this process is not among them.
    """
    found = _ask(device, pynvml.nvmlDeviceGetComputeRunningProcesses)
    pids = None if found is None else {process.pid for process in found}
    return None if pids is None or os.getpid() not in pids else len(pids) - 1


def throttle_reasons(device: torch.device) -> frozenset[str]:
    """Return why the clocks are held down right now; empty when they are not, or when the driver does not say."""
    bits = _ask(device, pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
    return frozenset(text for bit, text in THROTTLE_REASONS.items() if bits & bit)
