"""Sessions of a loop: the first ticks of a pipeline from S0, which are played eagerly, as reference, and by steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from profiling.components.component import CHECK_SEED
from profiling.components.outputs import OutputLog, Outputs, to_host
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


def play_sessions(graph: Graph, pipeline: StagedPipeline, seed: int) -> OutputLog:
    """Play the first ticks of `SESSIONS` sessions; return what each tick delivers, in host memory.

    The global random number generators begin with the same numbers for the same `seed`.
    """
    log = OutputLog()
    seed_generators(seed + CHECK_SEED)
    for _ in range(SESSIONS):
        play_session(pipeline, session_ticks(graph), log.append)
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
    FrameLoop(pipeline, Clock(), collect, depth=pipeline.depth).run(range(ticks), lambda row: None)
    pipeline.reset()
