"""What a cell plays, out of its job: the graph, the components of its stages, and how many ticks. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiling.components.spec import ComponentSpec, Settings, decode_options
from profiling.realtime.graph import Graph, parse_graph
from profiling.realtime.options import LoopOptions
from profiling.results.loop import Realtime


@dataclass(frozen=True)
class Plan:
    """A loop: its options, the graph of a tick, the specs of the components by stage, and the device that runs it.

    `frames` ticks are timed, after `warmup_frames`.
    """

    options: LoopOptions
    graph: Graph
    specs: Mapping[str, ComponentSpec]
    frames: int
    warmup_frames: int

    @staticmethod
    def of(
        settings: Settings, *, options: Mapping[str, Any], pipeline: Mapping[str, Any], stages: Mapping[str, Any]
    ) -> Plan:
        """Parse the config nodes `loop` and `pipeline`, and the fields of the components' specs by stage.

        Raises:
            InputError: a wrong option or pipeline.

        """
        specs = {name: ComponentSpec(**node).at(settings.scale) for name, node in stages.items()}
        graph = parse_graph(pipeline, {spec.key for spec in specs.values()})
        loop = decode_options(LoopOptions, options, "loop")
        return Plan(loop, graph, specs, *loop.counts(settings.device.partition(":")[0], graph.warmup_frames))

    @property
    def ticks(self) -> int:
        """Length of the sources that are made: all ticks of the loop."""
        return self.frames + self.warmup_frames

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
