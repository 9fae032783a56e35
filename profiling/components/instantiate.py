"""Calls the `_target_` of a YAML node, and explains a failure in one line."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import msgspec
from hydra.utils import get_object
from hydra.utils import instantiate as hydra_instantiate

from profiling.components.spec import wrong_type
from profiling.errors import InputError, MissingExtraError, did_you_mean, install_hint, reason_of

#: Optional packages, each with an extra of the same name.
OPTIONAL_PACKAGES = ("diffusers", "transformers")
#: Errors of the device, which are no input errors; listed by name because torch is not imported here.
DEVICE_FAILURES = ("OutOfMemoryError", "AcceleratorError")
#: How errors of CUDA begin that are raised under another name, by a Triton launch for example.
_DEVICE_TEXTS = ("CUDA error", "Triton Error [CUDA]")


def instantiate(node: Mapping[str, Any], where: str, **arguments: Any) -> Any:
    """Call the node's `_target_` with its keys and `arguments`.

    Raises:
        InputError: the target does not exist, refuses the arguments, or raises; `where` names the node.
        MissingExtraError: the target needs an optional package that is not installed.
        Exception: a failure of the device, unchanged.

    """
    check_options(node, where)
    try:
        return hydra_instantiate(dict(node), **arguments, _convert_="all")
    except (Exception, SystemExit) as error:  # SystemExit: a module of the user that exits when it is imported
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, InputError):
            raise InputError(f"{where}: {cause}") from error
        if is_device_failure(cause):
            raise cause from None
        if isinstance(cause, ModuleNotFoundError) and cause.name in OPTIONAL_PACKAGES:
            raise MissingExtraError(install_hint(cause.name)) from error
        target = str(node.get("_target_"))
        detail = missing_name(target) or reason_of(cause)
        raise InputError(f"{where}: {target}: {detail}") from error


def is_device_failure(error: BaseException) -> bool:
    """Return whether the device failed (out of memory, illegal access), which says nothing about the user's input."""
    return type(error).__name__ in DEVICE_FAILURES or any(text in reason_of(error) for text in _DEVICE_TEXTS)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or the host had too little memory; libraries of CUDA say it in words of their own."""
    texts = ("out of memory", "ALLOC_FAILED", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(text in reason_of(error) for text in texts)


def check_options(node: Mapping[str, Any], where: str) -> None:
    """Check the options of a dataclass of this package against its hints; those of a user's class may be loose.

    Raises:
        InputError: an option has another type.

    """
    if not str(node.get("_target_")).startswith("profiling."):
        return
    hints: dict[str, Any] = {}
    with suppress(Exception):  # `instantiate` explains a target that does not exist
        kind = get_object(node["_target_"])
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
    for name in node.keys() & hints.keys():
        if "_target_" in str(node[name]) or "Callable" in str(hints[name]):
            continue  # an object that is instantiated first
        try:
            msgspec.convert(node[name], hints[name])
        except msgspec.ValidationError as error:
            raise wrong_type(error, f"{where}.{name}") from None


def missing_name(target: str) -> str:
    """Return "module has no 'Name'. Did you mean …?" if the module of the dotted path lacks the name, else ""."""
    module, _, name = target.rpartition(".")
    try:
        names = vars(importlib.import_module(module))
    except (Exception, SystemExit):  # the caller has the reason
        return ""
    return "" if name in names else f"{module} has no {name!r}.{did_you_mean(name, names)}"


def partial_of(node: Mapping[str, Any], where: str) -> functools.partial[Any]:
    """Return the node's `_target_` with its keys bound, to be called later.

    Raises:
        InputError: the target does not exist.

    """
    return instantiate({**node, "_partial_": True}, where)
