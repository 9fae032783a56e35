"""Loads a checkpoint file (.pt, .pth, .safetensors) into a module: safely, under plain names, without a second copy.

Training wraps modules, and each wrapper adds a prefix to the names in the file. Accepted: a plain state dict;
`{"ema": {...}}` (only its `ema_model` part is read) and `{"model": {...}}`; names under `ema_model.`, `module.` (data
parallel) or `core.` (a world model's wrapper); `_orig_mod` anywhere (torch.compile).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from profiling.components.checkpoint_format import PYTORCH_ZIP, SAFETENSORS, check_format
from profiling.errors import InputError, did_you_mean, printable

Shape = tuple[int, ...]
#: Returns the shape of each tensor of a network's state dict, by name. A function, since most loads never need it.
Shapes = Callable[[], Mapping[str, Shape]]
_CONTAINERS = ("ema", "model")  # a file with both: the averaged weights (ema) are the published ones
_WRAPPERS = ("module.", "core.")
_EMA = "ema_model."
_NAMES_SHOWN = 3
_LONGEST_NAME = 400  # characters; a name is the path of an attribute


def load_into(
    module: nn.Module, path: Path, *, part: str | None = None, others: Mapping[str, Shapes] | None = None
) -> None:
    """Copy a file's weights into `module`, on its device and in its dtype, and run its load hooks.

    `part` ("decoder" or "encoder") selects one half of an autoencoder's file. `others` maps other components to their
    shapes; if the file fits one of them instead, the error names it. All names must match; only `freqs` buffers may be
    absent, since they are constants that follow from the config.

    Raises InputError for a file that is missing, damaged, not a state dict, of another network, or that would run code
    (none is run), and for weights that are NaN, infinite or too large for the module's dtype (some of the module's
    weights are then overwritten already). Raises ValueError for a module on the meta device.
    """
    targets = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    if any(target.is_meta for target in targets.values()):
        raise ValueError("the module is on the meta device: allocate it first (module.to_empty(device=...))")
    tensors = read(path, targets)
    try:
        sources = select_half(tensors, part, targets) if part else tensors
        optional = {name for name, _ in module.named_buffers() if _is_constant(name)}
        if mismatch := describe_mismatch(_shapes(targets), _shapes(sources), optional):
            raise InputError(f"does not fit {type(module).__name__}: {mismatch}")
    except InputError as error:
        fitting = components_in(_shapes(tensors), others or {})
        hint = f". The file fits {' or '.join('component=' + name for name in fitting)}" if fitting else ""
        raise InputError(f"checkpoint '{path}' {error}{hint}") from None
    # Not `module.load_state_dict(sources)`: its `copy_` converts dtypes on the host, and a load hook would run before
    # NaN is detected. The call below copies nothing, since the tensors are the module's own; it runs the hooks.
    for name, source in sources.items():
        if problem := copy_checked(targets[name], source):
            raise InputError(f"checkpoint '{path}': '{name}' {problem}")
    module.load_state_dict(module.state_dict(), strict=True)


def read(path: Path, wanted: Collection[str] = ()) -> dict[str, Tensor]:
    """Return a file's tensors under plain names; `wanted` are the names in the module to be loaded.

    The tensors are on the CPU and memory-mapped, except those of PyTorch's legacy format.
    Raises InputError, in one line, for anything that is not a state dict.
    """
    _check_path(path)
    try:
        file_format = check_format(path, path.suffix)
        content = _open_safetensors(path) if file_format == SAFETENSORS else _open_pytorch(path, file_format)
        tensors = plain_names(content, wanted)
        for name, value in tensors.items():
            _check_tensor(name, value)
    except InputError as error:
        raise InputError(f"checkpoint '{path}' {error}") from None
    except OSError as error:
        raise InputError(f"checkpoint '{path}' cannot be read: {error.strerror}") from None
    return tensors


def _check_path(path: Path) -> None:
    """Raise InputError unless `path` is a regular file; reading a pipe or a device would never end."""
    try:
        if path.is_dir():
            raise InputError(f"checkpoint '{path}' is a folder: name the file in it")
        if not path.exists():
            siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            raise InputError(f"checkpoint '{path}' does not exist.{did_you_mean(path.name, siblings)}")
        if not path.is_file():
            raise InputError(f"checkpoint '{path}' is not a regular file")
    except OSError as error:
        raise InputError(f"checkpoint '{path}' cannot be read: {error.strerror}") from None


def _open_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:  # its own SafetensorError, but also OSError, TypeError and ValueError
        raise InputError(
            f"is damaged, cut short or not a safetensors file ({printable(error, 200)}): download or copy it again"
        ) from None


def _open_pytorch(path: Path, file_format: str) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would warn before the error is printed in one line
            return torch.load(path, map_location="cpu", weights_only=True, mmap=file_format == PYTORCH_ZIP)
    except Exception:  # damaged bytes raise anything: KeyError, EOFError, RuntimeError, MemoryError, …
        raise InputError("is damaged, cut short or not a PyTorch checkpoint: download or copy it again") from None


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InputError(
            f"is not a state dict: its entry '{name}' is a {type(value).__name__}, not a tensor "
            "(expected: a state dict, or one under 'ema' or 'model')"
        )
    if value.layout != torch.strided:
        raise InputError(f"holds '{name}' as a sparse tensor: save it dense")


def plain_names(content: object, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Return the entries of a file's content under the names that the network itself uses.

    A network whose own names (`wanted`) all begin with `core.` or `module.` keeps that prefix.
    Raises InputError (without the file's name) for content that is empty or not a mapping from names.
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
        if not isinstance(key, str) or not key.isprintable() or len(key) > _LONGEST_NAME:
            shown = printable(ascii(key), 60) if isinstance(key, str | int) else f"of type {type(key).__name__}"
            raise InputError(f"is not a state dict: its key {shown} is not a name")
        name = ".".join(part for part in key.split(".") if part != "_orig_mod")
        if name in entries:
            raise InputError(f"holds '{name}' twice, with and without '_orig_mod'")
        entries[name] = value
    own = {wrapper for wrapper in _WRAPPERS if wanted and all(name.startswith(wrapper) for name in wanted)}
    return _unwrap(entries, [wrapper for wrapper in _WRAPPERS if wrapper not in own])


def _unwrap(entries: dict[str, Any], wrappers: Collection[str]) -> dict[str, Any]:
    """Remove wrappers' prefixes, outermost first, as long as all names have one."""
    while True:
        averaged = {name.removeprefix(_EMA): value for name, value in entries.items() if name.startswith(_EMA)}
        if averaged:  # the others are bookkeeping and the weights before averaging
            entries = averaged
            continue
        wrapper = next((w for w in wrappers if all(name.startswith(w) for name in entries)), None)
        if wrapper is None:
            return entries
        entries = {name.removeprefix(wrapper): value for name, value in entries.items()}


def select_half(entries: Mapping[str, Any], part: str, wanted: Collection[str]) -> dict[str, Any]:
    """Return the entries of one half of an autoencoder, under the names of a module whose names are `wanted`.

    `part` is "decoder" or "encoder". A file with neither prefix is assumed to hold that half alone.
    Raises InputError (without the file's name) when the file holds the other half only.
    """
    prefix = part + "."
    selected = {name: value for name, value in entries.items() if name.startswith(prefix)}
    if not selected:
        other = "encoder" if part == "decoder" else "decoder"
        if any(name.startswith(other + ".") for name in entries):
            raise InputError(f"holds no {part}, only the {other}")
        return dict(entries)
    if all(name.startswith(prefix) for name in wanted):
        return selected
    return {name.removeprefix(prefix): value for name, value in selected.items()}


def describe_mismatch(wanted: Mapping[str, Shape], present: Mapping[str, Shape], optional: Iterable[str] = ()) -> str:
    """Compare the shapes of a network (`wanted`) with those in a file; names in `optional` may be absent.

    Returns e.g. `2 missing (a; b), 1 mis-shaped (c: file 3x4, network 4x4)`, or "" when the file fits.
    """
    may_be_absent = set(optional)
    groups = {
        "missing": [name for name in wanted if name not in present and name not in may_be_absent],
        "unexpected": [name for name in present if name not in wanted],
        "mis-shaped": [
            f"{name}: file {_times(present[name])}, network {_times(shape)}"
            for name, shape in wanted.items()
            if name in present and tuple(present[name]) != tuple(shape)
        ],
    }
    return ", ".join(
        f"{len(names)} {what} ({'; '.join(names[:_NAMES_SHOWN])}{'; …' if len(names) > _NAMES_SHOWN else ''})"
        for what, names in groups.items()
        if names
    )


def components_in(present: Mapping[str, Shape], others: Mapping[str, Shapes]) -> list[str]:
    """Return the components among `others` that a file fits, as a whole or with only its decoder or encoder."""
    halves = [
        {name.removeprefix(prefix): shape for name, shape in present.items() if name.startswith(prefix)}
        for prefix in ("", "decoder.", "encoder.")
    ]
    fitting = []
    for component, shapes in others.items():
        wanted = shapes()
        constants = [name for name in wanted if _is_constant(name)]
        if wanted and any(half and not describe_mismatch(wanted, half, constants) for half in halves):
            fitting.append(component)
    return fitting


@torch.no_grad()
def copy_checked(target: Tensor, source: Tensor) -> str | None:
    """Copy one tensor in place; return its problem in words (another kind of dtype, NaN, too large), or None."""
    if source.is_floating_point() != target.is_floating_point():
        return f"is {source.dtype} in the file, and the network computes with {target.dtype}"
    source = source.to(target.device)  # in the stored dtype: the device converts faster, and host memory stays flat
    target.copy_(source)
    if not target.is_floating_point() or _all_finite(target):
        return None
    if _all_finite(source):
        return f"holds numbers too large for {target.dtype}: choose dtype=bfloat16 or float32"
    return "holds NaN or infinite numbers: the file is damaged or its training diverged"


def _all_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite, without a temporary of the tensor's size."""
    if not tensor.numel():
        return True
    values = tensor.float() if tensor.element_size() == 1 else tensor  # float8 has no aminmax
    return bool(torch.stack(torch.aminmax(values)).isfinite().all())


def _is_constant(name: str) -> bool:
    """Return whether `name` is the frequencies of a rotary embedding, which follow from the config."""
    return name.rpartition(".")[2] == "freqs"


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _times(shape: Shape) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
