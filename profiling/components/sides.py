"""The sides of a comparison: modules as the run calls them, and their references, which begin with the same S0.

S0 of a module is what eager in the run's dtype leaves after its warm calls. Modules are built once for each side, since
a module may keep tensors of its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from profiling.components.build import Blueprint
from profiling.components.component import Component
from profiling.components.effects import Effects
from profiling.components.outputs import OutputLog
from profiling.components.reference import Reference, compute_reference, free_memory, has_room_for_copy
from profiling.components.trajectory import SECONDS, Played, learn, played
from profiling.components.trees import map_tensors


@dataclass(frozen=True)
class Start:
    """S0 of a component after `warm_calls`, in host memory; what its calls change; and the calls of its trajectory."""

    values: Mapping[str, Any]
    warm_calls: int
    effects: Effects
    calls: int

    @staticmethod
    def of(component: Component, calls: int) -> Start:
        """Put S0 of a component back, whose effects are known, and return a copy of it."""
        component.reset()
        values = map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), component.kept.values())
        return Start(values, component.kept.warm_calls, component.kept.effects, calls)

    def load(self, component: Component) -> list[str]:
        """Make this the S0 of a component of the reference; return the paths of what it does not have."""
        return component.kept.load(self.values) if component.policy != "none" else []


#: Plays several components together and returns what they deliver. Components of the reference begin with `starts`.
#: The number is added to the seed of the random number generators.
Together = Callable[[Mapping[str, Component], Mapping[str, Start] | None, int], OutputLog]


@dataclass(frozen=True)
class Sides:
    """The components to measure, by name, and the reference of each; `whole` is that of all stages as one pipeline."""

    components: Mapping[str, Component]
    references: Mapping[str, Reference] = field(default_factory=dict)
    whole: Reference | None = None
    notes: tuple[str, ...] = ()


def play_sides(
    load: Callable[[], Mapping[str, Blueprint]],
    made: Callable[[Mapping[str, Blueprint]], Mapping[str, Component]],
    device: torch.device,
    *,
    phase: Callable[[str], AbstractContextManager[object]] = nullcontext,
    on_built: Callable[[], object] = lambda: None,
    together: Together | None = None,
) -> Sides:
    """Build the modules by `load`, and play the trajectories that they are compared with.

    `made` makes components of modules that were cast. They are built twice, and a third time where the reference has no
    room beside those of the run: nothing else may hold these. `on_built` is called when those of the run are built.

    Raises:
        InputError: a module cannot be built or fails on its inputs.

    """

    def learned() -> tuple[Mapping[str, Component], dict[str, Played]]:
        with torch.inference_mode(False):
            components = made({name: blueprint.cast("run") for name, blueprint in load().items()})
        on_built()
        with phase("eager"), torch.inference_mode():
            return components, {name: learn(component) for name, component in components.items()}

    def expected_of(blueprints: Mapping[str, Blueprint]) -> tuple[dict[str, Played], OutputLog | None, list[str]]:
        with phase("reference"):
            return _play_reference(made(blueprints), starts, together)

    components, eager = learned()
    with torch.inference_mode():
        starts = {name: Start.of(component, eager[name].calls) for name, component in components.items()}
    if not has_room_for_copy(nn.ModuleList(each.module for each in components.values()), device):
        components = {}
        free_memory()
    computed = compute_reference(load, expected_of)
    if not components:
        components, eager = learned()
    expected, expected_together, missing = computed.value
    references, whole = dict[str, Reference](), None
    with phase("eager"), torch.inference_mode():
        for name, component in components.items():
            component.place.calls = min(eager[name].calls, expected[name].calls)
            repeat = played(component, component.call, component.place.calls, seed=1)
            references[name] = Reference(expected[name], eager[name], computed.form, repeat, component.kept.effects)
            component.refill(component.seed)
        if together is not None and expected_together is not None:
            log, repeat = Played(together(components, None, 0)), None
            if any(each.nondeterminism(components[name].dtype) is not None for name, each in references.items()):
                repeat = Played(together(components, None, 1))
            whole = Reference(Played(expected_together), log, computed.form, repeat)
    notes = []
    if computed.reason is not None:
        name, reference = next(iter(references.items()))
        notes.append(f"parity against {reference.name(components[name].dtype)}: {computed.reason}")
    if missing:
        notes.append(f"the reference has no state {', '.join(missing[:3])}, and began with its own")
    return Sides(components, references, whole, tuple(notes))


def _play_reference(
    components: Mapping[str, Component], starts: Mapping[str, Start], together: Together | None
) -> tuple[dict[str, Played], OutputLog | None, list[str]]:
    """Play components of the reference from the S0 of the run, each by itself and then all of them together.

    Return the trajectories, what was delivered, and what state of the run the reference does not have.
    """
    components = {name: replace(each, warm_calls=starts[name].warm_calls) for name, each in components.items()}
    sides, missing = dict[str, Played](), list[str]()
    for name, component in components.items():
        start = starts[name]
        if together is not None:  # what its calls change is put back before each session
            learn(component)
        component.reset()
        component.kept.effects = start.effects
        missing += [f"{name}: {path}" if len(components) > 1 else path for path in start.load(component)]
        try:
            sides[name] = played(component, component.call, start.calls, reset=False, most_s=3 * SECONDS)
        except Exception as error:
            component.raise_explained(error)
        component.refill(component.seed)
    return sides, None if together is None else together(components, starts, 0), missing
