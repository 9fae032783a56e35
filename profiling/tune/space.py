"""The search space: steps, each from a YAML, and the recipes that they form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from profiling.components.spec import decode
from profiling.errors import InputError, check_number, did_you_mean
from profiling.report.tune import AND
from profiling.results.record import BASELINE
from profiling.run.job import LONGEST_NAME, check_names

#: The steps of a recipe; the empty set is eager PyTorch, the baseline.
Chosen = frozenset[str]


@dataclass(frozen=True)
class StepSpec:
    """What a step adds to the transforms, the compiler and the capture of a recipe.

    Attributes:
        transforms: appended to those of the steps before it.
        compiler: merged key by key with those of the other steps, so a step may set a single option.
        capture: likewise.
        group: a recipe has at most one step of a group; the others are alternatives to it.
        needs: the recipe must have at least one of these steps: for an option of a compiler, that compiler.
        device: `cuda` or `cpu`: on others it changes nothing, and is skipped; None: it may change something on each.
        inexact: it changes the result by design; recipes with it are accepted up to `max_rel_l2`.
        seconds: guess of the seconds that it adds to preparing a large network; scaled by measured ones.

    """

    transforms: tuple[Mapping[str, Any], ...] = ()
    compiler: Mapping[str, Any] = field(default_factory=dict)
    capture: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    needs: tuple[str, ...] = ()
    device: str | None = None
    inexact: bool = False
    seconds: float = 5.0

    @property
    def kind(self) -> str:
        """What it adds: `compiler` (also options of one), else `capture`, else `transforms`."""
        return "compiler" if self.compiler else "capture" if self.capture else "transforms"


@dataclass(frozen=True)
class Space:
    """All recipes of the steps. Their order is that of transforms and of the steps in a recipe's name."""

    steps: Mapping[str, StepSpec]
    max_rel_l2: float | None = None
    apart: frozenset[Chosen] = frozenset()  # pairs whose steps refuse each other

    @classmethod
    def read(cls, nodes: object, max_rel_l2: object) -> Space:
        """Read the config group `step`.

        Raises:
            InputError: no steps, an empty step, steps that need each other, or `max_rel_l2` out of range.

        """
        if not isinstance(nodes, Mapping) or not nodes:
            raise InputError("step=[] leaves nothing to search. Name at least one step; --help lists them.")
        check_names("step", nodes)
        steps = {str(name): decode(StepSpec, node, f"step.{name}") for name, node in nodes.items()}
        for name, step in steps.items():
            if AND in name or name == BASELINE:
                raise InputError(f"step {name}: a name must not contain {AND} or be {BASELINE}. Rename the step.")
            if not (step.transforms or step.compiler or step.capture):
                raise InputError(f"step.{name} changes nothing. Give it transforms, a compiler or a capture.")
            check_number(f"step.{name}.seconds", step.seconds, least=0)
            if step.device not in (None, "cpu", "cuda"):
                raise InputError(f"step.{name}.device={step.device}: must be cuda, cpu or null.")
            needed = [name]
            while (next_ := next((each for each in steps[needed[-1]].needs if each in steps), None)) is not None:
                needed.append(next_)
                if next_ in needed[:-1]:
                    raise InputError(f"step.{name}.needs: {' needs '.join(needed)}. Take one of these needs out.")
        if max_rel_l2 is not None:
            check_number("max_rel_l2", max_rel_l2, above=0)
        return cls(steps, max_rel_l2)  # pyright: ignore[reportArgumentType] - a number, as checked

    def excluded(self) -> dict[str, str]:
        """Return why steps are left out before anything runs, by name."""
        reasons: dict[str, str] = {}
        for name, step in self.steps.items():
            if step.inexact and self.max_rel_l2 is None:
                reasons[name] = "changes the result by design; max_rel_l2=0.03, for example, accepts such an error"
            elif step.needs and not self.steps.keys() & set(step.needs):
                near = did_you_mean(step.needs[0], [each for each in self.steps if each != name])
                reasons[name] = f"needs {' or '.join(step.needs)}, which is not among the steps{'.' * bool(near)}{near}"
        return reasons

    def idle(self, device: str) -> dict[str, str]:
        """Return why steps change nothing on `device` (`cuda:0`), by name."""
        kind = device.partition(":")[0]
        return {
            name: f"changes nothing on {kind}: the step is for {step.device}"
            for name, step in self.steps.items()
            if step.device not in (None, kind)
        }

    def only(self, names: Iterable[str]) -> Space:
        """Return the space with only these steps."""
        kept = set(names)
        return replace(self, steps={name: step for name, step in self.steps.items() if name in kept})

    def name(self, chosen: Chosen) -> str:
        """Return the name of a recipe: its steps in order, joined by `+`."""
        return AND.join(name for name in self.steps if name in chosen) or BASELINE

    def chosen(self, name: str) -> Chosen | None:
        """Return the steps of the recipe with this name; None if one is not in this space."""
        steps = frozenset() if name == BASELINE else frozenset(name.split(AND))
        return steps if steps <= self.steps.keys() else None

    def recipe(self, chosen: Chosen) -> dict[str, Any]:
        """Return the recipe as in the YAML of a variant."""
        steps = [step for name, step in self.steps.items() if name in chosen]
        inexact = any(step.inexact for step in steps)
        return {
            "transforms": [dict(each) for step in steps for each in step.transforms],
            "compiler": _merged(step.compiler for step in steps) or None,
            "capture": _merged(step.capture for step in steps) or None,
            "tolerance": self.max_rel_l2 if inexact else None,
        }

    def seconds(self, chosen: Chosen, measured: Mapping[Chosen, float], unmeasured: float = 1.0) -> float:
        """Return the expected seconds to prepare the steps of a recipe, beside loading the component.

        They are those in the YAML of each step, scaled by what was `measured` for recipes with it, else with steps of
        its kind, else by the factor `unmeasured`.
        """
        return sum(self._scale(name, measured, unmeasured) * self.steps[name].seconds for name in chosen)

    def _scale(self, name: str, measured: Mapping[Chosen, float], unmeasured: float) -> float:
        alike = {each for each, step in self.steps.items() if step.kind == self.steps[name].kind}
        for names in ({name}, alike):
            recipes = [each for each in measured if each & names]
            planned = sum(self.steps[step].seconds for recipe in recipes for step in recipe)
            if planned:
                return sum(measured[each] for each in recipes) / planned
        return unmeasured

    def neighbours(self, chosen: Chosen) -> list[Chosen]:
        """Return the recipes with one more step, or with a step replaced by another of its group."""
        neighbours = dict.fromkeys(
            self._closed({each for each in chosen if not self._alternatives(each, name)} | {name})
            for name in self.steps
            if name not in chosen
        )
        return [each for each in neighbours if each and each != chosen and self._fits(each)]

    def without_each(self, chosen: Chosen) -> dict[str, Chosen]:
        """Return the recipes without one step and those that need it, by that step."""
        return {name: self._closed(chosen - {name}) for name in self.steps if name in chosen}

    def singles(self) -> dict[str, Chosen]:
        """Return the smallest recipe with each step: the step and the first that it needs."""
        singles = {}
        for name, step in self.steps.items():
            needed = next((each for each in step.needs if each in self.steps), None)
            singles[name] = frozenset({name} if needed is None else {name, *self._needed(needed)})
        return singles

    def pairs(self) -> dict[Chosen, Chosen]:
        """Return the smallest recipe for each pair of steps that may be combined."""
        singles = self.singles()
        pairs = {frozenset(pair): singles[pair[0]] | singles[pair[1]] for pair in combinations(self.steps, 2)}
        return {pair: both for pair, both in pairs.items() if self._fits(both) and len(both) > 1}

    def variants(self) -> tuple[dict[str, dict[str, Any]], frozenset[str]]:
        """Return (recipes by name to check before the search, the names of those that may be refused).

        A step that is refused alone has an error in its YAML. Two steps that are refused together are never
        combined.
        """
        singles = {self.name(each): self.recipe(each) for each in self.singles().values()}
        pairs = {self.name(each): self.recipe(each) for each in self.pairs().values()}
        return {**pairs, **singles}, frozenset(pairs.keys() - singles.keys())

    def _needed(self, name: str) -> Iterator[str]:
        yield name
        needed = next((each for each in self.steps[name].needs if each in self.steps), None)
        if needed is not None:
            yield from self._needed(needed)

    def _alternatives(self, one: str, other: str) -> bool:
        group = self.steps[one].group
        return group is not None and group == self.steps[other].group

    def _closed(self, chosen: Iterable[str]) -> Chosen:
        """Return the steps whose needs are met among them."""
        kept = frozenset(chosen)
        while lacking := {name for name in kept if self.steps[name].needs and not kept & set(self.steps[name].needs)}:
            kept -= lacking
        return kept

    def _fits(self, chosen: Chosen) -> bool:
        pairs = [frozenset(pair) for pair in combinations(sorted(chosen), 2)]
        return len(self.name(chosen)) <= LONGEST_NAME and not any(
            pair in self.apart or self._alternatives(*pair) for pair in pairs
        )


def _merged(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mappings merged into one, at each depth; later values replace earlier ones."""
    merged: dict[str, Any] = {}
    for node in nodes:
        for key, value in node.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = _merged([merged[key], value]) if both else value
    return merged
