"""The stages of a loop: their components, the pipelines that play them, and the sessions in which they are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch

from profiling.components.build import Blueprint
from profiling.components.component import CHECK_SEED, Component
from profiling.components.outputs import OutputLog, Outputs, to_host
from profiling.components.sides import Sides, Start, play_sides
from profiling.components.trajectory import seed_generators
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import Graph
from profiling.realtime.pipeline import StagedPipeline
from profiling.realtime.plan import Plan
from profiling.realtime.play import Clock, FrameLoop

#: Ticks of a session that is compared with its reference. A stage that runs less often than every `FAR` ticks is
#: compared in its first run only.
CHECK_TICKS, FAR = 4, 16
#: Sessions of the whole pipeline that are compared: one that leaves a wrong state behind is wrong in the second.
SESSIONS = 2


def stage_components(plan: Plan, blueprints: Mapping[str, Blueprint]) -> dict[str, Component]:
    """Return the component of each stage, which has the stage's name; the blueprints must have been cast."""
    stages, overlapping = plan.graph.stages, plan.options.schedule == "overlap"
    return {
        name: replace(
            blueprint.component(plan.settings.seed),
            name=name,
            priority=stages[name].priority if overlapping else 0,
        )
        for name, blueprint in blueprints.items()
    }


def play_stages(
    plan: Plan,
    load: Callable[[], Mapping[str, Blueprint]],
    phase: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Sides:
    """Build the stages by `load`, and play what they are compared with: each by itself, and sessions of the whole.

    Raises:
        InputError: a module cannot be built or fails on its inputs, or an edge does not fit.

    """

    def together(components: Mapping[str, Component], starts: Mapping[str, Start] | None, seed: int) -> OutputLog:
        return play_sessions(plan, assemble(plan, components, starts=starts), seed)

    made, device = partial(stage_components, plan), torch.device(plan.settings.device)
    return play_sides(load, made, device, phase=phase, together=together)


def play_sessions(plan: Plan, pipeline: StagedPipeline, seed: int = 0) -> OutputLog:
    """Play the first ticks of `SESSIONS` sessions; return what each tick delivers, in host memory.

    The global random number generators begin with the run's seed, to which `seed` is added.
    """
    log = OutputLog()
    seed_generators(plan.settings.seed + CHECK_SEED + seed)
    for _ in range(SESSIONS):
        play_session(pipeline, session_ticks(plan.graph), log.append)
    return log


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
