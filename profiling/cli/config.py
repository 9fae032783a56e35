"""From the composed Hydra config to a typed run, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError, did_you_mean
from profiling.run.job import RunConfig


def read_config(cfg: DictConfig) -> RunConfig:
    """Turn the composed Hydra config into a `RunConfig`.

    Raises:
        InputError: a key or a value that no run can have.

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
                raise InputError(f"{group}.{name} names no _target_. Add _target_: package.module.Class to its YAML.")
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
        InputError: a key that no component has, or one that is missing.

    """
    if not isinstance(node, Mapping):
        raise InputError(f"component.{name} is no mapping. Its YAML starts with `{name}:` and holds module and inputs.")
    known = [item.name for item in fields(ComponentSpec) if item.name != "name"]
    for key in node:
        if key not in known:
            raise InputError(f"component.{name}.{key} is unknown.{did_you_mean(str(key), known)}")
    for key in ("module", "inputs"):
        if not isinstance(node.get(key), Mapping):
            raise InputError(f"component.{name}.{key} is missing. The README shows a component's YAML in ten lines.")
    return ComponentSpec(name=name, **node)


def _settings(values: Mapping[str, Any]) -> Settings:
    """Let OmegaConf convert and check the types by the dataclass's own hints."""
    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), values))
    except OmegaConfBaseException as error:
        raise InputError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(made, Settings)
    return made


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name}={value!r} is no number.")
    return float(value)
