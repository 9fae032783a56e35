"""Turns the composed Hydra config into a typed `RunConfig`, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError, did_you_mean
from profiling.run.job import RunConfig

#: Keys that each component has, with an example.
REQUIRED = {"module": "{_target_: my_package.MyNetwork}", "inputs": "{x: {shape: [1, 3, 224, 224]}}"}


def read_config(cfg: DictConfig) -> RunConfig:
    """Turn the composed Hydra config into a `RunConfig`.

    Raises:
        InputError: an unknown key, or an invalid value.

    """
    try:
        source = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise InputError(f"config: {str(error).splitlines()[0]}") from error
    assert isinstance(source, dict)
    plain: dict[str, Any] = {str(key): value for key, value in source.items()}
    components = tuple(read_component(name, node) for name, node in (plain.get("component") or {}).items())
    for group in ("variant", "metric"):
        for name, node in (plain.get(group) or {}).items():
            if not isinstance(node, Mapping) or "_target_" not in node:
                raise InputError(f"{group}.{name} has no _target_. Add _target_: package.module.Class to its YAML.")
    return RunConfig(
        components=components,
        variants=plain.get("variant") or {},
        metrics=plain.get("metric") or {},
        settings=_settings({item.name: plain[item.name] for item in fields(Settings)}),
        isolation=plain["isolation"],
        cell_timeout=_number("cell_timeout", plain["cell_timeout"]),
        resume=plain["resume"],
        source=plain,
        rounds=plain["rounds"],
    )


def read_component(name: str, node: Any) -> ComponentSpec:
    """Turn a component's node, resolved to plain data, into its spec.

    Raises:
        InputError: an unknown key, or a required one that is missing.

    """
    if not isinstance(node, Mapping):
        raise InputError(
            f"component.{name} is not a mapping. Its YAML has the top key `{name}:` with module and inputs below it."
        )
    keys = [item.name for item in fields(ComponentSpec) if item.name != "name"]
    for key in node:
        if key not in keys:
            raise InputError(f"component.{name}.{key} is unknown.{did_you_mean(str(key), keys)}")
    for key, example in REQUIRED.items():
        if not isinstance(node.get(key), Mapping):
            raise InputError(f"component.{name}.{key} is missing. Add it to the YAML, for example {key}: {example}")
    return ComponentSpec(name=name, **node)


def _settings(values: Mapping[str, Any]) -> Settings:
    """Convert and check the types by the dataclass's hints, with OmegaConf."""
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), values))
    except OmegaConfBaseException as error:
        raise InputError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(settings, Settings)
    return settings


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name}={value!r} is not a number.")
    return float(value)
