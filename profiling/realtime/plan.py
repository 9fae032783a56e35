"""The plan of a real-time loop: its options, its graph of stages with their components, and the number of ticks.

Imports no torch, because the process that checks the options does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiling.components.spec import ComponentSpec, Settings, decode_options
from profiling.errors import check_choice, check_number, check_whole
from profiling.realtime.graph import MOST_FRAMES, Graph, parse_graph
from profiling.results.loop import Realtime
from profiling.run.job import Job

#: Least number of ticks that are compared with the reference; and of a stage that runs only every `FAR` ticks, or less
#: often, the first run alone is compared.
CHECK_TICKS, FAR = 4, 16


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


@dataclass(frozen=True)
class Plan:
    """A loop: the graph of a tick, its options, the settings of the run, and the components of the stages.

    `frames` ticks are timed, after `warmup_frames`. `specs` are those of the components, by stage.
    """

    graph: Graph
    options: LoopOptions
    settings: Settings
    frames: int
    warmup_frames: int = 0
    specs: Mapping[str, ComponentSpec] = field(default_factory=dict)

    @staticmethod
    def of(job: Job, *, options: Mapping[str, Any], pipeline: Mapping[str, Any]) -> Plan:
        """Parse the config nodes `loop` and `pipeline`; the components are those of the job.

        Raises:
            InputError: a wrong option or pipeline.

        """
        networks = {spec.name: spec for spec in job.networks}
        graph = parse_graph(pipeline, networks)
        loop = decode_options(LoopOptions, options, "loop")
        frames, warmup = (600, 60) if job.settings.device.startswith("cuda") else (120, 20)
        frames, warmup = loop.frames or frames, loop.warmup_frames or graph.warmup_frames or warmup
        specs = {name: networks[stage.component] for name, stage in graph.stages.items()}
        return Plan(graph, loop, job.settings, frames, warmup, specs)

    @property
    def ticks(self) -> int:
        """Length of the sources that are made: all ticks of the loop."""
        return self.frames + self.warmup_frames

    @property
    def session_ticks(self) -> int:
        """Ticks of a session that is compared: a second run of every stage that runs more often than every `FAR`."""
        return max([CHECK_TICKS, *(stage.every + 1 for stage in self.graph.stages.values() if stage.every < FAR)])

    @property
    def target_fps(self) -> float:
        """The frame rate that the loop should hold, in frames/s."""
        return float(self.options.fps or self.graph.frame_rate)

    def section(self) -> Realtime:
        """Return the section `realtime` of the record before the first frame."""
        options, graph = self.options, self.graph
        return Realtime(
            frames=0,
            target_fps=self.target_fps,
            frames_per_tick=graph.frames_per_tick,
            pace=options.pace,
            warmup_frames=self.warmup_frames,
            schedule=options.schedule,
            deliver=options.deliver,
            gc=options.gc,
            work=graph.work,
            miss=graph.miss,
        )
