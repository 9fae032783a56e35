"""Options of the loop, and the names of its roles and stages. Free of torch: the parent process checks them."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.errors import check_choice, check_number, check_whole

#: Roles of components, each also a stage: the world model makes the latents of a frame, the others decode them.
WORLD, PICTURE, SOUND = "world", "picture", "sound"
ROLES = (WORLD, PICTURE, SOUND)
#: Further stages: all three networks as one, and the copy to the playout buffer.
WHOLE, DELIVER = "whole", "deliver"

#: Options of the world model's module that `realtime` sets; also fields of the record's section `realtime`.
WORLD_OPTIONS = ("steps", "commit", "guidance")

CHOICES = {
    "schedule": ("sequential", "overlap", "one_graph"),
    "pace": ("free", "realtime"),
    "deliver": ("host", "device"),
    "sound": ("exact", "auto", "windowed"),
    "gc": ("frozen", "on", "off"),
}

#: Two days at 60 frames a second, whose actions and times still fit into memory.
MOST_FRAMES = 10**7


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The options of a loop.

    - `frames` are timed after `warmup_frames` (None: 600 and 60 on a GPU, 120 and 20 on a CPU). With trace=true,
      `profile_frames` more are traced.
    - `schedule`: `sequential`; `overlap` decodes frame t on streams of its own while frame t + 1 is made; `one_graph`
      prepares the whole frame as one network.
    - `pace`: `free` begins a frame when the one before is delivered; `realtime` when it is due at `fps` (frames/s).
    - `deliver`: `host` copies a frame to pinned memory, `device` leaves it on the GPU.
    - `actions`: an .npz with `mouse` [n, 2] and `btn` [n, n_buttons], repeated after n frames; None: drawn from the
      run's seed.
    - `sound`: `exact` decodes the whole window of latents, `windowed` its newest `sound_latents`, `auto` is `windowed`
      if its signal-to-noise ratio against the whole window is at least `sound_snr_db` dB, else `exact`.
    - `gc`: Python's garbage collector is `on`, `off`, or `frozen` (it ignores objects made before the loop).

    Raises:
        InputError: a value that is out of range or not among the choices.

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
    gc: str = "frozen"
    profile_frames: int = 20

    def __post_init__(self) -> None:
        """Check every value."""
        for name, choices in CHOICES.items():
            check_choice(f"loop.{name}", getattr(self, name), choices)
        for name in ("frames", "warmup_frames", "sound_latents", "profile_frames"):
            value = getattr(self, name)
            if value is not None or name in ("sound_latents", "profile_frames"):
                check_whole(f"loop.{name}", value, most=MOST_FRAMES)
        for name in ("fps", "sound_snr_db"):
            check_number(f"loop.{name}", getattr(self, name), above=0)

    def counts(self, device_type: str) -> tuple[int, int]:
        """Return (timed frames, warm-up frames) for a device type, "cpu" or "cuda"."""
        frames, warmup = (600, 60) if device_type == "cuda" else (120, 20)
        return self.frames or frames, self.warmup_frames or warmup

    def depth(self, device_type: str) -> int:
        """Return how many frames may be in flight: 2 where stages overlap, which a CPU does not do."""
        return 2 if self.schedule == "overlap" and device_type == "cuda" else 1
