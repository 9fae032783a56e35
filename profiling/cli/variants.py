"""Expressions of steps as variants of a command line: Hydra finds each as if it had a YAML in the group `variant`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

from profiling.errors import InputError, did_you_mean
from profiling.results.record import AND, BASELINE
from profiling.variants.steps import Step, named_recipe, read_steps

CONF = Path(__file__).resolve().parents[2] / "conf"
#: The key of a variant that is an expression, in the composed config.
STEPS = "steps"


def step_files(folder: Path) -> list[Path]:
    """Return the YAML files of steps in a config folder."""
    return sorted((folder / "step").glob("*.yaml"))


def step_nodes(folders: Sequence[Path] = (CONF,)) -> dict[str, Any]:
    """Return the steps of config folders as in their YAML, by name."""
    files = [file for folder in folders for file in step_files(folder)]
    contents = [yaml.safe_load(file.read_text(encoding="utf-8")) or {} for file in files]
    return {name: node for content in contents for name, node in content.items()}


@cache
def short_names() -> Mapping[str, str]:
    """Return the short names of expressions."""
    return yaml.safe_load((CONF / "settings" / "short_names.yaml").read_text(encoding="utf-8"))


def named_recipes(names: Iterable[str], steps: Mapping[str, Step] | None = None) -> dict[str, dict[str, Any]]:
    """Return the recipes of expressions or short names by their names; without `steps` of those that are shipped.

    Raises:
        InputError: an expression is wrong.

    """
    known, short = read_steps(step_nodes()) if steps is None else steps, short_names()
    return dict(named_recipe(_known(str(name), known, ()), known, short) for name in names)


def register(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Let Hydra find the variants that a command line names; return overrides that add the user's own steps.

    A variant with a YAML in one of the `folders` is that. The others are expressions of steps, or short names of such.

    Raises:
        InputError: an expression is wrong, or two names are of one recipe.

    """
    given = {each.key_or_group: each for each in OverridesParser.create().parse_overrides(list(overrides))}
    own = [file.stem for folder in folders[1:] for file in step_files(folder)]
    chosen = given.get("variant")
    if chosen is None or chosen.is_delete() or chosen.is_sweep_override():
        names: Any = _defaults(target, folders)
    else:
        value = chosen.value()
        names = value if isinstance(value, list) else [value]
    steps, short, named = read_steps(step_nodes(folders)), short_names(), dict[str, str]()
    for name in names:
        key = str(name)
        if not any((folder / "variant" / f"{name}.yaml").is_file() for folder in folders):
            key, _ = named_recipe(_known(str(name), steps, folders), steps, short)
            ConfigStore.instance().store(group="variant", name=str(name), node={key: {STEPS: key}})
        if key in named:
            raise InputError(f"variant=[{named[key]},{name}]: both are the recipe {key}. Leave one out.")
        named[key] = str(name)
    shipped = [file.stem for file in step_files(folders[0])]
    return [f"step=[{','.join([*shipped, *own])}]"] if own and "step" not in given else []


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


def _known(name: str, steps: Mapping[str, Step], folders: Sequence[Path]) -> str:
    """Return the name of a variant, which is an expression, a short name of one, or that of a step.

    Raises:
        InputError: it is a single word that is none of these.

    """
    if is_expression(name, steps):
        return name
    files = [file.stem for folder in folders for file in sorted((folder / "variant").glob("*.yaml"))]
    near = did_you_mean(name, [BASELINE, *steps, *short_names(), *files])
    others = f"; or a YAML: {', '.join(files)}" if files else ""
    raise InputError(
        f"there is no variant {name!r}.{near} A variant is {BASELINE}, or steps joined by {AND}: "
        f"{', '.join(steps)}{others}."
    )


def _defaults(target: str, folders: Sequence[Path]) -> list[str]:
    """Return the variants in the defaults of a target's YAML, or of one that it is based on."""
    file = next((path for folder in folders if (path := folder / f"{target}.yaml").is_file()), None)
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file is not None else {}
    found: list[str] = []
    for each in content.get("defaults", []) if isinstance(content, Mapping) else []:
        if isinstance(each, str):
            found = _defaults(each.strip("/"), folders) or found
        for key, value in each.items() if isinstance(each, Mapping) else ():
            if str(key).split()[-1].strip("/") == "variant":  # without `override` or `optional`
                found = [str(name) for name in (value if isinstance(value, list) else [value])]
    return found
