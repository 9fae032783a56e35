"""Loads a folder that `save_pretrained` of transformers or diffusers wrote: safetensors, in one file or in shards.

The network is the one that the component's YAML describes; the folder gives the weights. Names match those of the
module, or those of the library's model inside a wrapper (`self.model = ...`). Each tensor is copied as it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from profiling.components.checkpoint_file import copy_checked, describe_mismatch
from profiling.errors import InputError

#: Names that the two libraries give; variants beside them (`model.fp16.safetensors`) are copies in another dtype.
USUAL_NAMES = ("model", "diffusion_pytorch_model")
#: Keys of a config that do not change a forward pass.
_NO_EFFECT = {
    *("architectures", "dtype", "torch_dtype", "transformers_version", "model_type"),
    *("initializer_range", "use_cache", "sample_size", "force_upcast"),
}
_SHOWN = 3


def load_folder_into(module: nn.Module, folder: Path) -> None:
    """Copy a folder's weights into `module`, on its device and in its dtype, and run its load hooks.

    Every tensor of the module must be in the folder with its shape. A tied weight may be saved once, and the folder may
    hold whole parts that the module lacks (the encoder of an autoencoder whose decoder is measured).

    Raises:
        InputError: the folder holds no safetensors, a shard is missing or damaged, a tensor is missing, unexpected,
            mis-shaped, NaN or too large for the module's dtype, or `config.json` describes another network.

    """
    shards = _shards(folder)
    targets = {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    shapes = {name: tuple(shape) for file in shards for name, shape in _shapes_in(file).items()}
    prefix = _prefix(targets, shapes)
    wanted = {name.removeprefix(prefix): target for name, target in targets.items()}
    _check_config(module, prefix, folder)
    places = {target.data_ptr() for name, target in wanted.items() if name in shapes}
    tied = [name for name, target in wanted.items() if name not in shapes and target.data_ptr() in places]
    parts = {name.partition(".")[0] for name in wanted}
    needed = {name: shape for name, shape in shapes.items() if name.partition(".")[0] in parts}
    if mismatch := describe_mismatch({name: tuple(t.shape) for name, t in wanted.items()}, needed, tied):
        raise InputError(
            f"checkpoint '{folder}' does not fit {type(module).__name__}: {mismatch}. Correct the component's module "
            "to match the folder's config.json"
        )
    for file in shards:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                if name not in needed:
                    continue
                if problem := copy_checked(wanted[name].data, tensors.get_tensor(name)):
                    raise InputError(f"checkpoint '{file}': '{name}' {problem}")
    module.load_state_dict(module.state_dict(), strict=True)  # copies nothing; runs the load hooks


def _shards(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the folder's weights."""
    where = f"checkpoint '{folder}'"
    if (folder / "model_index.json").is_file():
        parts = sorted(path.name for path in folder.iterdir() if (path / "config.json").is_file())
        raise InputError(f"{where} holds a pipeline: name one of its folders ({', '.join(parts)})")
    if indexes := _usual(folder.glob("*.safetensors.index.json"), ".safetensors.index.json"):
        files = _read_json(indexes[0]).get("weight_map")
        if not isinstance(files, Mapping) or not files:
            raise InputError(f"{where}: {indexes[0].name} has no weight_map: download it again")
        names = sorted({str(name) for name in files.values()})
        shards = [folder / name for name in names if Path(name).name == name]
        if missing := [name for name in names if not (folder / name).is_file() or Path(name).name != name]:
            raise InputError(f"{where} lacks {len(missing)} of its {len(names)} shards ({', '.join(missing[:_SHOWN])})")
        return shards
    if files := _usual(folder.glob("*.safetensors"), ".safetensors"):
        return files[:1]
    hint = ": it holds .bin files; save it again with save_pretrained" if any(folder.glob("*.bin")) else ""
    raise InputError(f"{where} holds no safetensors{hint}")


def _usual(files: Iterable[Path], ending: str) -> list[Path]:
    """Return the files with the libraries' own names first; several without such a name are an error."""
    by_name = {path.name.removesuffix(ending): path for path in sorted(files)}
    if usual := [by_name[name] for name in USUAL_NAMES if name in by_name]:
        return usual
    if len(by_name) > 1:
        some = ", ".join(path.name for path in list(by_name.values())[:_SHOWN])
        raise InputError(f"checkpoint '{next(iter(by_name.values())).parent}' holds several ({some}): name the file")
    return list(by_name.values())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError(f"checkpoint '{path}' is not readable JSON: download it again")
    return content


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except Exception as error:  # its own SafetensorError, but also OSError, TypeError and ValueError
        raise InputError(f"checkpoint '{file}' is damaged or cut short: download or copy it again") from error


def _shapes_in(file: Path) -> dict[str, list[int]]:
    with _opened(file) as tensors:
        return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 (not a dict)


def _prefix(wanted: Iterable[str], present: Iterable[str]) -> str:
    """Return the prefix of the module's names under which most of them are in the folder: "" or a wrapper's name."""
    wanted, present = list(wanted), set(present)
    prefixes, common = [""], ""
    while wanted and (part := wanted[0][len(common) :].partition(".")[0]):
        common += part + "."
        if not all(name.startswith(common) for name in wanted):
            break
        prefixes.append(common)
    return max(prefixes, key=lambda prefix: sum(name.removeprefix(prefix) in present for name in wanted))


def _check_config(module: nn.Module, prefix: str, folder: Path) -> None:
    """Compare the folder's config.json with the model's `config`: equal shapes alone do not make an equal network."""
    config: Any = getattr(module.get_submodule(prefix.rstrip(".")), "config", None)
    if config is None or not (folder / "config.json").is_file():
        return
    theirs: Any = _read_json(folder / "config.json")
    if hasattr(config, "to_dict"):  # transformers; read as the library does, since old files have other names
        try:
            theirs, config = type(config).from_dict(theirs).to_dict(), config.to_dict()
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"checkpoint '{folder}': config.json is refused by {type(config).__name__}: {reason}"
            ) from None
    theirs, ours = _effective(theirs), _effective(dict(config))
    different = [
        f"{key}: {theirs[key]} there, {ours[key]} here"
        for key in sorted(theirs.keys() & ours.keys())
        if theirs[key] != ours[key]
    ]
    if different:
        raise InputError(
            f"checkpoint '{folder}' has another config.json ({'; '.join(different[:_SHOWN])}): correct the component's "
            "module, or take config and weights from the folder if its factory has an argument `folder`"
        )


def _effective(value: Any) -> Any:
    """Return a config's value without the keys that have no effect, and with tuples as lists, as JSON has them."""
    if isinstance(value, Mapping):
        kept = (key for key in map(str, value) if key not in _NO_EFFECT and not key.startswith("_"))
        return {key: _effective(value.get(key)) for key in kept if not key.endswith(("_token_id", "dropout"))}
    return [_effective(item) for item in value] if isinstance(value, list | tuple) else value
