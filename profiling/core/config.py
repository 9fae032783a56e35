"""The one file besides the targets that knows Hydra: from its config to plain data, from `_target_` to objects."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from hydra.errors import InstantiationException
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profiling.core.job import ComponentSpec, Job, Settings
from profiling.errors import InputError, MissingExtraError, did_you_mean

#: Packages that are optional, by the extra that brings them.
EXTRAS = {"diffusers": "hub", "transformers": "hub"}


#: What a cell does unless a target says otherwise: a forward pass.
FORWARD: Mapping[str, Any] = {"_target_": "profiling.core.forward.ForwardCell"}

#: Failures of the device while a module is made: not the user's input. By name, since torch is not imported here.
DEVICE_FAILURES = ("OutOfMemoryError", "AcceleratorError")


@dataclass(frozen=True)
class RunConfig:
    """A run as the user asked for it: components × variants, in that order, and how to run the cells."""

    components: tuple[ComponentSpec, ...]
    variants: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Mapping[str, Any]]
    settings: Settings
    isolation: Literal["process", "none"]
    cell_timeout: float
    resume: str | None
    source: Mapping[str, Any]  # the composed config, for config.yaml
    procedure: Mapping[str, Any] = field(default_factory=lambda: FORWARD)
    rounds: int = 1  # how often all cells are played, one after the other (ABAB)

    def __post_init__(self) -> None:
        """Check what concerns the run as a whole."""
        for group, members in (("component", self.components), ("variant", self.variants)):
            if not members:
                raise InputError(f"{group}=[] leaves nothing to run. Name at least one {group}.")
        if self.isolation not in ("process", "none"):
            raise InputError(f"isolation={self.isolation} is none of process, none.")
        if not 0 < self.cell_timeout < float("inf"):
            raise InputError(f"cell_timeout={self.cell_timeout}: seconds, more than 0.")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise InputError(f"rounds={self.rounds!r}: a whole number, at least 1.")

    def jobs(self, target: str, settings: Settings, run: str) -> tuple[Job, ...]:
        """Return a job a cell, under the resolved `settings`."""
        return tuple(
            Job(target, component.at(settings.scale), name, options, self.metrics, settings, run, self.procedure)
            for component in self.components
            for name, options in self.variants.items()
        )


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


def instantiate(node: Mapping[str, Any], where: str, **arguments: Any) -> Any:
    """Call the node's `_target_` with its keys and `arguments`.

    Raises:
        InputError: the target does not exist, refuses the arguments, or raises; `where` names the node.
        MissingExtraError: the target needs an optional package that is not installed.

    """
    try:
        return hydra_instantiate(dict(node), **arguments, _convert_="all")
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, InputError):
            raise InputError(f"{where}: {cause}") from error
        if type(cause).__name__ in DEVICE_FAILURES:
            raise cause from None
        if isinstance(cause, ModuleNotFoundError) and cause.name in EXTRAS:
            extra = EXTRAS[cause.name]
            raise MissingExtraError(f"{cause.name} is not installed: pip install -e '.[{extra}]'") from error
        lines = str(cause).splitlines() or [type(cause).__name__]
        near = near_target(str(node.get("_target_")))
        raise InputError(f"{where}: {node.get('_target_')}: {near or f'{type(cause).__name__}: {lines[0]}'}") from error


def near_target(path: str) -> str:
    """Return what a dotted path may have meant, where its module exists and lacks the name; else an empty text."""
    module, _, name = path.rpartition(".")
    try:
        there = vars(importlib.import_module(module))
    except (ImportError, ValueError):
        return ""
    return "" if name in there else f"{module} has no {name!r}.{did_you_mean(name, there)}"


def partial_of(node: Mapping[str, Any], where: str) -> functools.partial[Any]:
    """Return the node's `_target_` with its keys bound, to be called later and often.

    Raises:
        InputError: the target does not exist.

    """
    return instantiate({**node, "_partial_": True}, where)


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
