"""Ceilings kept for a day in the user's cache folder, so that a run does not measure what the last one did.

A file for each device and setup, replaced as a whole: runs at the same time disturb neither each other nor a reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from profiling.limits.ceilings import Ceilings

KEPT_SECONDS = 24 * 3600
#: How ceilings are measured: what an older version of these kept is no ceiling of this one.
METHOD_FILES = tuple(
    Path(__file__).parents[1] / name
    for name in ("limits/measure.py", "limits/pace.py", "limits/processor.py", "tracing/device_work.py")
)

Key = Mapping[str, Any]


def kept_ceilings(key: Key, measure: Callable[[], Ceilings], folder: Path | None = None) -> tuple[Ceilings, float]:
    """Return the ceilings of `key` and when they were taken (seconds since the epoch), measured only where need be.

    `key` names all they depend on: device, driver, torch, dtype, threads, TF32. A file that is damaged, of another key
    or older than a day is measured again and rewritten; what others disturbed is not kept, and a folder that can't be
    written to keeps nothing. How they are measured is part of the key: who changes that need not remember this file.
    """
    key = {"method": _method(), **key}
    path = (folder or cache_folder()) / f"{hashlib.sha256(_text(key).encode()).hexdigest()[:24]}.json"
    found = _read(path, key)
    if found is None:
        found = measure(), time.time()
        if found[0].disturbed:  # it would make every verdict of the day wrong
            return found
        with suppress(OSError):
            _write(path, {"key": key, "measured_at": found[1], "ceilings": found[0].to_json()})
    return found


def cache_folder() -> Path:
    """Return where ceilings are kept: below XDG_CACHE_HOME where it is an absolute path, else below ~/.cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path("~/.cache").expanduser()) / "rt-profiling" / "ceilings"


def _method() -> str:
    """Return a digest of the code that measures."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in METHOD_FILES)).hexdigest()[:16]


def _read(path: Path, key: Key) -> tuple[Ceilings, float] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        taken = float(content["measured_at"])
        if content["key"] != json.loads(_text(key)) or not 0 <= time.time() - taken < KEPT_SECONDS:
            return None
        return Ceilings.from_json(content["ceilings"]), taken
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
        Path(partial).replace(path)
    except OSError:
        Path(partial).unlink(missing_ok=True)
        raise


def _text(key: Key) -> str:
    return json.dumps(key, sort_keys=True)
