"""The ceilings that a run goes by: measured or remembered at its start, kept in its environment, read by its cells."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import torch

from profiling.components.spec import Settings
from profiling.machine import nvml
from profiling.machine.ceilings import Ceilings, kept_ceilings
from profiling.results.run_folder import ENVIRONMENT_FILE
from profiling.roofline.measure_ceilings import measure_ceilings

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


def ceilings_of(settings: Settings, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `environment.json` holds as `ceilings`: them and `measured_at`; `settings` are resolved ones.

    `environment` is what is known of the machine, as `profiling.run.environment` captured it.

    Raises:
        RuntimeError: the device failed, or has next to no free memory.

    """
    device, threads = torch.device(settings.device), settings.threads or torch.get_num_threads()
    key = {
        "device": environment["device"].get("name"),
        "uuid": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None,
        "power_limit_w": environment["device"].get("power_limit_w"),
        "driver": environment["versions"].get("driver"),
        "torch": torch.__version__,
        "dtype": settings.dtype,
        "tf32": settings.tf32,
        "threads": threads,
    }
    dtype: torch.dtype = getattr(torch, settings.dtype)
    ceilings, taken = kept_ceilings(key, lambda: measure_ceilings(device, dtype, threads=threads, tf32=settings.tf32))
    return {"measured_at": datetime.fromtimestamp(taken, UTC).isoformat(timespec="seconds"), **ceilings.to_json()}


def ceilings_in(run: Path) -> Ceilings | None:
    """Return the ceilings in the run's environment; None where the run has none.

    Raises:
        ValueError: what stands there are no ceilings.

    """
    try:
        found = json.loads((run / ENVIRONMENT_FILE).read_text(encoding="utf-8")).get("ceilings")
    except OSError:
        return None
    return None if found is None else Ceilings.from_json(found)
