"""Steps, and the expressions that combine them: `int8_weights+compile+cuda_graph` is a recipe of three steps.

A step is an entry of a YAML in `conf/step/`: a transform, a compiler, an option of a compiler, or a capture. The name
of a recipe is its expression, with the steps in the order in which they are applied; that of no steps is `baseline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, get_args

from profiling.components.spec import decode
from profiling.errors import InputError, check_number, did_you_mean
from profiling.results.record import AND, BASELINE

Kind = Literal["transform", "compiler", "option", "capture"]
_ORDER: tuple[Kind, ...] = get_args(Kind)
#: The key of a step that has its rules; the other keys are its `_target_` and options.
RULES = "rules"


@dataclass(frozen=True)
class Rules:
    """With what a step can be combined, and what a search knows of it.

    Attributes:
        kind: what it adds to a recipe; null: a transform, or without a `_target_` an option.
        group: a recipe has at most one step of a group; the others are alternatives to it.
        needs: the recipe must have one of these steps: an option of a compiler needs that compiler.
        device: `cuda` or `cpu`: a search skips it on others, where it changes nothing; null: it may change something.
        tolerance: relative L2 error that is allowed, for a step that is inexact by design.
        seconds: guess of the seconds that it adds to preparing a large network; scaled by measured ones.
        search: whether a search tries it where `steps=[NAME,...]` does not say which.

    """

    kind: Kind | None = None
    group: str | None = None
    needs: tuple[str, ...] = ()
    device: Literal["cuda", "cpu"] | None = None
    tolerance: float | None = None
    seconds: float = 5.0
    search: bool = True


@dataclass(frozen=True)
class Step:
    """A step: its `_target_` and options (of an option: what it sets of the compiler), its kind and its rules."""

    options: Mapping[str, Any]
    kind: Kind
    rules: Rules = field(default_factory=Rules)


def read_steps(nodes: object) -> dict[str, Step]:
    """Read the config group `step`: steps by name, in the order of their kinds.

    Raises:
        InputError: a step that changes nothing, has a wrong rule or a name that no expression can hold, or steps that
            need each other.

    """
    if not isinstance(nodes, Mapping):
        raise InputError(f"step={nodes!r} must be a mapping, with a key for each step.")
    read = {str(name): _read(str(name), node) for name, node in nodes.items()}
    steps = in_order(read)
    for name in steps:
        needed = [name]
        while (next_ := next((each for each in steps[needed[-1]].rules.needs if each in steps), None)) is not None:
            needed.append(next_)
            if next_ in needed[:-1]:
                raise InputError(f"step.{name}.rules.needs: {' needs '.join(needed)}. Take one of these needs out.")
    return steps


def in_order(steps: Mapping[str, Step]) -> dict[str, Step]:
    """Return the steps in the order of their kinds; those of one kind keep theirs."""
    return dict(sorted(steps.items(), key=lambda item: _ORDER.index(item[1].kind)))


def _read(name: str, node: object) -> Step:
    if AND in name or name == BASELINE:
        raise InputError(f"step {name}: a name must not contain {AND} or be {BASELINE}. Rename the step.")
    if not isinstance(node, Mapping) or not set(node) - {RULES}:
        raise InputError(f"step.{name} changes nothing. Give it a _target_, or what it sets of a compiler.")
    where = f"step.{name}.{RULES}"
    rules = decode(Rules, node.get(RULES) or {}, where)
    check_number(f"{where}.seconds", rules.seconds, least=0)
    if rules.tolerance is not None:
        check_number(f"{where}.tolerance", rules.tolerance, least=0)
    options = {str(key): value for key, value in node.items() if key != RULES}
    kind = rules.kind or ("transform" if "_target_" in options else "option")
    if (kind == "option") == ("_target_" in options):
        is_option = "is an option of a compiler" if kind == "option" else f"is a {kind}"
        change = "Remove its _target_" if kind == "option" else "Give it a _target_"
        raise InputError(f"step.{name} {is_option}. {change}, or correct {where}.kind.")
    if kind == "option" and not rules.needs:
        raise InputError(
            f"step.{name} has no _target_, so it must be an option of a compiler. Give it a _target_ (and _partial_: "
            "true for a function), or name that compiler: rules: {needs: [compile]}."
        )
    return Step(options, kind, rules)


def parse(expression: str, steps: Mapping[str, Step]) -> tuple[str, ...]:
    """Return the names of an expression's steps in the order in which they are applied; none for `baseline`.

    Transforms keep their order; compiler, options and capture follow.

    Raises:
        InputError: no such step, one that stands twice, or steps that do not fit together.

    """
    names = () if expression == BASELINE else tuple(expression.split(AND))
    for name in names:
        if name not in steps:
            near = did_you_mean(name, [*steps, BASELINE])
            raise InputError(f"variant {expression!r}: there is no step {name!r}.{near} Steps: {', '.join(steps)}.")
        if names.count(name) > 1:
            raise InputError(f"variant {expression!r} has the step {name} twice. Leave one out.")
    if reason := misfit(names, steps):
        raise InputError(f"variant {expression!r}: {reason}")
    order = list(steps)
    rank = {name: (_ORDER.index(steps[name].kind), order.index(name)) for name in names}
    return tuple(sorted(names, key=lambda name: rank[name] if rank[name][0] else (0, names.index(name))))


def misfit(names: Sequence[str], steps: Mapping[str, Step]) -> str:
    """Return why these steps cannot be combined, naming two of them; empty where they can."""
    for one, other in combinations(names, 2):
        if are_alternatives(steps[one], steps[other]):
            return f"{one} and {other} exclude each other (group {steps[one].rules.group}). Leave one out."
    for name in names:
        needs = steps[name].rules.needs
        if needs and not {*needs} & {*names}:
            return f"{name} needs {' or '.join(needs)}. Write {needs[0]}{AND}{name}, for example."
    for kind in ("compiler", "capture"):
        several = [name for name in names if steps[name].kind == kind]
        if len(several) > 1:
            return f"{several[0]} and {several[1]} are both a {kind}. Leave one out."
    return ""


def are_alternatives(one: Step, other: Step) -> bool:
    """Return whether two steps are of one group."""
    return one.rules.group is not None and one.rules.group == other.rules.group


def expression(names: Iterable[str]) -> str:
    """Return the name of the recipe of these steps, which are in order."""
    return AND.join(names) or BASELINE


def recipe(names: Iterable[str], steps: Mapping[str, Step]) -> dict[str, Any]:
    """Return the recipe of these steps, which are in order, as in the YAML of a variant."""
    names = list(names)
    chosen = [steps[name] for name in names]

    def of(*kinds: Kind) -> list[dict[str, Any]]:
        return [dict(step.options) for step in chosen if step.kind in kinds]

    tolerances = [step.rules.tolerance for step in chosen if step.rules.tolerance is not None]
    return {
        "transforms": of("transform"),
        "names": [name for name in names if steps[name].kind == "transform"],
        "compiler": _merged(of("compiler", "option")) or None,
        "capture": _merged(of("capture")) or None,
        "tolerance": max(tolerances, default=None),
    }


def named_recipe(given: str, steps: Mapping[str, Step], short_names: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the name and the recipe of an expression, or of a short name of one.

    Raises:
        InputError: no such step, or steps that do not fit together.

    """
    names = parse(short_names.get(given, given), steps)
    return expression(names), recipe(names, steps)


def _merged(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mappings merged into one, at each depth; later values replace earlier ones."""
    merged: dict[str, Any] = {}
    for node in nodes:
        for key, value in node.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = _merged([merged[key], value]) if both else value
    return merged
