"""Config groups: their YAML files, and variants that are expressions of steps, which have none.

Hydra finds each expression on a command line as if it had a YAML in the group `variant`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override

from profiling.errors import InputError, did_you_mean
from profiling.results.record import AND, BASELINE
from profiling.variants.steps import Step, named_recipe, read_steps

CONF = Path(__file__).resolve().parents[2] / "conf"
#: Most bytes of a YAML file: a larger one takes minutes to read.
MOST_BYTES = 2_000_000
#: Config groups of which a run chooses several files.
LISTS = ("component", "variant", "metric")
GROUPS = {"hydra", *LISTS, *(path.name for path in CONF.iterdir() if path.is_dir())}
#: In the composed config, a variant that is named by an expression is `{steps: EXPRESSION}`: it has no other key.
STEPS = "steps"


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the YAML file of a config, `component/my_net` for example, in the first of `folders` that has it."""
    return next((path for folder in folders if (path := folder / f"{name}.yaml").is_file()), None)


def names_in(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the names of the YAML files in a config group, those of the first folder first."""
    files = (path for folder in folders for path in sorted((folder / group).glob("*.yaml")))
    return list(dict.fromkeys(path.stem for path in files))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file, interpolations as they are written; empty if it is no mapping.

    Raises:
        InputError: it is too large, or not valid UTF-8 or YAML.

    """
    check_size(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:  # nested too deeply
        raise InputError(f"{path} is not valid: {error}. Correct the file.") from None
    return {str(key): node for key, node in content.items()} if isinstance(content, dict) else {}


def check_size(path: Path) -> None:
    """Raise an InputError if a YAML file has more than `MOST_BYTES`."""
    if (size := path.stat().st_size) > MOST_BYTES:
        most = f"a config has at most {MOST_BYTES / 1e6:.0f}"
        raise InputError(f"{path} has {size / 1e6:.0f} MB; {most}. Name another file.")


def check_own_files(added: Path) -> None:
    """Check the user's config folder: no file may be too large, or be named like one in conf, which would be used.

    Raises:
        InputError: there is no such folder, or names the file.

    """
    if not added.is_dir():
        raise InputError(f"--config-dir={added}: there is no such folder. Name one that holds component/my_net.yaml.")
    if added.samefile(CONF):
        return
    steps = step_nodes()
    for file in (file for group in sorted(GROUPS) for file in sorted((added / group).glob("*.yaml"))):
        group, name = file.parent.name, file.stem
        check_size(file)  # another file may include it
        taken = {*steps} & {*read_yaml(file)} if group == "step" else set[str]()
        if find_file(f"{group}/{name}", [CONF]) or (group == "variant" and is_expression(name, steps)):
            taken.add(name)
        if taken:
            raise InputError(
                f"{file}: the tool has a {group} {min(taken)} of its own, which comes first. Rename the file and the "
                "key in it, or set the options of the tool's own on the command line; --cfg job lists them."
            )


def _check_chosen(key: str, chosen: Override, folders: Sequence[Path]) -> None:
    """Check an override that sets an option of a variant, or chooses YAML files below `folders` in a config group.

    The top key of a component, variant or metric is the file's name: another one could overwrite another file's entry.

    Raises:
        InputError: an option of a recipe, a value that is no name and no list of names, or a file that is not valid
            YAML or has another top key.

    """
    option = re.fullmatch(r"variant\.([^.]+)\.(?:.*\.)?(.*)", key)
    if option and find_file(f"variant/{option[1]}", folders) is None:
        step = short_names().get(option[1], option[1]).partition(AND)[0]
        raise InputError(
            f"{key}: the options of a recipe are those of its steps. Write step.{step}.{option[2]}=VALUE, for "
            "example; --cfg job lists them."
        )
    if key not in GROUPS:
        if chosen.is_add() and "." not in key and not any((each / key).is_dir() for each in folders):
            said = "+ adds a key, and only options are read. Write an option without +; --cfg job lists them."
            raise InputError(f"{chosen.input_line}: {said}")
        return
    value = chosen.value()
    names = value if isinstance(value, list) and key in LISTS else [value]
    if not all(isinstance(name, str) for name in names):
        example = f"{key}=[NAME,NAME]" if key in LISTS else f"{key}=NAME"
        raise InputError(
            f"{chosen.input_line} does not name YAML files: null, true, false, nan and other numbers are no names. "
            f"Write {example}; --help lists the names."
        )
    for name in names:
        file = find_file(f"{key}/{name}", folders)
        if file is not None and {*read_yaml(file)} - {"defaults"} != {file.stem} and key in LISTS:
            raise InputError(f"{key}/{file.name} must have one top key, its own name: `{file.stem}:`")


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


def register(target: str, given: Mapping[str, Override], folders: Sequence[Path]) -> list[str]:
    """Check what overrides choose, and let Hydra find the variants; return overrides that add the user's own steps.

    A variant with a YAML in one of the `folders` is that. The others are expressions of steps, or short names of such.

    Raises:
        InputError: a group's value or file is wrong (see `_check_chosen`), or two names are of one recipe.

    """
    for option, each in given.items():
        if not each.is_delete() and not each.is_sweep_override():
            _check_chosen(option, each, folders)
    chosen = given["variant"].value() if "variant" in given else None
    if isinstance(chosen, str):
        chosen = [chosen]
    names = chosen if chosen and isinstance(chosen, list) else _defaults(target, folders)
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


def is_expression(name: str, steps: Iterable[str]) -> bool:
    """Return whether the name of a variant is an expression of `steps`, or a short name of one: it has no YAML."""
    return AND in name or name in (BASELINE, *short_names(), *steps)


def _defaults(target: str, folders: Sequence[Path]) -> list[str]:
    """Return the variants that a target's YAML lists in its defaults, or those of the YAML that it is based on."""
    file = find_file(target, folders)
    found: list[str] = []
    for each in read_yaml(file).get("defaults") or () if file is not None else ():
        if isinstance(each, str):
            found = _defaults(each.strip("/"), folders) or found
        for key, value in each.items() if isinstance(each, Mapping) else ():
            if str(key).split()[-1].strip("/") == "variant":  # without `override` or `optional`
                found = [str(name) for name in (value if isinstance(value, list) else [value])]
    return found
