"""What a loop is compared with: the same calls of each stage, and the same ticks of all of them, from the same S0.

Three sides play them: eager in the run's dtype, the float32 reference, and the prepared steps. S0 of a stage is what
eager in the run's dtype leaves after its warm calls; the reference begins with a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from profiling.components.component import CHECK_SEED, Component
from profiling.components.effects import Effects
from profiling.components.outputs import OutputLog, to_host
from profiling.components.reference import Reference
from profiling.components.trajectory import SECONDS, Played, learn, played, seed_generators
from profiling.realtime.graph import PIPELINE, Graph
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

#: Makes the pipeline of these components, called eagerly.
Assembled = Callable[[Mapping[str, Component]], StagedPipeline]


@dataclass(frozen=True)
class Start:
    """S0 of a stage after `warm_calls`, in host memory; what its calls change; and the calls of its trajectory."""

    values: Mapping[str, Any]
    warm_calls: int
    effects: Effects
    calls: int


def learn_stages(components: Mapping[str, Component]) -> tuple[dict[str, Played], dict[str, Start]]:
    """Play the trajectory of each stage eagerly, in the run's dtype; return it, and what the reference begins with.

    Raises:
        InputError: a module fails on its inputs.

    """
    eager, starts = {}, {}
    for name, component in components.items():
        eager[name] = learn(component)
        component.reset()
        kept = component.kept
        values = {
            path: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
            for path, value in kept.values().items()
        }
        starts[name] = Start(values, kept.warm_calls, kept.effects, eager[name].calls)
        component.refill(component.seed)
    return eager, starts


def play_reference(
    graph: Graph, components: Mapping[str, Component], starts: Mapping[str, Start], assembled: Assembled
) -> tuple[dict[str, Played], list[str]]:
    """Play the stages, and the pipeline, from the S0 of the run; `components` are those of the reference.

    Return the trajectories by stage, that of the whole under `pipeline`, and what state of the run they do not have.

    Raises:
        InputError: a module fails on its inputs, or an edge does not fit.

    """
    sides, missing = {}, []
    components = {name: replace(each, warm_calls=starts[name].warm_calls) for name, each in components.items()}
    for name, component in components.items():
        learn(component)
        component.kept.effects = starts[name].effects
        component.reset()
        missing += [f"{name}: {path}" for path in _load(component, starts[name])]
        try:
            sides[name] = played(component, component.call, starts[name].calls, reset=False, most_s=3 * SECONDS)
        except Exception as error:
            component.raise_explained(error)
        component.refill(component.seed)
    log = play_sessions(graph, components, assembled(components), starts=starts)
    return sides | {PIPELINE: Played(log)}, missing


def _load(component: Component, start: Start) -> list[str]:
    """Put the state of the run into a component of the reference; return the paths that it does not have."""
    return component.kept.load(start.values) if component.policy != "none" else []


def references(
    graph: Graph,
    components: Mapping[str, Component],
    eager: Mapping[str, Played],
    expected: Mapping[str, Played],
    assembled: Assembled,
) -> dict[str, Reference]:
    """Return what the stages are compared with, and the whole under `pipeline`; without a form, which is float32's."""
    found = {}
    for name, component in components.items():
        component.place.calls = min(eager[name].calls, expected[name].calls)
        repeat = played(component, component.call, component.place.calls, seed=1)
        found[name] = Reference(expected[name], eager[name], repeat=repeat, effects=component.kept.effects)
        component.refill(component.seed)
    pipeline, repeat = assembled(components), None
    log = play_sessions(graph, components, pipeline)
    if any(each.nondeterminism(components[name].dtype) is not None for name, each in found.items()):
        repeat = Played(play_sessions(graph, components, pipeline, seed=1))
    return found | {PIPELINE: Reference(expected[PIPELINE], Played(log), repeat=repeat)}


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
            _load(component, starts[name])
    pipeline.reset()
