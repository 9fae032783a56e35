"""What the numbers depend on, captured once a run; absent where it cannot be known."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import torch

from profiling.core import nvml
from profiling.core.job import Settings

#: Prefixes of the environment variables that change what is measured, or how fast it is.
VARIABLES = (
    *("CUDA_LAUNCH_", "CUDA_MODULE_", "CUDA_VISIBLE_", "CUDA_DEVICE_", "CUBLAS", "CUDNN", "NVIDIA_TF32_"),
    *("PYTORCH_", "TORCH", "TRITON_", "OMP_", "MKL_", "KMP_"),
)
#: Those that this harness sets itself, and that differ from one process to the next.
OWN_VARIABLES = ("TORCH_TRACE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def environment(settings: Settings, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Return what the numbers depend on: versions, device, clocks, threads, seed; absent where it cannot be known."""
    device = torch.device(settings.device)
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "cudnn": str(torch.backends.cudnn.version()) if device.type == "cuda" else None,
        "triton": _triton_version(),
        "numpy": numpy.__version__,
        "driver": nvml.driver_version() if device.type == "cuda" else None,
        "os": f"{platform.system()} {platform.release()}",
    }
    return {
        "versions": _present(versions),
        "device": _present(_cuda_facts(device) if device.type == "cuda" else {"type": "cpu", "name": _cpu_model()}),
        "cpu": _present({"model": _cpu_model(), "cores": len(os.sched_getaffinity(0))}),
        **{key: getattr(settings, key) for key in ("threads", "seed", "scale", "dtype", "tf32")},
        **{f"{key}_reason": reason for key, reason in reasons.items()},
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES) and name not in OWN_VARIABLES
        },
    }


def _cuda_facts(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "clock_sm_max_mhz": nvml.clock_mhz(device, "sm", maximum=True),
        "clock_memory_max_mhz": nvml.clock_mhz(device, "memory", maximum=True),
        "power_limit_w": nvml.power_limit_w(device),
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _triton_version() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}
