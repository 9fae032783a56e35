"""Options of the loop. Free of torch: the parent process checks them."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.errors import check_choice, check_number, check_whole

#: Two days at 60 frames a second, whose actions and times still fit into memory.
MOST_FRAMES = 10**7


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The options of a loop.

    A tick is one pass through the pipeline, which delivers one frame or a chunk of frames.

    - `frames` ticks are timed after `warmup_frames` (None: 600 on a GPU, 120 on a CPU, after as many as the pipeline
      asks for, else 60 and 20).
    - `fps`: target in frames/s; None: the frame rate of the pipeline.
    - `schedule`: `sequential`; `overlap` runs each stage on a stream of its own, with two ticks in flight.
    - `pace`: `free` begins a tick when the one before is delivered; `realtime` when it is due.
    - `deliver`: `host` copies what is delivered to pinned memory, `device` leaves it on the GPU.
    - `gc`: Python's garbage collector is `on`, `off`, or `frozen` (it ignores objects made before the loop).

    Raises:
        InputError: a value that is out of range or not among the choices.

    """

    frames: int | None = None
    warmup_frames: int | None = None
    fps: float | None = None
    schedule: str = "sequential"
    pace: str = "free"
    deliver: str = "host"
    gc: str = "frozen"

    def __post_init__(self) -> None:
        check_choice("loop.schedule", self.schedule, ("sequential", "overlap"))
        check_choice("loop.pace", self.pace, ("free", "realtime"))
        check_choice("loop.deliver", self.deliver, ("host", "device"))
        check_choice("loop.gc", self.gc, ("frozen", "on", "off"))
        for name in ("frames", "warmup_frames"):
            if (value := getattr(self, name)) is not None:
                check_whole(f"loop.{name}", value, most=MOST_FRAMES)
        if self.fps is not None:
            check_number("loop.fps", self.fps, above=0)
