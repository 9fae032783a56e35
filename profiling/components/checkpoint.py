"""Loads a checkpoint into a module: a file (.pt, .pth, .safetensors), or a folder that `save_pretrained` wrote.

Nothing in a file runs, its weights are memory-mapped, and all names and shapes must match. Training wraps modules, and
each wrapper adds to the names in the file. Accepted: a plain state dict, `{"ema": {...}}` (only its `ema_model` part is
read) and `{"model": {...}}`; `_orig_mod` anywhere (torch.compile); a prefix that all names share (`module.`, `core.`).
The module, too, may wrap the network of the file (`self.model = ...`).
"""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from profiling.errors import InputError, did_you_mean, reason_of

Shape = tuple[int, ...]
#: Names that transformers and diffusers give; variants beside them (`model.fp16.safetensors`) have another dtype.
_USUAL_NAMES = ("model", "diffusion_pytorch_model")
#: Keys of a config that do not change a forward pass.
_NO_EFFECT = {
    *("architectures", "dtype", "torch_dtype", "transformers_version", "model_type"),
    *("initializer_range", "use_cache", "sample_size", "force_upcast"),
}


@torch.no_grad()
def load_into(module: nn.Module, path: Path, *, part: str | None = None, published_for: Collection[str] = ()) -> None:
    """Copy a checkpoint's weights into `module`, on its device and in its dtype, and run its load hooks.

    `part` ("decoder" or "encoder") selects one half of an autoencoder's file. `published_for` are other components that
    the file was published for, which the error names if it does not fit. All names must match, with these exceptions:
    a tied weight may be saved once, `freqs` buffers may be absent, since they follow from the config, and a folder may
    hold whole parts that the module lacks (the encoder of an autoencoder whose decoder is measured).

    Raises InputError for a file that is missing, damaged, not a state dict, of another network, or that would run code
    (none is run), and for weights that are NaN, infinite or too large for the module's dtype (some of the module's
    weights are then overwritten already).
    """
    tensors = read(path)
    targets = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    wanted, present = _shapes(targets), _shapes(tensors)
    addresses = {name: target.data_ptr() for name, target in targets.items()}
    try:
        names, mismatch = _match(wanted, present, addresses, part, whole=not path.is_dir())
        if problem := ". ".join(filter(None, (mismatch, _config_difference(module, path)))):
            owners = " or ".join(f"component={name}" for name in published_for)
            hint = f". The file was published for {owners}" if owners else ""
            raise InputError(f"does not fit {type(module).__name__}: {problem}{hint}")
        for name, stored in names.items():
            if problem := _copy(targets[name], tensors[stored]):
                raise InputError(f"holds '{name}', which {problem}")
    except InputError as error:
        raise InputError(f"checkpoint '{path}' {error}") from None
    module.load_state_dict(module.state_dict())  # copies nothing, the tensors are the module's own; runs the load hooks


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file or folder, without what containers and torch.compile add to their names.

    The tensors are on the CPU and memory-mapped, except those of PyTorch's legacy format.
    Raises InputError, in one line, for anything that is not a state dict.
    """
    try:
        files = _shards(path) if path.is_dir() else [path]
        return {name: tensor for file in files for name, tensor in _plain(_load(file)).items()}
    except InputError as error:
        raise InputError(f"checkpoint '{path}' {error}") from None
    except OSError as error:
        raise InputError(f"checkpoint '{path}' cannot be read: {error.strerror or error}") from None


def _load(path: Path) -> Any:
    """Return what a file holds. Raises InputError, or OSError where it cannot be opened."""
    if not path.is_file():  # reading a pipe or a device would never end
        siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"does not exist, or is not a regular file.{did_you_mean(path.name, siblings)}")
    with path.open("rb") as file:
        head = file.read(9)
    try:
        if head[8:] == b"{":  # the header of safetensors, after its length
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of damaged bytes before it raises
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # damaged bytes raise anything: KeyError, EOFError, RuntimeError, MemoryError, …
        if called := re.search(r"GLOBAL (\w+(?:\.\w+)+)\s", str(error)):
            problem = f"would call {called[1]} when it is loaded, and is refused: save its state dict alone"
        else:
            problem = f"is damaged, cut short or not a checkpoint ('{path.name}'): download or copy it again"
        raise InputError(problem) from None


def _plain(content: Any) -> dict[str, Tensor]:
    """Return the state dict in a file's content, its averaged weights if it has some."""
    for container in ("ema", "model"):  # a file with both: the averaged weights (ema) are the published ones
        if isinstance(content, Mapping) and isinstance(content.get(container), Mapping):
            content = content[container]
            break
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"holds no state dict (names and their tensors), but a {type(content).__name__}")
    entries = {re.sub(r"(?<![^.])_orig_mod\.", "", str(name)): value for name, value in content.items()}
    if len(entries) < len(content):
        raise InputError("holds a name twice, with and without '_orig_mod'")
    averaged = {name: value for name, value in entries.items() if name.startswith("ema_model.")}
    for name, value in (averaged or entries).items():  # the others are counters and the weights before averaging
        if not isinstance(value, Tensor):
            raise InputError(
                f"is not a state dict: its entry '{name}' is a {type(value).__name__}, not a tensor "
                "(expected: a state dict, or one under 'ema' or 'model')"
            )
    return averaged or entries


def _match(
    wanted: Mapping[str, Shape],
    present: Mapping[str, Shape],
    addresses: Mapping[str, int] | None = None,
    part: str | None = None,
    whole: bool = True,
) -> tuple[dict[str, str], str]:
    """Match the tensors of a network (`wanted`) with those of a checkpoint (`present`).

    Returns, by the network's name, the names of those that are in the checkpoint; and what does not fit, e.g.
    `2 missing (a; b), 1 mis-shaped (c: file 3x4, network 4x4)`, or "". Tensors with equal `addresses` are tied. Unless
    the `whole` checkpoint must fit, it may have top-level modules that the network lacks.
    """
    present = _half(present, part) if part else present
    candidates = [{name: name.removeprefix(prefix) for name in wanted} for prefix in _common_prefixes(wanted)]
    candidates += [{name: prefix + name for name in wanted} for prefix in _common_prefixes(present)]
    names = max(candidates, key=lambda names: len(present.keys() & names.values()))
    found = {name: stored for name, stored in names.items() if stored in present}
    tied = {(addresses or {}).get(name, name) for name in found}
    modules, expected = {stored.partition(".")[0] for stored in names.values()}, set(names.values())
    groups = {
        "missing": [
            name
            for name in wanted
            if (addresses or {}).get(name, name) not in tied and not (name == "freqs" or name.endswith(".freqs"))
        ],
        "unexpected": [
            name for name in present if name not in expected and (whole or name.partition(".")[0] in modules)
        ],
        "mis-shaped": [
            f"{name}: file {_times(present[stored])}, network {_times(wanted[name])}"
            for name, stored in found.items()
            if tuple(present[stored]) != tuple(wanted[name])
        ],
    }
    return found, ", ".join(f"{len(some)} {what} ({_first(some)})" for what, some in groups.items() if some)


def _half(present: Mapping[str, Shape], part: str) -> Mapping[str, Shape]:
    """Return one half of an autoencoder. A file with neither half's prefix is assumed to hold that half alone."""
    other = "encoder" if part == "decoder" else "decoder"
    for prefix in _common_prefixes(present):
        if half := {name: shape for name, shape in present.items() if name.startswith(f"{prefix}{part}.")}:
            return half
        if any(name.startswith(f"{prefix}{other}.") for name in present):
            raise InputError(f"holds no {part}, only the {other}")
    return present


def _common_prefixes(names: Collection[str]) -> list[str]:
    """Return "", and the names of modules that all `names` begin with: `a.`, `a.b.`."""
    first = next(iter(names), "")
    prefixes = (first[: dot.end()] for dot in re.finditer(r"\.", first))
    return ["", *(prefix for prefix in prefixes if all(name.startswith(prefix) for name in names))]


def _copy(target: Tensor, source: Tensor) -> str | None:
    """Copy one tensor in place; return its problem in words (another kind of dtype, NaN, too large), or None."""
    if source.is_floating_point() != target.is_floating_point() or source.layout != torch.strided:
        return f"is {source.layout} of {source.dtype}, and the network computes with {target.dtype}"
    source = source.to(target.device)  # in the stored dtype: the device converts faster, and host memory stays flat
    target.copy_(source)
    if not target.is_floating_point() or _all_finite(target):
        return None
    if _all_finite(source):
        return f"has numbers too large for {target.dtype}: choose dtype=bfloat16 or float32"
    return "has NaN or infinite numbers: the file is damaged or its training diverged"


def _all_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite, without a temporary of the tensor's size."""
    values = tensor.float() if tensor.element_size() == 1 else tensor  # float8 has no aminmax
    return not tensor.numel() or bool(torch.stack(torch.aminmax(values)).isfinite().all())


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _times(shape: Shape) -> str:
    return "x".join(str(size) for size in shape) or "scalar"


def _first(items: list[str]) -> str:
    return "; ".join([*items[:3], *["…"] * (len(items) > 3)])


def _shards(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the folder's weights."""
    if (folder / "model_index.json").is_file():
        parts = sorted(path.name for path in folder.iterdir() if (path / "config.json").is_file())
        raise InputError(f"holds a pipeline: name one of its folders ({', '.join(parts)})")
    for name in _USUAL_NAMES:
        if (index := folder / f"{name}.safetensors.index.json").is_file():
            shards = sorted({str(shard) for shard in dict(_read_json(index).get("weight_map") or {}).values()})
            # A name with a folder is not read: the index may come from somebody else.
            missing = [shard for shard in shards if Path(shard).name != shard or not (folder / shard).is_file()]
            if missing or not shards:
                raise InputError(f"lacks {len(missing)} of the {len(shards)} shards of its index ({_first(missing)})")
            return [folder / shard for shard in shards]
        if (file := folder / f"{name}.safetensors").is_file():
            return [file]
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        raise InputError(f"holds several files ({_first([file.name for file in files])}): name one")
    if not files:
        hint = ": it holds .bin files; save it again with save_pretrained" if any(folder.glob("*.bin")) else ""
        raise InputError(f"holds no safetensors{hint}")
    return files


def _config_difference(module: nn.Module, folder: Path) -> str:
    """Return where a folder's config.json differs from the model's: equal shapes alone do not make equal networks."""
    configs = (getattr(inner, "config", None) for inner in module.modules())
    ours: Any = next((config for config in configs if isinstance(config, Mapping) or hasattr(config, "to_dict")), None)
    if ours is None or not (folder / "config.json").is_file():
        return ""
    theirs: Any = _read_json(folder / "config.json")
    if hasattr(ours, "to_dict"):  # transformers; read as the library does, since old files have other names
        try:
            theirs, ours = type(ours).from_dict(theirs).to_dict(), ours.to_dict()
        except Exception as error:
            return f"Its config.json is refused by {type(ours).__name__}: {reason_of(error)}"
    theirs, ours = _effective(theirs), _effective(ours)
    other = [key for key in sorted(theirs.keys() & ours.keys()) if theirs[key] != ours[key]]
    differences = _first([f"{key}: {theirs[key]} there, {ours[key]} here" for key in other])
    remedy = "correct the component's module, or take both from the folder if its factory has an argument `folder`"
    return f"Its config.json differs ({differences}): {remedy}" if other else ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError(f"has a {path.name} that is not readable JSON: download it again")
    return content


def _effective(value: Any) -> Any:
    """Return a config's value without the keys that have no effect, and with tuples as lists, as JSON has them."""
    if isinstance(value, Mapping):
        kept = (key for key in map(str, value) if key not in _NO_EFFECT and not key.startswith("_"))
        return {key: _effective(value.get(key)) for key in kept if not key.endswith(("_token_id", "dropout"))}
    return [_effective(item) for item in value] if isinstance(value, list | tuple) else value
