"""Prepares the stages of a loop before the first frame: their variants, components and reference outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from profiling.components.build import Blueprint, build
from profiling.components.casting import Form, parameter_dtypes
from profiling.components.component import Component, Place
from profiling.components.reference import Reference, eager_reference
from profiling.components.spec import ComponentSpec, Settings
from profiling.components.state import State
from profiling.components.trajectory import Played, played
from profiling.errors import InputError
from profiling.metrics.metric import Subject
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import PIPELINE, Graph
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import StagedPipeline
from profiling.realtime.play import Clock, FrameLoop
from profiling.variants.quantize import Quantize
from profiling.variants.recipe import Recipe
from profiling.variants.variant import Step, Variant

#: How references are played: in turn, and left on the device.
EAGER = LoopOptions(deliver="device")
#: Ticks of a session that is compared with its reference. A stage that runs less often than every `FAR` ticks is
#: compared in its first run only.
CHECK_TICKS, FAR = 4, 16
#: Sessions of the whole pipeline that are compared: one that leaves a wrong state behind is wrong in the second.
SESSIONS = 2


@dataclass(frozen=True, kw_only=True)
class Mixed(Variant):
    """A variant for each stage, by the stage's name."""

    stages: Mapping[str, Variant]

    def unavailable(self, device: torch.device) -> str | None:
        """Return why one of the variants cannot run on `device`, or None."""
        reasons = (variant.unavailable(device) for variant in self.stages.values())
        return next((reason for reason in reasons if reason), None)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Prepare `component`, which is named like its stage, by the variant of that stage."""
        return self.stages[component.name](component, folder)


@dataclass(frozen=True, kw_only=True)
class StageRecipe(Recipe):
    """A recipe that prepares all stages of a loop; a transform may change some of them only."""

    needs_changes: ClassVar[bool] = False


def for_stages(variant: Variant) -> Variant:
    """Return the variant as it prepares all stages of a loop."""
    return StageRecipe(**vars(variant)) if type(variant) is Recipe else variant


def stage_variant(variant: Variant, stage: str) -> Variant:
    """Return the variant that prepares a stage: `variant` itself unless it is mixed."""
    return variant.stages[stage] if isinstance(variant, Mixed) else variant


def check_variant(variant: Variant, options: LoopOptions) -> None:
    """Check that a variant, or those of a mixed one, fit a loop.

    Raises:
        InputError: overlapping stages are compiled with inductor's CUDA graphs, which share one memory pool and would
            overwrite each other's outputs; or layers would be measured one by one, for which a loop has no table.

    """
    for chosen in variant.stages.values() if isinstance(variant, Mixed) else (variant,):
        if not isinstance(chosen, Recipe):
            continue
        own_graphs = chosen.compiler.own_graphs if chosen.compiler is not None else None
        if options.schedule == "overlap" and own_graphs is not None:
            raise InputError(
                f"loop.schedule=overlap: {own_graphs} keeps the CUDA graphs of all stages in one pool, and on "
                "several streams they would overwrite each other. Use compile+cuda_graph, or loop.schedule=sequential."
            )
        for number, transform in enumerate(chosen.transforms):
            if isinstance(transform, Quantize) and transform.sensitivity:
                raise InputError(
                    f"transforms.{number}.sensitivity=true measures the layers of one network, and a loop has no table "
                    "for them. Leave it out, and use it with python -m profiling.generic_forward."
                )


def build_stages(specs: Mapping[str, ComponentSpec], settings: Settings) -> dict[str, Blueprint]:
    """Build the networks of the stages.

    Raises:
        InputError: one of them cannot be built.

    """
    return {name: build(spec, settings) for name, spec in specs.items()}


@dataclass(frozen=True)
class Prepared:
    """What a loop is played and checked with, by stage.

    `references` are the expected outputs; that of the whole pipeline is under `pipeline`.
    """

    components: Mapping[str, Component]
    references: Mapping[str, Reference]
    parameters: int
    parameter_dtypes: Mapping[str, int]
    weights: str
    weights_hints: Mapping[str, str]
    notes: tuple[str, ...]


def session(
    graph: Graph, components: Mapping[str, Component], pipeline: StagedPipeline
) -> dict[str, Mapping[str, Tensor]]:
    """Play the first ticks of a new session; return copies in host memory of what each delivers, by tick and name.

    Raises:
        InputError: an output does not fit the input that it is handed to.

    """
    delivered: dict[str, Mapping[str, Tensor]] = {}

    def copied(tick: int, outputs: Mapping[str, Tensor]) -> None:
        delivered[f"tick {tick}"] = {name: tensor.to("cpu", copy=True) for name, tensor in outputs.items()}

    play_session(components, pipeline, session_ticks(graph), copied)
    return delivered


def play_session(
    components: Mapping[str, Component],
    pipeline: StagedPipeline,
    ticks: int,
    on_delivery: Callable[[int, Mapping[str, Tensor]], None],
) -> None:
    """Play the first ticks of a new session; call `on_delivery` with what each tick delivers, by name.

    Raises:
        InputError: an output does not fit the input that it is handed to.

    """

    def collect(tick: int, _frame_ms: float) -> Mapping[str, float]:
        on_delivery(tick, pipeline.delivered(tick))
        return {}

    begin_session(components, pipeline)
    FrameLoop(pipeline, Clock(), collect, depth=pipeline.depth).run(range(ticks), lambda row: None)
    begin_session(components, pipeline)


def begin_session(components: Mapping[str, Component], pipeline: StagedPipeline) -> None:
    """Restore the state of every stage, and let sources and noise start again."""
    for component in components.values():
        component.reset()
    pipeline.reset()


def checked_pipeline(
    graph: Graph, components: Mapping[str, Component], pipeline: StagedPipeline
) -> tuple[Component, Step]:
    """Return the whole pipeline as a component without inputs, and its step, which plays a session."""
    first = next(iter(components.values()))
    empty = replace(first, name=PIPELINE, module=nn.Module(), inputs={}, make_inputs=lambda generator: {})
    empty = replace(empty, extra_inputs=(), warmup_inputs=(), advances={}, warm_calls=0, place=Place(calls=SESSIONS))
    return replace(empty, kind=None, policy="none", kept=State(empty.module, {}, "none")), Step(
        run=lambda: session(graph, components, pipeline)
    )


def session_ticks(graph: Graph) -> int:
    """Return the ticks of a session that is checked: a few, and where it is not far, a second run of every stage."""
    return max([CHECK_TICKS, *(stage.every + 1 for stage in graph.stages.values() if stage.every < FAR)])


def stage_components(blueprints: Mapping[str, Blueprint], seed: int) -> dict[str, Component]:
    """Return the component of each stage, which has the stage's name; the blueprints must have been cast."""
    return {name: replace(blueprint.component(seed), name=name) for name, blueprint in blueprints.items()}


def eager_outputs(
    graph: Graph, blueprints: Mapping[str, Blueprint], settings: Settings, *, ticks: int
) -> tuple[dict[str, Component], dict[str, Reference]]:
    """Return the components of a loop, and what its eager stages and the whole pipeline return, by stage.

    The blueprints must have been cast. Stages get inputs that no variant is prepared with. `ticks` is the length of the
    sources that are made. Each trajectory is its own reference here.

    Raises:
        InputError: a module fails on its inputs, or an edge does not fit.

    """
    components = stage_components(blueprints, settings.seed)
    eager: dict[str, Reference] = {}
    for name, component in components.items():
        eager[name] = eager_reference(component)
        component.refill(settings.seed)
    pipeline = assemble(
        graph,
        components,
        {name: component.call for name, component in components.items()},
        EAGER,
        ticks=ticks,
        seed=settings.seed,
        narrow=getattr(torch, settings.dtype),
    )
    component, step = checked_pipeline(graph, components, pipeline)
    sessions, repeat = played(component, step.run, SESSIONS), None
    if any(each.nondeterminism(component.dtype) is not None for each in eager.values()):
        repeat = played(component, step.run, SESSIONS, seed=1)
    eager[PIPELINE] = Reference(sessions, sessions, "run", repeat)
    return components, eager


def load_stages(
    graph: Graph,
    blueprints: Mapping[str, Blueprint],
    expected: Mapping[str, Played],
    form: Form,
    settings: Settings,
    options: LoopOptions,
    *,
    ticks: int,
) -> Prepared:
    """Cast the networks for the run, and return what the loop is played and checked with.

    `expected` are the outputs of the reference, which has the form `form`; `ticks` is the length of the sources that
    are made.
    """
    blueprints = {name: blueprint.cast("run") for name, blueprint in blueprints.items()}
    dtypes: Counter[str] = Counter()
    for blueprint in blueprints.values():
        dtypes.update(parameter_dtypes(blueprint.module))
    components, eager = eager_outputs(graph, blueprints, settings, ticks=ticks)
    if options.schedule == "overlap":
        components = {
            name: replace(component, priority=graph.stages[name].priority) for name, component in components.items()
        }
    sources = {name: blueprint.weights for name, blueprint in blueprints.items()}
    same = len(set(sources.values())) == 1
    return Prepared(
        components,
        {name: replace(each, outputs=expected[name], form=form) for name, each in eager.items()},
        sum(dtypes.values()),
        dict(dtypes),
        next(iter(sources.values())) if same else ", ".join(f"{name}: {source}" for name, source in sources.items()),
        {name: blueprint.hint for name, blueprint in blueprints.items() if blueprint.hint},
        tuple(f"{name}: {note}" for name, blueprint in blueprints.items() for note in blueprint.notes),
    )


def pipeline_subject(
    graph: Graph, prepared: Prepared, pipeline: StagedPipeline, tolerance: float | None, seed: int
) -> Subject:
    """Return the whole pipeline as the subject of a metric: its step plays the first ticks of a new session.

    `tolerance` is the largest of its stages; None: none has one.
    """
    component, step = checked_pipeline(graph, prepared.components, pipeline)
    return Subject(component, step, prepared.references[PIPELINE], tolerance, seed, of_several=True)
