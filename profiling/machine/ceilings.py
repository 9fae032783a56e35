"""Ceilings kept for a day in the user's cache folder, so that a run does not measure what the last one did.

A file for each device and setup, replaced as a whole: runs at the same time disturb neither each other nor a reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from profiling.results.run_folder import write_json

#: On a machine left alone 1 to 3% are lost; one other busy program takes a third of two cores and more.
MOST_LOST = 0.1


@dataclass(frozen=True)
class Ceilings:
    """What one device does at best, in one dtype.

    `copy_bytes_per_s` counts a large copy's bytes twice, read and written; `read_bytes_per_s` is of a large sum.
    `bandwidth` holds [bytes touched, bytes per second] by size, the faster of the two each: small ones stay in a cache.
    `matmul_flops_per_s` is the best of the square products in `dtype` (float32 in TF32 where the run has it),
    `conv_flops_per_s` of some convolutions, which on a CPU can be quicker; absent where it has none in that dtype.
    `launch_us` is the host's time to launch an operator that does next to nothing (on a CPU: to run it). On CUDA,
    `gap_us` is what a kernel costs in a graph beyond its length when it is launched by itself, absent where CUPTI sees
    none, and `replay_us` what a replay costs besides its kernels, from the call to the end of waiting for it. `seconds`
    is what measuring all this took, `lost_share` the share of the processor's time that others had meanwhile, absent
    where the system does not tell.
    """

    dtype: str
    copy_bytes_per_s: float
    read_bytes_per_s: float
    bandwidth: tuple[tuple[int, float], ...]
    matmul_flops_per_s: float
    launch_us: float
    gap_us: float | None
    replay_us: float | None
    seconds: float
    conv_flops_per_s: float | None = None
    lost_share: float | None = None

    @property
    def disturbed(self) -> bool:
        """Whether others had so much of the processor that what was measured on it is too low."""
        return (self.lost_share or 0.0) > MOST_LOST

    @property
    def flops_per_s(self) -> float:
        """The faster of the two rates: what no operator should beat."""
        return max(self.matmul_flops_per_s, self.conv_flops_per_s or 0.0)

    def bytes_per_s(self, size: float) -> float:
        """Return the best bandwidth for a call that touches `size` bytes.

        Repeated calls find their bytes in a cache that is large enough, so each measured size not much smaller than
        the call's own speaks for it: a floor must not lie above what a cache makes possible.
        """
        return max(rate for touched, rate in self.bandwidth if touched >= size / 4 or touched == self.bandwidth[-1][0])

    def to_json(self) -> dict[str, Any]:
        """Return what stands in the environment; absent (None) was not measured, and `disturbed` if they were."""
        found = {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}
        return found | ({"disturbed": True} if self.disturbed else {})

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Ceilings:
        """Read them back.

        Raises:
            ValueError: a field is missing, or is no number.

        """
        try:
            return Ceilings(
                dtype=str(content["dtype"]),
                bandwidth=tuple((int(size), float(rate)) for size, rate in content["bandwidth"]),
                **{name: None if content.get(name) is None else float(content[name]) for name in _OPTIONAL},
                **{name: float(content[name]) for name in _NUMBERS},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no ceilings: {error}") from None


_OPTIONAL = ("gap_us", "replay_us", "conv_flops_per_s", "lost_share")
_NUMBERS = ("copy_bytes_per_s", "read_bytes_per_s", "matmul_flops_per_s", "launch_us", "seconds")


KEPT_SECONDS = 24 * 3600
#: How ceilings are measured: what an older version of these kept is no ceiling of this one.
METHOD_FILES = tuple(
    Path(__file__).parents[1] / name for name in ("roofline/measure_ceilings.py", "trace/device_work.py")
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
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"key": key, "measured_at": found[1], "ceilings": found[0].to_json()})
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


def _text(key: Key) -> str:
    return json.dumps(key, sort_keys=True)
