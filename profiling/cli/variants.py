"""Expressions of steps as variants of a command line: Hydra finds each as if it had a YAML in the group `variant`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

from profiling.cli.files import CONF, find_file, names_in, read_yaml
from profiling.errors import InputError, did_you_mean
from profiling.results.record import AND, BASELINE
from profiling.variants.steps import Step, named_recipe, read_steps

#: The key of a variant that is an expression, in the composed config.
STEPS = "steps"


def step_nodes(folders: Sequence[Path] = (CONF,)) -> dict[str, Any]:
    """Return the steps of config folders as in their YAML, by name."""
    files = (file for folder in folders for file in sorted((folder / "step").glob("*.yaml")))
    return {name: node for file in files for name, node in read_yaml(file).items()}


@cache
def short_names() -> Mapping[str, str]:
    """Return the short names of expressions."""
    return read_yaml(CONF / "settings" / "short_names.yaml")


def named_recipes(
    names: Iterable[str], steps: Mapping[str, Step] | None = None, folders: Sequence[Path] = ()
) -> dict[str, dict[str, Any]]:
    """Return the recipes of expressions or short names by their names; without `steps` of those that are shipped.

    Raises:
        InputError: an expression is wrong, or a single word is no step; variants with a YAML in `folders` are offered.

    """
    known, short = read_steps(step_nodes()) if steps is None else steps, short_names()
    recipes = {}
    for name in map(str, names):
        if not is_expression(name, known):
            files = names_in("variant", folders)
            near = did_you_mean(name, [BASELINE, *known, *short, *files])
            others = f"; or a YAML: {', '.join(files)}" if files else ""
            raise InputError(
                f"there is no variant {name!r}.{near} A variant is {BASELINE}, or steps joined by {AND}: "
                f"{', '.join(known)}{others}."
            )
        key, recipe = named_recipe(name, known, short)
        recipes[key] = recipe
    return recipes


def override_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the overrides of a command line by their keys; None for one that is deleted or swept."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return {
        each.key_or_group: None if each.is_delete() or each.is_sweep_override() else each.value() for each in parsed
    }


def register(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Let Hydra find the variants that a command line names; return overrides that add the user's own steps.

    A variant with a YAML in one of the `folders` is that. The others are expressions of steps, or short names of such.

    Raises:
        InputError: an expression is wrong, or two names are of one recipe.

    """
    given = override_values(overrides)
    chosen = given.get("variant")
    names = chosen if isinstance(chosen, list) else _defaults(target, folders) if chosen is None else [chosen]
    steps, named = read_steps(step_nodes(folders)), dict[str, str]()
    for name in map(str, names):
        key = name
        if find_file(f"variant/{name}", folders) is None:
            (key,) = named_recipes([name], steps, folders)
            ConfigStore.instance().store(group="variant", name=name, node={key: {STEPS: key}})
        if key in named:
            raise InputError(f"variant=[{named[key]},{name}]: both are the recipe {key}. Leave one out.")
        named[key] = name
    has_own = any(names_in("step", folders[1:]))
    return [f"step=[{','.join(names_in('step', folders))}]"] if has_own and "step" not in given else []


def expanded(variants: Mapping[str, Any], steps: Mapping[str, Step]) -> dict[str, Any]:
    """Return the variants of a composed config, with the recipe in the place of an expression.

    Raises:
        InputError: an expression is wrong.

    """
    return {
        name: named_recipe(node[STEPS], steps, {})[1] if isinstance(node, Mapping) and set(node) == {STEPS} else node
        for name, node in variants.items()
    }


def is_expression(name: str, steps: Iterable[str]) -> bool:
    """Return whether the name of a variant is an expression of `steps`, or a short name of one: it has no YAML."""
    return AND in name or name in (BASELINE, *short_names(), *steps)


def _defaults(target: str, folders: Sequence[Path]) -> list[str]:
    """Return the variants in the defaults of a target's YAML, or of one that it is based on."""
    file = find_file(target, folders)
    found: list[str] = []
    for each in read_yaml(file).get("defaults") or () if file is not None else ():
        if isinstance(each, str):
            found = _defaults(each.strip("/"), folders) or found
        for key, value in each.items() if isinstance(each, Mapping) else ():
            if str(key).split()[-1].strip("/") == "variant":  # without `override` or `optional`
                found = [str(name) for name in (value if isinstance(value, list) else [value])]
    return found
