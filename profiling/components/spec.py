"""The specs of components and the settings of a run: plain data without torch, checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from profiling.errors import InputError, check_choice, check_whole

DTYPES = ("float32", "bfloat16", "float16")
SCALES = ("auto", "full", "tiny")
CHECKPOINTS = ("auto", "required", "random")  # auto: random weights where there is no checkpoint
CEILINGS = ("auto", "off")  # off: bandwidth and FLOP rate are not measured, so there is no roofline
COMPILE_CACHES = ("fresh", "shared")  # fresh: each cell compiles from an empty cache, so that prepare times compare


@dataclass(frozen=True)
class ComponentSpec:
    """A component's YAML.

    `module` has a `_target_` (class or factory) and its arguments. `inputs` has a `_target_` that makes the inputs, or
    an input spec for each argument of `forward`. `tiny` holds the changes to `module` and `inputs` at scale tiny.
    `part` ("decoder" or "encoder") is the half of an autoencoder's checkpoint to load.

    For a shape sweep: `sweep` is the default `axis` and its `values`; `point` is the component, axis and value of this
    point; `extra_inputs` holds `inputs` and `tiny` of the other points that a step is prepared for.
    """

    name: str
    module: Mapping[str, Any]
    inputs: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)
    initialise: Mapping[str, Any] | None = None
    checkpoint: str | None = None
    part: str | None = None
    frames_per_call: int = 1
    kind: Literal["image", "audio"] | None = None
    sweep: Mapping[str, Any] | None = None
    point: Mapping[str, Any] | None = None
    extra_inputs: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Check the values that can be checked without building the module."""
        where = f"component.{self.key}"
        if "_target_" not in self.module:
            raise InputError(f"{where}.module has no _target_. Add one: _target_: package.module.ClassOrFactory")
        if not self.inputs:
            raise InputError(f"{where}.inputs is empty. Give each argument of forward a shape, or inputs a _target_.")
        if unknown := set(self.tiny) - {"module", "inputs", "frames_per_call"}:
            raise InputError(f"{where}.tiny.{min(unknown)} is unknown: tiny holds module, inputs, frames_per_call.")
        for owner, frames in ((where, self.frames_per_call), (f"{where}.tiny", self.tiny.get("frames_per_call", 1))):
            check_whole(f"{owner}.frames_per_call", frames)
        if {"frames", "batch"} & set(self.tiny.get("inputs", {})) and "frames_per_call" not in self.tiny:
            raise InputError(f"{where}.tiny.inputs changes how many frames a call makes: add tiny.frames_per_call too.")
        if self.kind not in (None, "image", "audio"):
            raise InputError(f"{where}.kind={self.kind!r} must be image, audio or null.")

    @property
    def key(self) -> str:
        """The component's name in the config, which the points of its sweep share."""
        return self.name.partition("@")[0]

    def at(self, scale: str) -> ComponentSpec:
        """Return the spec with the changes of `scale` applied."""
        if scale != "tiny" or not self.tiny:
            return self
        extra_inputs = tuple(
            {"inputs": _merged(extra["inputs"], extra.get("tiny", {}).get("inputs", {}))} for extra in self.extra_inputs
        )
        return replace(
            self,
            extra_inputs=extra_inputs,
            module={**self.module, **self.tiny.get("module", {})},
            inputs=_merged(self.inputs, self.tiny.get("inputs", {})),
            frames_per_call=self.tiny.get("frames_per_call", self.frames_per_call),
            tiny={},
        )


@dataclass(frozen=True)
class Settings:
    """The settings of every cell of a run: as given by the user (maybe `auto`), or resolved by the probe."""

    device: str = "auto"
    dtype: str = "auto"
    scale: str = "auto"
    checkpoint: str = "auto"
    compile_cache: str = "fresh"
    seed: int = 0
    threads: int | None = None
    tf32: bool = False
    ceilings: str = "auto"
    trace: bool = False
    stacks: bool = False

    def __post_init__(self) -> None:
        """Check the values that can be checked without a device."""
        check_choice("dtype", self.dtype, ("auto", *DTYPES))
        check_choice("scale", self.scale, SCALES)
        check_choice("checkpoint", self.checkpoint, CHECKPOINTS)
        check_choice("compile_cache", self.compile_cache, COMPILE_CACHES)
        check_choice("ceilings", self.ceilings, CEILINGS)
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads={self.threads} must be at least 1, or null for one per core.")
        if self.seed < 0:
            raise InputError(f"seed={self.seed} must be 0 or more.")


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `change`; a mapping in both is merged key by key, one level deep."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
