"""The ceilings that a run goes by: measured or remembered at its start, kept in its environment, read by its cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from profiling.core.folder import ENVIRONMENT_FILE
from profiling.core.job import Settings
from profiling.limits.ceilings import Ceilings
from profiling.limits.ceilings_cache import kept_ceilings
from profiling.limits.measure import measure_ceilings


def ceilings_of(settings: Settings, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `environment.json` holds as `ceilings`: them and `measured_at`; `settings` are resolved ones.

    `environment` is what is known of the machine, as `profiling.core.environment` captured it.

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
