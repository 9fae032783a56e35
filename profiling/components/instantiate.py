"""From a `_target_` in a YAML to the object that it names."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate as hydra_instantiate

from profiling.errors import InputError, MissingExtraError, did_you_mean, python_command

#: Packages that are optional, by the extra that brings them.
OPTIONAL_PACKAGES = ("diffusers", "transformers")


#: Failures of the device while a module is made: not the user's input. By name, since torch is not imported here.
DEVICE_FAILURES = ("OutOfMemoryError", "AcceleratorError")


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
        if isinstance(cause, ModuleNotFoundError) and cause.name in OPTIONAL_PACKAGES:
            install = f"{python_command()} -m pip install {cause.name}"
            raise MissingExtraError(f"{cause.name} is not installed. To install it: {install}") from error
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
