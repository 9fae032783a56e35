"""The specs of components and the settings of a run: plain data without torch, checked when it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from profiling.errors import InputError, check_choice, check_number, check_whole, did_you_mean
from profiling.results.measured import LATE

DTYPES = ("float32", "bfloat16", "float16")
SCALES = ("auto", "full", "tiny")
CASTS = ("module", "autocast", "none")
CHECKPOINTS = ("auto", "required", "random")  # auto: random weights where there is no checkpoint
STATES = ("snapshot", "reset", "none")
CEILINGS = ("auto", "off")  # off: bandwidth and FLOP rate are not measured, so there is no roofline
COMPILE_CACHES = ("fresh", "cold", "shared")  # where compiled code comes from: see profiling.run.compile_caches
#: Environment variable with the folder of packages compiled ahead of time that cells of a run share.
PACKAGES_FOLDER = "PROFILING_PACKAGES"
MOST_THREADS = 4096  # starting more fails or takes the machine down


#: Distributions of an input.
DISTRIBUTIONS = ("normal", "uniform", "integers", "bernoulli")
#: Dtypes of an input by their names in torch: floating ones (auto: the run's), and the range of each integer dtype.
FLOATING = (
    *("auto", "float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("complex64", "complex128"),
)
INTEGERS = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
}
#: Most elements of an input (64 Gi, 128 GiB in a 16-bit dtype): no device has room for more.
MOST_ELEMENTS = 2**36
_KINDS = {
    **{"object": "a mapping", "array": "a list", "str": "text", "int": "a whole number", "float": "a number"},
    **{"bool": "true or false", "null": "null"},
}

Kind = TypeVar("Kind")


def decode(kind: type[Kind], node: Any, where: str, hidden: Collection[str] = ()) -> Kind:
    """Return the config node `where` as the dataclass `kind`, whose hints give the types of its values.

    `hidden` are fields that no config has, which an error does not offer.

    Raises:
        InputError: the node is no mapping, or has an unknown key, a missing one, or a value of another type.

    """
    if not isinstance(node, Mapping):
        raise InputError(f"{where}={node!r} must be a mapping, with a key for each of its options.")
    known = [each.name for each in fields(kind)]  # pyright: ignore[reportArgumentType] - a dataclass
    for key in node:
        if key not in known:
            offered = [name for name in known if name not in hidden]
            near = did_you_mean(str(key), offered)
            raise InputError(f"{where}.{key} is unknown: there are {', '.join(offered)}.{near}")
    try:
        return msgspec.convert(dict(node), kind)
    except msgspec.ValidationError as error:
        raise wrong_type(error, where, node) from None


def wrong_type(error: msgspec.ValidationError, where: str, node: Any) -> InputError:
    """Return the error for a value in `node` that has another type than its hint; it has the value and its path."""
    reason, _, path = str(error).partition(" - at `$")
    if types := re.fullmatch(r"Expected `(.*)`, got `(.*)`", reason):
        reason = f"must be {_in_words(types[1])}, not {_in_words(types[2])}"
    key = f"{where}{path.rstrip('`')}".lstrip(".")  # without `where`, the keys of a run itself
    for name in path.rstrip("`").lstrip(".").split("."):
        node = node.get(name) if isinstance(node, Mapping) else node
    given = f"={node!r}" if isinstance(node, str | bool | int | float) else ""
    return InputError(f"{key}{given} {reason}. Correct the YAML, or the command line.")


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
    """An input tensor, drawn at random or of given values.

    `dtype` auto is the run's dtype; an explicit one ("int64", "float32") does not depend on it. `distribution` is
    `normal` (mean 0, std 1), `uniform` or `integers` in [low, high), or `bernoulli` (0 or 1, half each). Without one,
    integers are drawn as integers below `high`, bools as bernoulli, and floating values as uniform if `low` or `high`
    is given, else as normal. `value` is a number or nested lists of numbers that are repeated to the shape. `advance`
    is what each call adds to that: of a position.
    """

    shape: tuple[int, ...]
    dtype: str = "auto"
    distribution: str | None = None
    low: float | None = None
    high: float | None = None
    value: Any = None
    advance: int | None = None

    @classmethod
    def of(cls, node: Mapping[str, Any], where: str) -> InputSpec:
        """Read the node of an input tensor, and choose its distribution.

        Raises:
            InputError: an unknown key, a value of another type, an invalid shape or range, or a distribution, range or
                value that does not fit the dtype.

        """
        spec = decode(cls, node, where)
        shape = list(spec.shape)
        if any(size < 1 for size in shape):
            raise InputError(f"{where}.shape={shape} must be positive integers, [1, 3, 224, 224] for example.")
        if math.prod(shape) > MOST_ELEMENTS:
            raise InputError(f"{where}.shape={shape} has more than {MOST_ELEMENTS:,} elements. Choose a smaller one.")
        check_choice(f"{where}.dtype", spec.dtype, (*FLOATING, *INTEGERS, "bool"))
        if spec.advance is not None and (spec.value is None or spec.dtype not in INTEGERS):
            raise InputError(
                f"{where}.advance={spec.advance} is added by each call to a position, which has a value: write "
                f"{{shape: {shape}, dtype: int64, value: 0, advance: {spec.advance}}}."
            )
        if spec.value is not None:
            return spec._with_value(where)
        fits = ("bernoulli",) if spec.dtype == "bool" else ("integers", "bernoulli")
        fits = fits if spec.dtype in INTEGERS or spec.dtype == "bool" else DISTRIBUTIONS
        if spec.distribution is not None:
            check_choice(f"{where}.distribution", spec.distribution, DISTRIBUTIONS)
            if spec.distribution not in fits:
                raise InputError(
                    f"{where}: distribution={spec.distribution} does not fit dtype={spec.dtype}, which takes "
                    f"{' or '.join(fits)}. Write {_example(shape, spec.dtype)}."
                )
        ranged = spec.low is not None or spec.high is not None
        default = fits[0] if fits is not DISTRIBUTIONS else "uniform" if ranged else "normal"
        return replace(spec, distribution=spec.distribution or default)._with_range(where)

    def _with_range(self, where: str) -> InputSpec:
        draws_integers, example = self.distribution == "integers", _example(self.shape, self.dtype)
        for name in ("low", "high"):
            if (bound := getattr(self, name)) is None:
                continue
            check_number(f"{where}.{name}", bound)
            if not draws_integers and self.distribution != "uniform":
                why = f"{self.distribution} has no range. Leave {name} out, or write {example}."
                raise InputError(f"{where}.{name}={bound:g}: {why}")
            if draws_integers and bound != int(bound):
                raise InputError(f"{where}.{name}={bound:g} must be a whole number, to draw integers.")
        if draws_integers and self.high is None:
            raise InputError(
                f"{where} draws integers and has no high, the first number that is not drawn. Write {example}."
            )
        low, high = self.low or 0.0, 1.0 if self.high is None else self.high
        least, most = INTEGERS.get(self.dtype, (-(2**63), 2**63 - 1))
        if not least <= low < high <= most + 1:
            within = f"{self.dtype}, {least} to {most}" if self.dtype in INTEGERS else "64 bits"
            raise InputError(f"{where}: high={high:g} must be above low={low:g}, and both within {within}.")
        return replace(self, low=low, high=high)

    def _with_value(self, where: str) -> InputSpec:
        import numpy  # --help imports this module, and answers in less than a second

        for name in ("distribution", "low", "high"):
            if getattr(self, name) is not None:
                raise InputError(f"{where} has a value and {name}: nothing is drawn. Leave one of the two out.")
        try:
            numbers = numpy.asarray(self.value)
        except ValueError:
            raise InputError(
                f"{where}.value: lists in it have different lengths. Give lists of equal length, or a number."
            ) from None
        if numbers.dtype.kind not in "biuf" or not numbers.size:
            raise InputError(f"{where}.value: {self.value!r} is no number. Give a number, or nested lists of numbers.")
        try:
            numpy.broadcast_to(numbers, self.shape)
        except ValueError:
            sizes = f"{list(numbers.shape)} cannot be repeated to {list(self.shape)}"
            raise InputError(f"{where}.value of shape {sizes}.") from None
        least, most = (0, 1) if self.dtype == "bool" else INTEGERS.get(self.dtype, (-math.inf, math.inf))
        fits = (numbers >= least) & (numbers <= most)
        if self.dtype in INTEGERS or self.dtype == "bool":
            fits &= numbers == numpy.floor(numbers)
        if not fits.all():
            raise InputError(f"{where}.value: {numbers[~fits][0].item()!r} does not fit dtype={self.dtype}.")
        return self


def _example(shape: Sequence[int], dtype: str) -> str:
    """Return a spec of this dtype with a range, as it is written in YAML."""
    kind = "" if dtype == "auto" else f", dtype: {dtype}"
    high = min(1000, INTEGERS[dtype][1]) if dtype in INTEGERS else 1
    return f"{{shape: {list(shape)}{kind}{'' if dtype == 'bool' else f', low: 0, high: {high}'}}}"


@dataclass(frozen=True)
class InputFactory:
    """A mapping with a `_target_` inside `inputs`: a function that makes one argument, or a part of it."""

    node: Mapping[str, Any]
    where: str


def input_tree(node: Any, where: str) -> Any:
    """Read a node of `inputs`: dicts, lists, tuples at any depth; leaves are InputSpec, InputFactory or plain values.

    A mapping with `shape` is a tensor, one with `_target_` is a factory, one whose only key is `tuple` is a tuple, and
    any other one is a dict.

    Raises:
        InputError: a tensor's spec is wrong (see `InputSpec.of`), a mapping looks like one and has no shape, or a tuple
            is no list.

    """
    if isinstance(node, Mapping):
        if "_target_" in node:
            check_target(node, where)
            return InputFactory(node, where)
        if "shape" in node:
            return InputSpec.of(node, where)
        if list(node) == ["tuple"]:
            if not isinstance(node["tuple"], list | tuple):
                raise InputError(f"{where}.tuple={node['tuple']!r} must be a list: {{tuple: [64, 64]}} for example.")
            return tuple(input_tree(node["tuple"], where))
        if (near := _meant_as_tensor(node)) is not None:
            raise InputError(f"{where} has no shape.{near} Write it as {{shape: [1, 3, 224, 224], dtype: auto}}.")
        for key in node:
            if not isinstance(key, str):
                raise InputError(f"{where}: the key {key!r} must be text.")
        return {key: input_tree(each, f"{where}.{key}") for key, each in node.items()}
    if isinstance(node, list | tuple):
        return [input_tree(each, f"{where}.{place}") for place, each in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise InputError(f"{where} is a {type(node).__name__}. Give a shape, a number, text, true, false or null.")


def _meant_as_tensor(node: Mapping[str, Any]) -> str | None:
    """Return " Did you mean 'shape'?" or "" for a mapping that looks like a tensor's spec, None for any other one."""
    known = [each.name for each in fields(InputSpec)]
    if any(isinstance(value, Mapping) for value in node.values()):
        return None
    near = {str(key): get_close_matches(str(key), known, n=1) for key in node}
    lists = [str(key) for key, value in node.items() if isinstance(value, list)]
    shapes = [key for key in lists if get_close_matches(key, ["shape"], cutoff=0.75)]
    if not all(near.values()) or not (shapes or set(near) & {"dtype", "distribution", "low", "high"}):
        return None
    return f" Did you mean 'shape' by {shapes[0]!r}?" if shapes else ""


@dataclass(frozen=True)
class Tiny:
    """Changes of a component at scale tiny."""

    module: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    warmup_inputs: tuple[Mapping[str, Any], ...] | None = None
    frames_per_call: int | None = None


@dataclass(frozen=True)
class Sweep:
    """The axis of a shape sweep, and its values."""

    axis: str = "batch"
    values: tuple[int, ...] | int = (1, 2, 4, 8)


@dataclass(frozen=True)
class StateOptions:
    """How a component's state is treated.

    `policy` says how it is put back: from a snapshot, by the module's `reset()`, or not at all (`none`). `calls` is the
    number of calls of a trajectory, `warm_calls` that of the eager calls before it (default: until the structure of the
    state repeats, at most 4). `ignore` lists paths of state that outputs do not depend on, a counter for statistics.
    """

    policy: str = "snapshot"
    calls: int = 8
    warm_calls: int | None = None
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: Any, where: str) -> StateOptions:
        """Read the node of `state`: a policy, or a mapping.

        Raises:
            InputError: an unknown policy or key, or a number that is out of range.

        """
        options = decode(cls, node, where) if isinstance(node, Mapping) else cls(policy=str(node))
        check_choice(where if isinstance(node, str) else f"{where}.policy", options.policy, STATES)
        check_whole(f"{where}.calls", options.calls, most=1000)
        if options.warm_calls is not None:
            check_whole(f"{where}.warm_calls", options.warm_calls, least=0, most=1000)
        return options


@dataclass(frozen=True)
class ComponentSpec:
    """A component's YAML.

    `module` has a `_target_` (class or factory) and its arguments. `inputs` has a `_target_` that makes the inputs, or
    an entry for each argument of `forward` (see `input_tree`). `tiny` holds the changes to `module` and `inputs` at
    scale tiny; `scale` is "tiny" once they are applied.
    `part` ("decoder" or "encoder") is the half of an autoencoder's checkpoint to load. `pretrained` says where the
    module's factory loads weights from, which are then left as they are; null: it loads none. `cast` says how a call
    computes in the run's dtype: with weights cast to it (`module`; what the library keeps in float32 stays so), under
    torch.autocast (`autocast`), or not: the module stays as its factory built it (`none`). `state` is a policy, or a
    mapping (see `StateOptions`).

    `warmup_inputs` are the inputs of calls that come before all others: each entry holds what differs from `inputs`, or
    has a `_target_`. At scale tiny those of `tiny` take their place.

    For a shape sweep: `sweep` is the default `axis` and its `values`; `point` is the component, axis and value of this
    point; `extra_inputs` holds `inputs` and `tiny` of the other points that a step is prepared for.
    """

    name: str
    module: Mapping[str, Any]
    inputs: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)
    initialise: Mapping[str, Any] | None = None
    checkpoint: str | None = None
    pretrained: str | None = None
    part: str | None = None
    cast: str = "module"
    frames_per_call: int = 1
    kind: str | None = None
    warmup_inputs: tuple[Mapping[str, Any], ...] = ()
    state: Any = "snapshot"
    sweep: Mapping[str, Any] | None = None
    point: Mapping[str, Any] | None = None
    extra_inputs: tuple[Mapping[str, Any], ...] = ()
    scale: str = "full"

    def __post_init__(self) -> None:
        """Check the values that can be checked without building the module."""
        where = f"component.{self.key}"
        check_target(self.module, f"{where}.module")
        if self.initialise is not None:
            check_target(self.initialise, f"{where}.initialise")
        check_choice(f"{where}.cast", self.cast, CASTS)
        if not self.inputs:
            raise InputError(f"{where}.inputs is empty. Give each argument of forward a shape, or inputs a _target_.")
        input_tree(self.inputs, f"{where}.inputs")
        for number, node in enumerate(self.warmup_nodes()):
            input_tree(node, f"{where}.warmup_inputs[{number}]")
        tiny = decode(Tiny, self.tiny, f"{where}.tiny")
        if self.sweep is not None:
            decode(Sweep, self.sweep, f"{where}.sweep")
        check_whole(f"{where}.frames_per_call", self.frames_per_call, least=0)
        if tiny.frames_per_call is not None:
            check_whole(f"{where}.tiny.frames_per_call", tiny.frames_per_call, least=0)
        elif {"frames", "batch"} & set(tiny.inputs):
            raise InputError(f"{where}.tiny.inputs changes how many frames a call makes: add tiny.frames_per_call too.")
        if self.kind not in (None, "image", "audio"):
            raise InputError(f"{where}.kind={self.kind!r} must be image, audio or null.")
        StateOptions.of(self.state, f"{where}.state")
        self.at("tiny")  # checks what the changes make of module and inputs

    @property
    def key(self) -> str:
        """The component's name in the config, which the points of its sweep share."""
        return self.name.partition("@")[0]

    @property
    def state_options(self) -> StateOptions:
        """The options of `state`."""
        return StateOptions.of(self.state, f"component.{self.key}.state")

    def warmup_nodes(self) -> tuple[Mapping[str, Any], ...]:
        """Return the nodes of `warmup_inputs`, each like `inputs`."""
        nodes = self.warmup_inputs
        return tuple(dict(node) if "_target_" in node else _merged(self.inputs, node) for node in nodes)

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
            warmup_inputs=tuple(self.tiny.get("warmup_inputs") or self.warmup_inputs),
            frames_per_call=self.tiny.get("frames_per_call", self.frames_per_call),
            tiny={},
            scale="tiny",
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
    starts: bool = False
    counters: bool = False
    stacks: bool = False
    memory_snapshot: bool = False
    check: bool = False
    late: float | str = LATE  # a share, 0.001, or its percent, 0.1%

    def __post_init__(self) -> None:
        """Check the values that can be checked without a device."""
        check_choice("dtype", self.dtype, ("auto", *DTYPES))
        check_choice("scale", self.scale, SCALES)
        check_choice("checkpoint", self.checkpoint, CHECKPOINTS)
        check_choice("compile_cache", self.compile_cache, COMPILE_CACHES)
        check_choice("ceilings", self.ceilings, CEILINGS)
        if self.threads is not None:
            check_whole("threads", self.threads, most=MOST_THREADS)
        object.__setattr__(self, "late", _share("late", self.late))
        check_whole("seed", self.seed, least=0, most=2**32 - 1)  # numpy takes no larger one

    @property
    def late_share(self) -> float:
        """The share of calls or frames that may be late (0 to 1)."""
        return float(self.late)


def _share(name: str, value: float | str) -> float:
    """Return a share of 1 that is written as a number or in percent.

    Raises:
        InputError: it is neither, or not between 0 and 1.

    """
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise InputError(f"{name}={value} must be a share of the calls: {name}=0.1%, for example, or {name}=0.001.")
    return share


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `change`; a mapping in both is merged, unless it becomes a factory."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and "_target_" not in value.keys() - old.keys():
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged
