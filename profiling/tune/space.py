"""The search space: steps, and the recipes that they form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from profiling.errors import InputError, check_number, did_you_mean
from profiling.results.record import AND, BASELINE
from profiling.run.job import LONGEST_NAME, check_names
from profiling.variants.steps import Step, are_alternatives, expression, in_order, misfit, recipe

#: The steps of a recipe; the empty set is eager PyTorch, the baseline.
Chosen = frozenset[str]


@dataclass(frozen=True)
class Space:
    """All recipes of the steps. Their order is that of transforms and of the steps in a recipe's name."""

    steps: Mapping[str, Step]
    max_rel_l2: float | None = None

    @classmethod
    def of(cls, steps: Mapping[str, Step], names: object, max_rel_l2: object) -> Space:
        """Return the space of the steps with these names, or of all that a search tries; transforms keep this order.

        Raises:
            InputError: no names, a name of no step, or `max_rel_l2` out of range.

        """
        if names is None:
            names = [name for name, step in steps.items() if step.rules.search]
        if not isinstance(names, list) or not names:
            raise InputError(f"steps={names} names no step to search. Write steps=[compile,cuda_graph], for example.")
        for name in names:
            if not isinstance(name, str) or name not in steps:
                raise InputError(f"steps: there is no step {name!r}.{did_you_mean(str(name), steps)}")
        check_names("step", names)
        if max_rel_l2 is not None:
            check_number("max_rel_l2", max_rel_l2, above=0)
        chosen = in_order({name: steps[name] for name in names})
        return cls(chosen, max_rel_l2)  # pyright: ignore[reportArgumentType] - a number, as checked

    def excluded(self) -> dict[str, str]:
        """Return why steps are left out before anything runs, by name."""
        reasons: dict[str, str] = {}
        for name, step in self.steps.items():
            if step.rules.tolerance is not None and self.max_rel_l2 is None:
                reasons[name] = "changes the result by design; max_rel_l2=0.03, for example, accepts such an error"
            elif step.rules.needs and not self.steps.keys() & set(step.rules.needs):
                needs = step.rules.needs
                near = did_you_mean(needs[0], [each for each in self.steps if each != name])
                reasons[name] = f"needs {' or '.join(needs)}, which is not among the steps{'.' * bool(near)}{near}"
        return reasons

    def idle(self, device: str) -> dict[str, str]:
        """Return why steps change nothing on `device` (`cuda:0`), by name."""
        kind = device.partition(":")[0]
        return {
            name: f"changes nothing on {kind}: the step is for {step.rules.device}"
            for name, step in self.steps.items()
            if step.rules.device not in (None, kind)
        }

    def only(self, names: Iterable[str]) -> Space:
        """Return the space with only these steps."""
        kept = set(names)
        return replace(self, steps={name: step for name, step in self.steps.items() if name in kept})

    def possible(self) -> Space:
        """Return the space without the steps that are left out of it."""
        return self.only(self.steps.keys() - self.excluded().keys())

    def shares(self, number: int) -> list[Space]:
        """Divide the space for searches side by side: of alternatives, such as compilers, each is in one share.

        All other steps are in each share. Where there are too few alternatives, there are fewer shares than `number`.
        """
        groups: dict[str, list[str]] = {}
        for name, step in self.steps.items():
            if step.rules.group is not None:
                groups.setdefault(step.rules.group, []).append(name)
        divisible = [names for names in groups.values() if len(names) > 1]
        if number == 1 or not divisible:
            return [self]
        longest = max(divisible, key=lambda names: sum(self.steps[name].rules.seconds for name in names))
        parts, shares = min(number, len(longest)), list[Space]()
        for part in range(parts):
            space = self.only({*self.steps} - {*longest} | {*longest[part::parts]}).possible()
            shares += space.shares(number // parts + (part < number % parts))
        return shares

    def name(self, chosen: Chosen) -> str:
        """Return the name of a recipe: its expression."""
        return expression(name for name in self.steps if name in chosen)

    def chosen(self, name: str) -> Chosen | None:
        """Return the steps of the recipe with this name; None if one is not in this space."""
        steps = frozenset() if name == BASELINE else frozenset(name.split(AND))
        return steps if steps <= self.steps.keys() else None

    def recipe(self, chosen: Chosen) -> dict[str, Any]:
        """Return the recipe as in the YAML of a variant; with an inexact step it may be as wrong as `max_rel_l2`."""
        made = recipe((name for name in self.steps if name in chosen), self.steps)
        return made if made["tolerance"] is None else {**made, "tolerance": self.max_rel_l2}

    def seconds(self, chosen: Chosen, measured: Mapping[Chosen, float], unmeasured: float = 1.0) -> float:
        """Return the expected seconds to prepare the steps of a recipe, beside loading the component.

        They are those in the rules of each step, scaled by what was `measured` for recipes with it, else with steps of
        its kind, else by the factor `unmeasured`.
        """
        return sum(self._scale(name, measured, unmeasured) * self.steps[name].rules.seconds for name in chosen)

    def _scale(self, name: str, measured: Mapping[Chosen, float], unmeasured: float) -> float:
        alike = {each for each, step in self.steps.items() if _preparing(step) == _preparing(self.steps[name])}
        for names in ({name}, alike):
            recipes = [each for each in measured if each & names]
            planned = sum(self.steps[step].rules.seconds for chosen in recipes for step in chosen)
            if planned:
                return sum(measured[each] for each in recipes) / planned
        return unmeasured

    def neighbours(self, chosen: Chosen) -> list[Chosen]:
        """Return the recipes with one more step, or with a step replaced by another of its group."""
        neighbours = dict.fromkeys(
            self._closed({each for each in chosen if not are_alternatives(self.steps[each], self.steps[name])} | {name})
            for name in self.steps
            if name not in chosen
        )
        return [each for each in neighbours if each and each != chosen and self._fits(each)]

    def without_each(self, chosen: Chosen) -> dict[str, Chosen]:
        """Return the recipes without one step and those that need it, by that step."""
        return {name: self._closed(chosen - {name}) for name in self.steps if name in chosen}

    def singles(self) -> dict[str, Chosen]:
        """Return the smallest recipe with each step: the step and the first that it needs."""
        return {name: frozenset(self._needed(name)) for name in self.steps}

    def together(self, without: Collection[str] = ()) -> Chosen:
        """Return the recipe with all exact transforms except those `without`, the first compiler and the first capture.

        Of the transforms of a group it has the first. It is empty where the steps do not fit together, or where there
        is neither a compiler nor a capture.
        """
        chosen = dict[str, str]()
        for name, step in self.steps.items():
            if step.kind != "option" and step.rules.tolerance is None and name not in without:
                chosen.setdefault((step.kind if step.kind != "transform" else step.rules.group) or name, name)
        closed = self._closed(chosen.values())
        return closed if {"compiler", "capture"} & chosen.keys() and self._fits(closed) else frozenset()

    def variants(self) -> dict[str, dict[str, Any]]:
        """Return the recipes, by name, to check before the search: a step that is refused there is written wrongly."""
        return {self.name(each): self.recipe(each) for each in self.singles().values()}

    def _needed(self, name: str) -> Iterator[str]:
        yield name
        needed = next((each for each in self.steps[name].rules.needs if each in self.steps), None)
        if needed is not None:
            yield from self._needed(needed)

    def _closed(self, chosen: Iterable[str]) -> Chosen:
        """Return the steps whose needs are met among them."""
        kept = frozenset(chosen)
        while lacking := {
            name for name in kept if self.steps[name].rules.needs and not kept & set(self.steps[name].rules.needs)
        }:
            kept -= lacking
        return kept

    def _fits(self, chosen: Chosen) -> bool:
        names = [name for name in self.steps if name in chosen]
        return len(self.name(chosen)) <= LONGEST_NAME and not misfit(names, self.steps)


def _preparing(step: Step) -> str:
    """Return what the seconds of preparing a step are alike with: an option belongs to its compiler."""
    return "compiler" if step.kind == "option" else step.kind
