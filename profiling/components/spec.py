"""What a user asks for: a component, and the settings of a run. Plain data, checked where it enters; free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from profiling.errors import InputError, did_you_mean

SCALES = ("auto", "full", "tiny")


CHECKPOINTS = ("auto", "required", "random")  # auto: random weights where there is no checkpoint


CEILINGS = ("auto", "off")  # off: no bandwidth, no rate, and so no floors


COMPILE_CACHES = ("fresh", "shared")  # fresh: every cell compiles from nothing, so that prepare times compare


DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ComponentSpec:
    """A component's YAML.

    `module` names a `_target_` (class or factory) and its arguments; `inputs` names one that makes inputs, or holds a
    spec for each argument of `forward`. `tiny` holds what changes in both at scale tiny. `part` is the half of an
    autoencoder to take from a checkpoint. `sweep` is what a shape sweep goes through where nothing else is asked for:
    an `axis` of the inputs and its `values`; `point` is where on it this one stands, and `extra_inputs` holds
    the `inputs` and `tiny` of further points that a step is prepared for as well.
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
        """Check what every later step relies on."""
        where = f"component.{self.key}"
        if "_target_" not in self.module:
            raise InputError(f"{where}.module names no _target_. Add one: _target_: package.module.ClassOrFactory")
        if not self.inputs:
            raise InputError(f"{where}.inputs is empty. Give each argument of forward a shape, or a _target_.")
        if unknown := set(self.tiny) - {"module", "inputs", "frames_per_call"}:
            raise InputError(f"{where}.tiny.{min(unknown)} is unknown: tiny holds module, inputs, frames_per_call.")
        for owner, frames in ((where, self.frames_per_call), (f"{where}.tiny", self.tiny.get("frames_per_call", 1))):
            if isinstance(frames, bool) or not isinstance(frames, int) or frames < 1:
                raise InputError(f"{owner}.frames_per_call={frames!r}: a whole number, at least 1.")
        if {"frames", "batch"} & set(self.tiny.get("inputs", {})) and "frames_per_call" not in self.tiny:
            raise InputError(f"{where}.tiny.inputs changes how many frames a call makes: add tiny.frames_per_call too.")
        if self.kind not in (None, "image", "audio"):
            raise InputError(f"{where}.kind={self.kind!r}: one of image, audio, null.")

    @property
    def key(self) -> str:
        """The component's name in the config, which the points of its sweep share."""
        return self.name.partition("@")[0]

    def at(self, scale: str) -> ComponentSpec:
        """Return the spec with the changes of `scale` folded in."""
        if scale != "tiny" or not self.tiny:
            return self
        extra_inputs = tuple(
            {"inputs": _merged(other["inputs"], other.get("tiny", {}).get("inputs", {}))} for other in self.extra_inputs
        )
        return ComponentSpec(
            **{
                **asdict(self),
                "extra_inputs": extra_inputs,
                "module": {**self.module, **self.tiny.get("module", {})},
                "inputs": _merged(self.inputs, self.tiny.get("inputs", {})),
                "frames_per_call": self.tiny.get("frames_per_call", self.frames_per_call),
                "tiny": {},
            }
        )


@dataclass(frozen=True)
class Settings:
    """What holds for every cell of a run, as the user gave it (auto) or as it was resolved."""

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
        """Check the values that need no device to be checked."""
        _one_of("dtype", self.dtype, ("auto", *DTYPES))
        _one_of("scale", self.scale, SCALES)
        _one_of("checkpoint", self.checkpoint, CHECKPOINTS)
        _one_of("compile_cache", self.compile_cache, COMPILE_CACHES)
        _one_of("ceilings", self.ceilings, CEILINGS)
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads={self.threads}: at least 1, or null for one a core.")
        if self.seed < 0:
            raise InputError(f"seed={self.seed}: 0 or more.")


def _one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise InputError(f"{name}={value} is none of {', '.join(options)}.{did_you_mean(value, options)}")


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
