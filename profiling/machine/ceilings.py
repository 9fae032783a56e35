"""Measured ceilings, kept in the user's cache folder: once for a device, its driver, torch and the run's settings.

Each device and setup has its own file, which is replaced atomically, so runs can use the cache at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from profiling.results.environment import Ceilings
from profiling.results.run_folder import write_json

#: Share of CPU time (0 to 1) taken by other processes, from which ceilings would be too low. On a quiet machine it is
#: 0.01 to 0.03; another busy program takes at least 0.33 of two cores.
MOST_LOST = 0.1
#: Code that measures ceilings. Its digest is part of the cache key: a changed method invalidates what is cached.
METHOD_FILES = tuple(
    Path(__file__).parents[1] / name
    for name in (
        *("roofline/measure_ceilings.py", "trace/device_work.py"),
        *("machine/memory.py", "machine/run_queue.py", "machine/tf32.py"),
    )
)

Key = Mapping[str, Any]


def kept_ceilings(key: Key, measure: Callable[[], Ceilings], folder: Path | None = None) -> Ceilings:
    """Return the ceilings of `key`, from the cache or by calling `measure()`.

    `key` holds everything they depend on: device, driver, torch, dtype, threads, TF32; its digest names the file. One
    that is damaged is replaced by a new measurement. Disturbed ceilings are returned but not cached. If
    the folder cannot be written to, nothing is cached.
    """
    key = {"method": _method(), **key}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    path = (folder or cache_folder()) / f"{digest[:24]}.json"
    cached = _read(path)
    if cached is not None:
        return cached
    ceilings = measure()
    if not ceilings.disturbed:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"key": key, "ceilings": msgspec.to_builtins(ceilings)})
    return ceilings


def cache_folder() -> Path:
    """Return the cache folder: below XDG_CACHE_HOME where that is an absolute path, else below ~/.cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path("~/.cache").expanduser()) / "rt-profiling" / "ceilings"


def _method() -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in METHOD_FILES)).hexdigest()[:16]


def _read(path: Path) -> Ceilings | None:
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8"))["ceilings"], Ceilings)
    except (OSError, ValueError, KeyError, TypeError):
        return None
