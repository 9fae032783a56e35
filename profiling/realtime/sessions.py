"""Sessions of a loop: the first ticks of a pipeline from S0, which are played eagerly, as reference, and by steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from profiling.components.component import CHECK_SEED, Component
from profiling.components.outputs import OutputLog, to_host
from profiling.components.sides import Start
from profiling.components.trajectory import seed_generators
from profiling.realtime.graph import Graph
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import StagedPipeline
from profiling.realtime.play import Clock, FrameLoop

#: How references are played: in turn, and left on the device.
EAGER = LoopOptions(deliver="device")
#: Ticks of a session that is compared with its reference. A stage that runs less often than every `FAR` ticks is
#: compared in its first run only.
CHECK_TICKS, FAR = 4, 16
#: Sessions of the whole pipeline that are compared: one that leaves a wrong state behind is wrong in the second.
SESSIONS = 2


def play_sessions(
    graph: Graph,
    components: Mapping[str, Component],
    pipeline: StagedPipeline,
    *,
    seed: int = 0,
    starts: Mapping[str, Start] | None = None,
) -> OutputLog:
    """Play the first ticks of `SESSIONS` sessions; return what each tick delivers, in host memory.

    The global random number generators begin with the same seed each time, to which `seed` is added.
    """
    log = OutputLog()
    seed_generators(next(iter(components.values())).seed + CHECK_SEED + seed)
    for _ in range(SESSIONS):
        play_session(
            components,
            pipeline,
            session_ticks(graph),
            lambda _, delivered: log.append(to_host(output=delivered)),
            starts=starts,
        )
    return log


def session_ticks(graph: Graph) -> int:
    """Return the ticks of a session that is checked: a few, and where it is not far, a second run of every stage."""
    return max([CHECK_TICKS, *(stage.every + 1 for stage in graph.stages.values() if stage.every < FAR)])


def play_session(
    components: Mapping[str, Component],
    pipeline: StagedPipeline,
    ticks: int,
    on_delivery: Callable[[int, Mapping[str, Tensor]], None],
    *,
    starts: Mapping[str, Start] | None = None,
) -> None:
    """Play the first ticks of a new session; call `on_delivery` with what each tick delivers, by name, in host memory.

    Where a tick is delivered to is an option of the run, and no part of what is compared.

    Raises:
        InputError: an output does not fit the input that it is handed to.

    """

    def collect(tick: int, _frame_ms: float) -> Mapping[str, float]:
        on_delivery(tick, {name: tensor.to("cpu") for name, tensor in pipeline.delivered(tick).items()})
        return {}

    begin_session(components, pipeline, starts)
    FrameLoop(pipeline, Clock(), collect, depth=pipeline.depth).run(range(ticks), lambda row: None)
    begin_session(components, pipeline, starts)


def begin_session(
    components: Mapping[str, Component], pipeline: StagedPipeline, starts: Mapping[str, Start] | None = None
) -> None:
    """Put S0 of every stage back, that of `starts` where it is given, and let sources and noise start again."""
    for name, component in components.items():
        component.reset()
        if starts is not None and component.policy == "reset":  # which has computed it anew
            starts[name].load(component)
    pipeline.reset()
