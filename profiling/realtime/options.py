"""How the loop runs: how many frames, at what pace, in what order, and what becomes of sound and picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiling.errors import InputError, did_you_mean

SCHEDULES = ("sequential", "overlap", "one_graph")
PACES = ("free", "realtime")
DELIVERIES = ("host", "device")
WINDOWS = ("exact", "auto", "windowed")
GARBAGE = ("frozen", "on", "off")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The options of a loop.

    `frames` are timed after `warmup_frames` (None: 600 and 60 on a GPU, 120 and 20 on a CPU). `overlap` decodes frame t
    on streams of its own while frame t + 1 is made, `one_graph` prepares the whole frame as one network.
    `pace=realtime` begins each frame when it is due at `fps`, as an application does; `free` at once. `actions` is an
    .npz with `mouse` [n, 2] and `btn` [n, n_buttons], played from the start again at its end (None: drawn from the
    run's seed). `sound` decodes the exact window, or the newest `sound_latents` of it: always (`windowed`), or where
    that is within `sound_snr_db` of the exact one (`auto`). `garbage` says what Python's collector does: `frozen`
    leaves aside all that was made before the loop, `on` and `off` as they say. `profile_frames` are traced with
    trace=true.

    Raises:
        InputError: a value out of range, or one that is none of its choices.

    """

    frames: int | None = None
    warmup_frames: int | None = None
    fps: float = 60.0
    schedule: str = "sequential"
    pace: str = "free"
    deliver: str = "host"
    actions: str | None = None
    sound: str = "exact"
    sound_latents: int = 30
    sound_snr_db: float = 40.0
    garbage: str = "frozen"
    profile_frames: int = 20

    def __post_init__(self) -> None:
        """Refuse at once what would end a run later."""
        _choice("schedule", self.schedule, SCHEDULES)
        _choice("pace", self.pace, PACES)
        _choice("deliver", self.deliver, DELIVERIES)
        _choice("sound", self.sound, WINDOWS)
        _choice("garbage", self.garbage, GARBAGE)
        for name, least in (("frames", 1), ("warmup_frames", 1), ("sound_latents", 1), ("profile_frames", 1)):
            value = getattr(self, name)
            if value is None and name in ("frames", "warmup_frames"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"loop.{name}={value!r}: a whole number, at least {least}.")
        for name in ("fps", "sound_snr_db"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"loop.{name}={value!r}: a number above 0.")

    def counts(self, device_type: str) -> tuple[int, int]:
        """Return (frames, warm-up frames) for a device."""
        frames, warmup = (600, 60) if device_type == "cuda" else (120, 20)
        return self.frames or frames, self.warmup_frames or warmup

    def depth(self, device_type: str) -> int:
        """Return how many frames are in the making at the same time: a CPU works on one after the other."""
        return 2 if self.schedule == "overlap" and device_type == "cuda" else 1


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"loop.{name}={value} is none of {', '.join(choices)}.{did_you_mean(str(value), choices)}")
