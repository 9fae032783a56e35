"""Makes a model of the transformers library from its config or from a local folder, and takes no half of either.

The library keeps going where a config key is misspelt or where a folder lacks weights (it draws random ones and logs
a line); a number measured on such a model would be another model's number.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn


def make_model(kind: Any, folder: str | None, config: Mapping[str, Any], **options: Any) -> nn.Module:
    """Return a `kind` (a PreTrainedModel class) with random weights, or with those of `folder` in fp32 or narrower.

    Args:
        kind: the model's class.
        folder: made by save_pretrained; its own config rules and `config` is left aside. None: random weights.
        config: keys of the model's config.
        options: keys that hold in both cases, `attn_implementation` for example.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: a config key that the model does not have, or a folder that lacks some of the model's weights.

    """
    return _random(kind, {**config, **options}) if folder is None else _loaded(kind, folder, options)


def existing(folder: str) -> str:
    """Return `folder`.

    Raises:
        FileNotFoundError: it does not exist.

    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"folder {folder!r} does not exist: name one saved with save_pretrained")
    return folder


def _random(kind: Any, config: Mapping[str, Any]) -> nn.Module:
    known = kind.config_class()
    for key in config:
        if not hasattr(known, key) and key != "attn_implementation":
            near = difflib.get_close_matches(key, vars(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{kind.config_class.__name__} has no key {key!r}{hint}")
    return kind(kind.config_class(**config))


def _loaded(kind: Any, folder: str, options: Mapping[str, Any]) -> nn.Module:
    model, found = kind.from_pretrained(existing(folder), local_files_only=True, output_loading_info=True, **options)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"folder {folder!r} holds no whole {kind.__name__}: {len(missing)} of its weights are missing, "
            f"{missing[0]} for example; name a folder saved from that class"
        )
    return model
