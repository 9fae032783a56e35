"""Calls the `_target_` of a YAML node, and explains a failure in one line."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import msgspec
from hydra.utils import get_object
from hydra.utils import instantiate as hydra_instantiate

from profiling.components.spec import wrong_type
from profiling.errors import InputError, MissingExtraError, causes, did_you_mean, install_hint, reason_of

#: Optional packages: each has an extra of this project that installs it.
OPTIONAL_PACKAGES = ("diffusers", "transformers", "torchao")
#: An error of the device, which is no input error; by its name because torch is not imported here.
_DEVICE_FAILURE = "AcceleratorError"
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: How errors of CUDA begin that are raised under another name, by a Triton launch for example.
_DEVICE_TEXTS = ("CUDA error", "Triton Error [CUDA]")
#: How libraries of CUDA refuse a product or its sizes, in errors that begin like those of the device.
_REFUSALS = ("STATUS_NOT_SUPPORTED", "STATUS_INVALID_VALUE", "STATUS_ARCH_MISMATCH")
#: How too little memory is reported, in small letters: by torch and Python (OutOfMemoryError, MemoryError), the CUDA
#: driver and Triton, CUDA's libraries (CUBLAS_STATUS_ALLOC_FAILED, …), torch's CPU allocator, the system, and C++.
_OUT_OF_MEMORY = (
    *("outofmemory", "memoryerror", "out of memory", "alloc_failed", "allocation_failed"),
    *("not enough memory", "can't allocate memory", "cannot allocate memory", "bad_alloc"),
)


def instantiate(node: Mapping[str, Any], where: str, **arguments: Any) -> Any:
    """Call the node's `_target_` with its keys and `arguments`.

    Raises:
        InputError: the target does not exist, does not take a key, or raises; `where` names the node.
        MissingExtraError: the target needs an optional package that is not installed.
        Exception: a failure of the device, unchanged.

    """
    check_options(node, where, arguments)
    with as_input_error(node, where):
        return hydra_instantiate(dict(node), **arguments, _convert_="all")


@contextmanager
def as_input_error(node: Mapping[str, Any], where: str) -> Iterator[None]:
    """Explain in one line what the node's `_target_` raises inside the block.

    Raises:
        InputError: it raised; `where` names the node.
        MissingExtraError: it needs an optional package that is not installed.
        Exception: a failure of the device, unchanged.

    """
    try:
        yield
    except (Exception, SystemExit) as error:  # SystemExit: a module of the user that exits when it is imported
        cause: BaseException = error
        while cause.__cause__ not in (None, cause):
            cause = cause.__cause__
        if isinstance(cause, InputError):
            raise InputError(f"{where}: {cause}") from error
        if is_device_failure(cause):
            raise cause from None
        if isinstance(cause, ModuleNotFoundError) and cause.name in OPTIONAL_PACKAGES:
            raise MissingExtraError(install_hint(cause.name)) from error
        missing = ((each, place) for each, place in _targets(node, where) if _imported(each) is None)
        node, where = next(missing, (node, where))
        target = str(node.get("_target_"))
        raise InputError(f"{where}: {target}: {missing_name(target) or reason_of(cause)}") from error


def _targets(node: Mapping[str, Any], where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield each node below this one that has a `_target_`, also those in lists, and its place; this one comes last."""
    for name, value in node.items() if node.get("_recursive_", True) else ():
        for place, inner in enumerate(value) if isinstance(value, list) else [("", value)]:
            if isinstance(inner, Mapping) and "_target_" in inner:
                yield from _targets(inner, f"{where}.{name}" + f"[{place}]" * isinstance(value, list))
    yield node, where


def _imported(node: Mapping[str, Any]) -> Any:
    """Return the class or function that a node names; None where it cannot be imported."""
    with suppress(Exception, SystemExit):
        return get_object(node["_target_"])
    return None


def is_device_failure(error: BaseException) -> bool:
    """Return whether the device failed or memory ran out, which says nothing about the user's input."""
    reason = reason_of(error)
    failed = type(error).__name__ == _DEVICE_FAILURE or any(text in reason for text in _DEVICE_TEXTS)
    return is_out_of_memory(error) or (failed and not any(text in reason for text in _REFUSALS))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error, or one that it was raised from, says that the device or the host lacked memory."""
    reasons = [reason_of(each).lower() for each in causes(error)]
    return any(text in reason for reason in reasons for text in _OUT_OF_MEMORY)


def check_options(node: Mapping[str, Any], where: str, given: Collection[str] = (), positional: int = 0) -> None:
    """Check the keys of a node, and of the nodes with a `_target_` in it, against what their targets take.

    `given` are the arguments that this tool adds to the call by name, `positional` how many come before them. The
    values of a dataclass of this package are checked against its hints; those of a user's class may be loose.

    Raises:
        InputError: the target takes no such option, one has another type, or a nested target lacks one.

    """
    for each, place in _targets(node, where):
        if each is node:
            _check_options(node, where, given, positional, complete=False)
        else:  # called with its keys alone
            _check_options(each, place, complete=not (each.get("_partial_") or "_args_" in each))


def _check_options(
    node: Mapping[str, Any], where: str, given: Collection[str] = (), positional: int = 0, *, complete: bool
) -> None:
    name, target = node["_target_"], _imported(node)
    if target is None:  # `instantiate` explains a target that does not exist
        return
    parameters = _parameters(target, True) or []
    for key in node:
        if key in given:
            raise InputError(f"{where}.{key}: {name} is called with {key} by this tool. Remove the key.")
    for each in parameters[:positional]:
        if each.name in node and each.kind is each.POSITIONAL_OR_KEYWORD:
            raise InputError(
                f"{where}.{each.name}: {name} is called with the module in the place of {each.name}. Name a function "
                "instead that takes the module and calls it."
            )
    known = accepted_names(target)
    for key in node:
        if known is not None and key not in known and not str(key).startswith("_"):  # of Hydra, a copied config.json
            offered = [each for each in known[positional:] if each not in given]
            takes = f"It takes {', '.join(offered)}." if offered else "It takes none."
            near = did_you_mean(str(key), offered)
            raise InputError(f"{where}.{key}: {name} has no option {key!r}.{near} {takes}")
    for each in parameters if complete else ():
        if each.default is each.empty and each.kind not in _REST and each.name not in node:
            raise InputError(
                f"{where}: {name} needs the argument {each.name}. Add {each.name}: VALUE, or _partial_: true if the "
                "tool calls it with the module."
            )
    if is_dataclass(target) and str(name).startswith("profiling."):
        _check_types(node, target, where)


def _check_types(node: Mapping[str, Any], target: Any, where: str) -> None:
    hints: dict[str, Any] = {}
    with suppress(Exception):
        hints = get_type_hints(target)
    for name in node.keys() & hints.keys():
        if "_target_" in str(node[name]) or "Callable" in str(hints[name]):
            continue  # an object that is instantiated first
        if any(inspect.isabstract(each) for each in get_args(hints[name]) or (hints[name],)):
            continue  # the target says which class to name
        try:
            msgspec.convert(node[name], hints[name])
        except msgspec.ValidationError as error:
            raise wrong_type(error, f"{where}.{name}", node[name]) from None


def accepted_names(target: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of the arguments that a callable takes; None where it takes any, or does not say.

    `**options: Unpack[SomeTypedDict]` takes the keys of that dict. Behind a decorator, only such options are seen: what
    the decorator takes itself is not known, and the call refuses other names.
    """
    for follow_wrapped in (False, True):
        if (parameters := _parameters(target, follow_wrapped)) is None:
            return None
        rest = next((each for each in parameters if each.kind is each.VAR_KEYWORD), None)
        names = tuple(each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
        if rest is None:
            return None if follow_wrapped else names
        if get_origin(rest.annotation) is Unpack:
            (options,) = get_args(rest.annotation)
            return (*names, *sorted(options.__required_keys__ | options.__optional_keys__))
    return None


def _parameters(target: Callable[..., Any], follow_wrapped: bool) -> list[inspect.Parameter] | None:
    """Return the parameters of a callable; None of a built-in one that does not say."""
    for eval_str in (True, False):  # an annotation may exist for type checkers only
        with suppress(NameError, TypeError, ValueError):
            signature = inspect.signature(target, follow_wrapped=follow_wrapped, eval_str=eval_str)
            return list(signature.parameters.values())
    return None


def missing_name(target: str) -> str:
    """Return why the dotted path names nothing, and what to do: no such module, or no such name in it; else ""."""
    module, _, name = target.rpartition(".")
    if not module:
        return f"it names no module. Write the module, too: my_package.{target}"
    try:
        names = vars(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            return ""
        return (
            f"there is no module {error.name!r}. Run the command in the folder that holds it, or add that folder to "
            "PYTHONPATH."
        )
    except (Exception, SystemExit):  # the caller has the reason
        return ""
    return "" if name in names else f"{module} has no {name!r}.{did_you_mean(name, names)}"


def partial_of(
    node: Mapping[str, Any], where: str, given: Collection[str] = (), positional: int = 0
) -> functools.partial[Any]:
    """Return the node's `_target_` with its keys bound, to be called later with `positional` arguments and `given`.

    Raises:
        InputError: the target does not exist, or does not take a key.

    """
    check_options(node, where, given, positional)
    with as_input_error(node, where):
        return hydra_instantiate({**node, "_partial_": True}, _convert_="all")
