"""From what a checkpoint holds to plain names: training wraps modules, and each wrapper leaves its mark in the names.

Accepted: a plain state dict; `{"ema": {...}}` (of which only `ema_model` counts) and `{"model": {...}}`; names under
`ema_model.`, `module.` (data parallel) or `core.` (a world model's wrapper); `_orig_mod` anywhere (torch.compile).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from profiling.errors import InputError

_CONTAINERS = ("ema", "model")  # the averaged weights are the published ones when a file holds both
_WRAPPERS = ("module.", "core.")
_EMA = "ema_model."


def plain_names(content: object, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Take the network's own entries out of what a file holds, under the names the network itself gives them.

    A network whose own names (`wanted`) all begin with `core.` or `module.` keeps that prefix.

    Raises InputError (without the file's name) when it is no mapping from names, or holds nothing.
    """
    for container in _CONTAINERS:
        if isinstance(content, Mapping) and isinstance(content.get(container), Mapping):
            content = content[container]
            break
    if not isinstance(content, Mapping):
        raise InputError(f"holds a {type(content).__name__}, not a state dict (names and their tensors)")
    if not content:
        raise InputError("holds an empty state dict")
    entries: dict[str, Any] = {}
    for key, value in content.items():
        if not isinstance(key, str):
            raise InputError(f"holds the entry {key!r}, which is no name: it is not a state dict")
        name = ".".join(part for part in key.split(".") if part != "_orig_mod")
        if name in entries:
            raise InputError(f"holds '{name}' twice, with and without '_orig_mod'")
        entries[name] = value
    own = {wrapper for wrapper in _WRAPPERS if wanted and all(name.startswith(wrapper) for name in wanted)}
    return _unwrap(entries, [wrapper for wrapper in _WRAPPERS if wrapper not in own])


def _unwrap(entries: dict[str, Any], wrappers: Collection[str]) -> dict[str, Any]:
    """Peel wrappers off, outermost first, while all names carry one."""
    while True:
        averaged = {name.removeprefix(_EMA): value for name, value in entries.items() if name.startswith(_EMA)}
        if averaged:  # the rest is bookkeeping and the network that is not averaged
            entries = averaged
            continue
        wrapper = next((w for w in wrappers if all(name.startswith(w) for name in entries)), None)
        if wrapper is None:
            return entries
        entries = {name.removeprefix(wrapper): value for name, value in entries.items()}


def half(entries: Mapping[str, Any], part: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the entries of one half of an autoencoder, under the names of a module that wants `wanted`.

    `part` is "decoder" or "encoder". A file without either prefix is taken to hold that half alone.
    Raises InputError (without the file's name) when it holds other halves only.
    """
    prefix = part + "."
    picked = {name: value for name, value in entries.items() if name.startswith(prefix)}
    if not picked:
        other = "encoder" if part == "decoder" else "decoder"
        if any(name.startswith(other + ".") for name in entries):
            raise InputError(f"holds no {part}, only the {other}")
        return dict(entries)
    if all(name.startswith(prefix) for name in wanted):
        return picked
    return {name.removeprefix(prefix): value for name, value in picked.items()}
