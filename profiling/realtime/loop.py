"""The stages of a loop: their components, the pipelines that play them, and the sessions in which they are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from profiling.components.build import Blueprint
from profiling.components.component import CHECK_SEED, Component
from profiling.components.outputs import OutputLog, Outputs, to_host
from profiling.components.sides import Sides, Start, play_sides
from profiling.components.spec import Settings
from profiling.components.trajectory import seed_generators
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import Graph
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import StagedPipeline
from profiling.realtime.play import Clock, FrameLoop

#: How stages are played eagerly: in turn, and left on the device.
EAGER = LoopOptions(deliver="device")
#: Ticks of a session that is compared with its reference. A stage that runs less often than every `FAR` ticks is
#: compared in its first run only.
CHECK_TICKS, FAR = 4, 16
#: Sessions of the whole pipeline that are compared: one that leaves a wrong state behind is wrong in the second.
SESSIONS = 2


@dataclass(frozen=True)
class Loop:
    """A graph, and how its stages are built and played. `ticks` is the length of the sources that are made."""

    graph: Graph
    options: LoopOptions
    settings: Settings
    ticks: int

    def components(self, blueprints: Mapping[str, Blueprint]) -> dict[str, Component]:
        """Return the component of each stage, which has the stage's name; the blueprints must have been cast."""
        stages, overlapping = self.graph.stages, self.options.schedule == "overlap"
        return {
            name: replace(
                blueprint.component(self.settings.seed),
                name=name,
                priority=stages[name].priority if overlapping else 0,
            )
            for name, blueprint in blueprints.items()
        }

    def pipeline(
        self,
        components: Mapping[str, Component],
        calls: Mapping[str, Callable[[], Any]] | None = None,
        starts: Mapping[str, Start] | None = None,
    ) -> StagedPipeline:
        """Return the pipeline of stages that are prepared as `calls`; None: eager ones, in turn, left on the device.

        Its sessions begin with S0 of the components, or with `starts`.

        Raises:
            InputError: an edge does not fit the inputs of its stage.

        """
        options = EAGER if calls is None else self.options
        calls = calls or {name: component.call for name, component in components.items()}
        seed, narrow = self.settings.seed, getattr(torch, self.settings.dtype)
        return assemble(
            self.graph, components, calls, options, ticks=self.ticks, seed=seed, narrow=narrow, starts=starts
        )

    def play_sessions(self, pipeline: StagedPipeline, seed: int = 0) -> OutputLog:
        """Play the first ticks of `SESSIONS` sessions; return what each tick delivers, in host memory.

        The global random number generators begin with the run's seed, to which `seed` is added.
        """
        log = OutputLog()
        seed_generators(self.settings.seed + CHECK_SEED + seed)
        for _ in range(SESSIONS):
            play_session(pipeline, session_ticks(self.graph), log.append)
        return log

    def sides(
        self,
        load: Callable[[], Mapping[str, Blueprint]],
        phase: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> Sides:
        """Build the stages by `load`, and play what they are compared with: each by itself, and sessions of the whole.

        Raises:
            InputError: a module cannot be built or fails on its inputs, or an edge does not fit.

        """

        def together(components: Mapping[str, Component], starts: Mapping[str, Start] | None, seed: int) -> OutputLog:
            return self.play_sessions(self.pipeline(components, starts=starts), seed)

        return play_sides(load, self.components, torch.device(self.settings.device), phase=phase, together=together)


def session_ticks(graph: Graph) -> int:
    """Return the ticks of a session that is checked: a few, and where it is not far, a second run of every stage."""
    return max([CHECK_TICKS, *(stage.every + 1 for stage in graph.stages.values() if stage.every < FAR)])


def play_session(pipeline: StagedPipeline, ticks: int, on_delivery: Callable[[Outputs], object]) -> None:
    """Play the first ticks of a new session; call `on_delivery` with what each delivers. Then put S0 back.

    Tensors are compared in host memory: where a tick is delivered to is an option of the run.

    Raises:
        InputError: an output does not fit the input that it is handed to.

    """

    def collect(tick: int, _frame_ms: float) -> Mapping[str, float]:
        on_delivery(to_host(output={name: tensor.to("cpu") for name, tensor in pipeline.delivered(tick).items()}))
        return {}

    pipeline.reset()
    FrameLoop(pipeline, Clock(), collect).run(range(ticks), lambda row: None)
    pipeline.reset()
