"""The steps of a loop: every part prepared by its variant, and held against its reference."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from models.playback import WholeFrame
from profiling.components.build import Blueprint, build
from profiling.components.component import Component
from profiling.components.reference import CHECK_SEED, Outputs, Reference, first_call, outputs_of, strict_float32
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError
from profiling.metrics.metric import Metric, Subject
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import PICTURE, SOUND, WHOLE, WORLD
from profiling.results.record import Status
from profiling.trace.counters import snapshot
from profiling.trace.profiler import synchronize
from profiling.variants.compile import Compile
from profiling.variants.variant import Step, Variant

ROLES = (WORLD, PICTURE, SOUND)


@dataclass(frozen=True)
class Parts:
    """What is prepared and played: the three networks, or the whole as one; and the reference of each."""

    components: Mapping[str, Component]
    references: Mapping[str, Reference]
    parameters: int
    weights: str
    hint: str | None


def blueprints_of(specs: Mapping[str, ComponentSpec], settings: Settings) -> dict[str, Blueprint]:
    """Build the three networks in float32.

    Raises:
        InputError: one of them cannot be built, or is not made for a loop.

    """
    found = {role: build(specs[role], settings, torch.float32) for role in ROLES}
    for role in (PICTURE, SOUND):
        inputs = found[role].component(torch.float32, settings.seed).inputs
        if len(inputs) != 1:
            raise InputError(
                f"stages.{role}={specs[role].name}: it takes {', '.join(inputs)}, and the loop hands it one latent. "
                "Name a component whose forward has one argument."
            )
    world = found[WORLD].component(torch.float32, settings.seed).inputs
    if not {"mouse", "btn"} <= set(world) or world["mouse"].shape[0] != 1:
        raise InputError(
            f"stages.world={specs[WORLD].name}: the loop feeds `mouse` and `btn` of one player (batch 1) and draws "
            "noise for all other inputs. component.world_model_frame shows how."
        )
    return found


def expected_of(blueprints: Mapping[str, Blueprint], settings: Settings, *, whole: bool) -> dict[str, Outputs]:
    """Return what the float32 modules make of inputs that no variant is prepared with.

    Raises:
        InputError: a module fails on its inputs, or does not take what the world model makes.

    """
    found = _components(blueprints, torch.float32, settings.seed, whole=whole)
    with torch.inference_mode(), strict_float32():
        expected = {name: first_call(component, settings.seed + CHECK_SEED) for name, component in found.items()}
    if not whole:  # as one they have just handed over
        _check_hand_over(blueprints, found, list(expected[WORLD].values()))
    return expected


def _check_hand_over(
    blueprints: Mapping[str, Blueprint], components: Mapping[str, Component], made: list[torch.Tensor]
) -> None:
    """Check that each decoder takes what the world model `made`: copying would stretch some shapes silently."""
    shapes = [list(tensor.shape) for tensor in made]
    if len(made) != 2:
        raise InputError(
            f"stages.world={blueprints[WORLD].spec.name}: it makes {shapes}, and not a latent of each kind."
        )
    for role, shape in zip((PICTURE, SOUND), shapes, strict=True):
        (latent,) = components[role].inputs.values()
        if list(latent.shape) != shape:
            raise InputError(
                f"stages.{role}={blueprints[role].spec.name}: it takes {list(latent.shape)}, and the world model hands "
                f"it {shape}. Name a component that is made for these latents."
            )


def parts_of(
    blueprints: Mapping[str, Blueprint],
    expected: Mapping[str, Outputs],
    settings: Settings,
    *,
    whole: bool,
    priorities: Mapping[str, int],
) -> Parts:
    """Cast the networks to the run's dtype and return them with their references, and with stream `priorities`."""
    dtype = getattr(torch, settings.dtype)
    for blueprint in blueprints.values():
        blueprint.cast(dtype)
    made = _components(blueprints, dtype, settings.seed, whole=whole)
    components = {name: replace(part, priority=priorities.get(name, 0)) for name, part in made.items()}
    eager = {name: outputs_of(component, settings.seed + CHECK_SEED) for name, component in components.items()}
    sources = {role: blueprint.weights for role, blueprint in blueprints.items()}
    same = len(set(sources.values())) == 1
    hints = [blueprint.hint for blueprint in blueprints.values() if blueprint.hint]
    return Parts(
        components,
        {name: Reference(expected[name], eager[name]) for name in components},
        sum(component.parameters for component in components.values()),
        sources[WORLD] if same else ", ".join(f"{role}: {source}" for role, source in sources.items()),
        "; ".join(dict.fromkeys(hints)) or None,
    )


def _components(
    blueprints: Mapping[str, Blueprint], dtype: torch.dtype, seed: int, *, whole: bool
) -> dict[str, Component]:
    found = {role: replace(blueprint.component(dtype, seed), name=role) for role, blueprint in blueprints.items()}
    if not whole:
        return found
    module = WholeFrame(*(cast(torch.nn.Module, found[role].module) for role in ROLES)).eval()
    return {WHOLE: replace(found[WORLD], name=WHOLE, module=module)}


@dataclass(frozen=True, kw_only=True)
class Mixed(Variant):
    """A variant by the name of the component that it prepares.

    Raises:
        InputError: one of them is no variant.

    """

    stages: Mapping[str, Variant]

    def __post_init__(self) -> None:
        """Refuse what would fail at its stage only."""
        for stage, variant in self.stages.items():
            if not isinstance(variant, Variant):
                raise InputError(f"stages.{stage} is a {type(variant).__name__}, not a variant. Name a variant's YAML.")

    def unavailable(self, device: torch.device) -> str | None:
        """Return what any of them lacks."""
        reasons = (variant.unavailable(device) for variant in self.stages.values())
        return next((reason for reason in reasons if reason), None)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Prepare `component` by its own variant.

        Raises:
            InputError: there is none for it.

        """
        return stage_variant(self, component.name)(component, folder)


def stage_variant(variant: Variant, stage: str) -> Variant:
    """Return the variant that prepares a stage: `variant` itself unless it is a mixture.

    Raises:
        InputError: a mixture without that stage.

    """
    if not isinstance(variant, Mixed):
        return variant
    if stage not in variant.stages:
        raise InputError(f"no variant is given for the stage {stage}. There are: {', '.join(variant.stages)}")
    return variant.stages[stage]


def refuse_shared_pools(variant: Variant, parts: Iterable[str], options: LoopOptions) -> None:
    """Refuse what would overwrite its own frames: inductor's graphs of all stages share one pool of memory.

    Raises:
        InputError: stages that overlap, one of which is compiled in such a mode.

    """
    for name in parts:
        chosen = stage_variant(variant, name)
        if options.schedule == "overlap" and isinstance(chosen, Compile) and chosen.has_cuda_graphs():
            raise InputError(
                f"loop.schedule=overlap: mode={chosen.mode} keeps the CUDA graphs of all stages in one pool, and on "
                "several streams they would overwrite each other. Use compile_cuda_graph, or loop.schedule=sequential."
            )


def prepare(
    variant: Variant, parts: Parts, folder: Path, stack: ExitStack
) -> tuple[dict[str, Step], dict[str, Any], frozenset[str]]:
    """Prepare every part.

    Returns the steps, which are closed when `stack` is, the record's section `prepare`, and the parts that a compiler
    made other operators of.
    """
    steps, seconds, fused = {}, {}, set()
    before, started = snapshot(), time.perf_counter()
    for name, component in parts.components.items():
        begun, untouched = time.perf_counter(), snapshot()
        steps[name] = stage_variant(variant, name)(component, folder)
        stack.callback(steps[name].close)
        synchronize(component.device)
        seconds[name] = time.perf_counter() - begun
        if snapshot().since(untouched).graphs > 0:
            fused.add(name)
    total = time.perf_counter() - started
    for name, component in parts.components.items():
        steps[name].run()
        synchronize(component.device)
    first = time.perf_counter() - started
    compiled = asdict(snapshot().since(before))
    return steps, {"seconds": total, "first_call_s": first, "stages": seconds, **compiled}, frozenset(fused)


def check(
    metrics: Iterable[Metric], variant: Variant, parts: Parts, steps: Mapping[str, Step], seed: int
) -> tuple[dict[str, Any] | None, list[tuple[Status, str]]]:
    """Hold every part against its reference; return the section `parity`, the worst and each, and what is wrong."""
    found: dict[str, Mapping[str, Any]] = {}
    problems: list[tuple[Status, str]] = []
    for metric in metrics:
        for name, component in parts.components.items():
            tolerance = stage_variant(variant, name).tolerance
            measured = metric.measure(Subject(component, steps[name], parts.references[name], tolerance, seed))
            found[name] = measured.sections["parity"]
            if measured.problem is not None:
                status, reason = measured.problem
                problems.append((status, f"{name}: {reason}"))
    if not found:
        return None, problems
    worst = max(found.values(), key=lambda section: (not section["passed"], section.get("rel_l2", 0.0)))
    return {**worst, "stages": found}, problems
