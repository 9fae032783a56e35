"""Turns the composed Hydra config into a typed `RunConfig`, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from profiling.cli.groups import STEPS
from profiling.components.spec import ComponentSpec, Settings, check_target, decode
from profiling.errors import InputError
from profiling.run.job import RunConfig, RunOptions, as_recipe
from profiling.variants.steps import named_recipe, read_steps

_SETTINGS, _OPTIONS = (tuple(each.name for each in fields(kind)) for kind in (Settings, RunOptions))
#: Keys of a component that no YAML may have.
SET_BY_THE_TOOL = {"name", "point", "extra_inputs", "scale"}
#: Keys that each component has, with an example.
REQUIRED = {"module": "{_target_: my_package.MyNetwork}", "inputs": "{x: {shape: [1, 3, 224, 224]}}"}


def read_config(cfg: DictConfig) -> RunConfig:
    """Turn the composed Hydra config into a `RunConfig`.

    Raises:
        InputError: an unknown key, or an invalid value.
        OmegaConfBaseException: a value is missing, or refers to one that is.

    """
    source = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(source, dict)
    plain: dict[str, Any] = {str(key): value for key, value in source.items()}
    groups: dict[str, Mapping[str, Any]] = {}
    for group in ("component", "variant", "metric"):
        groups[group] = plain.get(group) or {}
        if not isinstance(groups[group], Mapping):
            raise InputError(f"{group}={groups[group]!r}: name YAML files, {group}=[NAME,NAME] for example.")
    steps = read_steps(plain.pop("step", {}))  # each variant has the options of its steps
    groups["variant"] = {
        name: named_recipe(node[STEPS], steps, {})[1] if isinstance(node, Mapping) and {*node} == {STEPS} else node
        for name, node in groups["variant"].items()
    }
    for name, node in groups["metric"].items():
        check_target(node, f"metric.{name}")
    for name, node in groups["variant"].items():
        if not isinstance(node, Mapping):
            raise InputError(
                f"variant.{name}={node!r} is no mapping. Write transforms, compiler and capture below it, {{}} for "
                "eager, or the _target_ of your own variant."
            )
        check_target(as_recipe(node), f"variant.{name}")
    settings = decode(Settings, {name: plain[name] for name in _SETTINGS if name in plain}, "")
    options = decode(RunOptions, {name: plain[name] for name in _OPTIONS if name in plain}, "")
    return RunConfig(
        components=tuple(read_component(str(name), node) for name, node in groups["component"].items()),
        variants=groups["variant"],
        metrics=groups["metric"],
        settings=replace(settings, trace=True) if settings.counters else settings,  # which names kernels to measure
        source={**plain, "variant": groups["variant"]},
        steps=steps,
        **asdict(options),
    )


def read_component(name: str, node: Any) -> ComponentSpec:
    """Turn a component's node, resolved to plain data, into its spec.

    Raises:
        InputError: an unknown key, a required one that is missing, or a value of another type.

    """
    where = f"component.{name}"
    if not isinstance(node, Mapping):
        raise InputError(f"{where} is no mapping. Its YAML has the top key `{name}:` with module and inputs below it.")
    known = {each.name for each in fields(ComponentSpec)}
    for key, example in REQUIRED.items():
        if known >= {*node} and not isinstance(node.get(key), Mapping):  # else `decode` says which key is unknown
            raise InputError(f"{where}.{key} is {node.get(key, 'missing')}. Write a mapping, like {key}: {example}")
    for key in SET_BY_THE_TOOL & set(node):
        raise InputError(f"{where}.{key} is not for a YAML: the tool sets it. Leave it out.")
    return decode(ComponentSpec, {"name": name, **node}, where, SET_BY_THE_TOOL)
