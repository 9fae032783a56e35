"""The specs of components and the settings of a run: plain data without torch, checked when it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

import msgspec

from profiling.errors import InputError, check_choice, check_number, check_whole, did_you_mean

DTYPES = ("float32", "bfloat16", "float16")
SCALES = ("auto", "full", "tiny")
CHECKPOINTS = ("auto", "required", "random")  # auto: random weights where there is no checkpoint
CEILINGS = ("auto", "off")  # off: bandwidth and FLOP rate are not measured, so there is no roofline
COMPILE_CACHES = ("fresh", "shared")  # fresh: each cell compiles from an empty cache, so that prepare times compare
MOST_THREADS = 4096  # starting more fails or takes the machine down


#: Distributions of an input.
DISTRIBUTIONS = ("normal", "uniform", "integers", "bernoulli")
#: Most elements of an input (64 Gi, 128 GiB in a 16-bit dtype): no device has room for more.
MOST_ELEMENTS = 2**36
_KINDS = {
    **{"object": "a mapping", "array": "a list", "str": "text", "int": "a whole number", "float": "a number"},
    **{"bool": "true or false", "null": "null"},
}

Kind = TypeVar("Kind")


def decode(kind: type[Kind], node: Any, where: str) -> Kind:
    """Return the config node `where` as the dataclass `kind`, whose hints give the types of its values.

    Raises:
        InputError: the node is no mapping, or has an unknown key, a missing one, or a value of another type.

    """
    if not isinstance(node, Mapping):
        raise InputError(f"{where}={node!r} must be a mapping, with a key for each of its options.")
    known = [each.name for each in fields(kind)]  # pyright: ignore[reportArgumentType] - a dataclass
    for key in node:
        if key not in known:
            raise InputError(f"{where}.{key} is unknown: there are {', '.join(known)}.{did_you_mean(str(key), known)}")
    try:
        return msgspec.convert(dict(node), kind)
    except msgspec.ValidationError as error:
        raise wrong_type(error, where) from None


def wrong_type(error: msgspec.ValidationError, where: str) -> InputError:
    """Return the error of a value of another type than its hint, in words and with the key's dotted path."""
    reason, _, path = str(error).partition(" - at `$")
    if types := re.fullmatch(r"Expected `(.*)`, got `(.*)`", reason):
        reason = f"must be {_in_words(types[1])}, not {_in_words(types[2])}"
    return InputError(f"{where}{path.rstrip('`')} {reason}. Correct the YAML, or the command line.")


def decode_options(kind: type[Kind], node: Any, where: str) -> Kind:
    """Decode the options of a target, whose node also names their class as `_target_`."""
    options = {key: value for key, value in node.items() if key != "_target_"} if isinstance(node, Mapping) else node
    return decode(kind, options, where)


def _in_words(types: str) -> str:
    return " or ".join(_KINDS.get(kind, kind) for kind in types.split(" | "))


def check_target(node: Any, where: str) -> None:
    """Raise an InputError unless the node is a mapping with a `_target_`, the dotted path of a class or function."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise InputError(f"{where} has no _target_. Add one: _target_: package.module.ClassOrFunction")
    if not isinstance(node["_target_"], str) or not node["_target_"].strip():
        raise InputError(
            f"{where}._target_={node['_target_']!r} must be the dotted path of a class or function, "
            "package.module.ClassOrFunction for example."
        )


@dataclass(frozen=True)
class InputSpec:
    """One input: `normal` (mean 0, std 1), `uniform` or `integers` in [low, high), `bernoulli` (0 or 1, half each).

    `dtype` auto is the run's dtype; an explicit one ("int64", "float32") does not depend on it.
    """

    shape: tuple[int, ...]
    dtype: str = "auto"
    distribution: str = "normal"
    low: float = 0.0
    high: float = 1.0

    @classmethod
    def of(cls, node: Any, where: str) -> InputSpec:
        """Read the node of an input.

        Raises:
            InputError: an unknown key, a value of another type, an invalid shape, distribution or range.

        """
        if not isinstance(node, Mapping) or "shape" not in node:
            raise InputError(f"{where} has no shape. Write it as {{shape: [1, 3, 224, 224], distribution: normal}}.")
        spec = decode(cls, node, where)
        shape = list(spec.shape)
        if any(size < 1 for size in shape):
            raise InputError(f"{where}.shape={shape} must be positive integers, [1, 3, 224, 224] for example.")
        if math.prod(shape) > MOST_ELEMENTS:
            raise InputError(f"{where}.shape={shape} has more than {MOST_ELEMENTS:,} elements. Choose a smaller one.")
        check_choice(f"{where}.distribution", spec.distribution, DISTRIBUTIONS)
        for name in ("low", "high"):
            check_number(f"{where}.{name}", getattr(spec, name))
        low, high = (int(spec.low), int(spec.high)) if spec.distribution == "integers" else (spec.low, spec.high)
        if spec.distribution in ("uniform", "integers") and not -(2**63) <= low < high < 2**63:
            raise InputError(f"{where}: high={spec.high} must be above low={spec.low}, and both within 64 bits.")
        return spec


def input_specs(node: Mapping[str, Any], component: str) -> dict[str, InputSpec]:
    """Read the `inputs` of a component that are given as shapes, by argument.

    Raises:
        InputError: an unknown key, a value of another type, an invalid shape, distribution or range.

    """
    return {name: InputSpec.of(spec, f"component.{component}.inputs.{name}") for name, spec in node.items()}


@dataclass(frozen=True)
class Tiny:
    """Changes of a component at scale tiny."""

    module: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    frames_per_call: int | None = None


@dataclass(frozen=True)
class Sweep:
    """The axis of a shape sweep, and its values."""

    axis: str = "batch"
    values: tuple[int, ...] | int = (1, 2, 4, 8)


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
        check_target(self.module, f"{where}.module")
        if self.initialise is not None:
            check_target(self.initialise, f"{where}.initialise")
        if not self.inputs:
            raise InputError(f"{where}.inputs is empty. Give each argument of forward a shape, or inputs a _target_.")
        if "_target_" in self.inputs:
            check_target(self.inputs, f"{where}.inputs")
        else:
            input_specs(self.inputs, self.key)
        tiny = decode(Tiny, self.tiny, f"{where}.tiny")
        if self.sweep is not None:
            decode(Sweep, self.sweep, f"{where}.sweep")
        check_whole(f"{where}.frames_per_call", self.frames_per_call)
        if tiny.frames_per_call is not None:
            check_whole(f"{where}.tiny.frames_per_call", tiny.frames_per_call)
        elif {"frames", "batch"} & set(tiny.inputs):
            raise InputError(f"{where}.tiny.inputs changes how many frames a call makes: add tiny.frames_per_call too.")
        if self.kind not in (None, "image", "audio"):
            raise InputError(f"{where}.kind={self.kind!r} must be image, audio or null.")
        self.at("tiny")  # checks what the changes make of module and inputs

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
            frames_per_call=self.tiny.get("frames_per_call") or self.frames_per_call,
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
    memory_snapshot: bool = False
    check: bool = False

    def __post_init__(self) -> None:
        """Check the values that can be checked without a device."""
        check_choice("dtype", self.dtype, ("auto", *DTYPES))
        check_choice("scale", self.scale, SCALES)
        check_choice("checkpoint", self.checkpoint, CHECKPOINTS)
        check_choice("compile_cache", self.compile_cache, COMPILE_CACHES)
        check_choice("ceilings", self.ceilings, CEILINGS)
        if self.threads is not None:
            check_whole("threads", self.threads, most=MOST_THREADS)
        check_whole("seed", self.seed, least=0, most=2**32 - 1)  # numpy takes no larger one


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `change`; a mapping in both is merged key by key, one level deep."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
