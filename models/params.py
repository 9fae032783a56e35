"""Base of the networks' parameter dataclasses: reads a published config and checks it."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Self


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def require_positive(params: object, *names: str) -> None:
    """Raise ValueError unless every named attribute of `params` is an integer of at least 1."""
    for name in names:
        value = getattr(params, name)
        require(
            isinstance(value, int) and not isinstance(value, bool) and value >= 1,
            f"{type(params).__name__}.{name} must be an integer of at least 1, not {value!r}",
        )


#: Keys of published configs that do not change the forward pass, or that allow only one value here.
OTHER_KEYS = ("model_id", "cfg_prob", "checkpoint_grads", "eq", "noise_decoder_inputs", "patch_size", "causal")


@dataclasses.dataclass(frozen=True)
class Params:
    """Base of the networks' parameters."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *others: "type[Params]") -> Self:
        """Read a published config, whose other keys are fields of `others` or do not change the forward pass.

        Raises:
            ValueError: a field is missing, a key is unknown (the nearest name is given), or a value is not supported.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, field in fields.items():
            if name not in config and field.default is dataclasses.MISSING:
                near = difflib.get_close_matches(name, [key for key in config if key not in fields], n=1)
                hint = f"; is {near[0]!r} a misspelling of it?" if near else ""
                raise ValueError(f"the config of {cls.__name__} lacks {name!r}{hint}")
        known = [*(field.name for kind in (cls, *others) for field in dataclasses.fields(kind)), *OTHER_KEYS]
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f". There are {', '.join(known)}"
                raise ValueError(f"{cls.__name__} has no key {key!r}{hint}")
        patch_size = config.get("patch_size", 1)
        require(patch_size == 1, f"patch_size must be 1 (a latent pixel is a token), not {patch_size!r}")
        require(not config.get("causal"), "causal must be false: a causal network is another network, not implemented")
        return cls(**{name: config[name] for name in fields if name in config})
