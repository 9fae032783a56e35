"""A component: a network under test, built and loaded, with the input tensors that every step reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from profiling.components.casting import mixes_dtypes, parameter_dtypes
from profiling.components.effects import Effects
from profiling.components.instantiate import is_device_failure
from profiling.components.state import State
from profiling.components.trees import copy_values, dotted, form_of, keyed_leaves, named_tensors
from profiling.errors import InputError, did_you_mean, reason_of

#: Makes a fresh set of inputs: generator → {argument name: tensor, plain value, or nested structure of both}.
MakeInputs = Callable[[torch.Generator], Mapping[str, Any]]


#: Added to the run's seed for the inputs of a trajectory, so that they differ from those a variant is prepared with.
CHECK_SEED = 7919
#: Calls of a trajectory.
CALLS = 8
#: Most inputs that an error describes.
_DESCRIBED = 12


@dataclass
class Place:
    """Where a component is in its trajectory: the next call, and how many calls a trajectory has."""

    call: int = 0
    calls: int = CALLS
    call_s: float = 0.0  # seconds of the last warm call; 0: none was made
    #: By call, as `State.pairs`; -1: those of the warm calls.
    drawn: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Component:
    """A network under test.

    A step reads `inputs` at every call, and they are overwritten in place. A trajectory is `place.calls` calls in a row
    from S0, each on inputs of its own: `feed` puts those of a call in place, and plain values among them never change.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Any]
    make_inputs: MakeInputs
    device: torch.device
    dtype: torch.dtype
    frames_per_call: int
    weights: str  # their source, or "random"
    kind: str | None = None  # "image" | "audio" | None: adds PSNR or SNR to the parity check
    extra_inputs: tuple[Mapping[str, Any], ...] = ()  # inputs of other shapes that a step is prepared for
    warmup_inputs: tuple[Mapping[str, Any], ...] = ()  # inputs of the calls that come before all others
    priority: int = 0  # of its capture's CUDA streams; lower numbers are scheduled first
    cast: str = "none"  # how the run's dtype reaches the module, as in its spec
    policy: str = "snapshot"  # how `reset` restores the module's state
    seed: int = 0  # of the run
    warm_calls: int | None = None  # None: until the structure of the state repeats
    ignore: tuple[str, ...] = ()  # paths of state that a replay need not follow
    advances: Mapping[str, int] = field(default_factory=dict)  # by input: what each call adds to it
    place: Place = field(default_factory=Place, repr=False, compare=False)
    kept: State = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType] - made for the module

    def __post_init__(self) -> None:
        """Make the state of the module, unless it is that of the component from which this one was copied."""
        if self.kept is None or self.kept.module is not self.module or self.kept.policy != self.policy:
            object.__setattr__(self, "kept", State(self.module, self.inputs, self.policy))
            object.__setattr__(self, "place", Place(calls=self.place.calls))

    @property
    def key(self) -> str:
        """The component's name in the config, which the points of its sweep share."""
        return self.name.partition("@")[0]

    @property
    def parameters(self) -> int:
        """Number of parameters, frozen ones included, without buffers."""
        return sum(parameter_dtypes(self.module).values())

    def state(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that a call may change, for counting their bytes.

        They are the module's `state_tensors()` if it has that method, else those that the first calls changed.
        """
        state_tensors: Any = getattr(self.module, "state_tensors", None)
        return tuple(state_tensors()) if state_tensors is not None else self.kept.changed or ()

    def keep_state(self) -> Callable[[], None]:
        """Take a snapshot of the state; return the function that restores it."""
        return self.kept.keep()

    def refusal(self) -> str | None:
        """Return in one line why what runs no Python in later calls cannot follow the module; None: it can."""
        return self.kept.effects.refusal()

    def call(self) -> Any:
        """Run the module on the inputs, eagerly."""
        return self.module(**self.inputs)

    def refill(self, seed: int) -> None:
        """Overwrite the tensors of the inputs in place with those of `seed`, but for state.

        Raises:
            InputError: the inputs of this seed have another structure, shape, dtype or plain value.

        """
        self._put(self._pairs(seed), 0)

    def feed(self, call: int) -> None:
        """Overwrite the tensors of the inputs in place with those of a call of the trajectory, from 0, but for state.

        Raises:
            InputError: its inputs have another structure, shape, dtype or plain value.

        """
        pairs = self.place.drawn.get(call)
        self._put(self._pairs(self.seed + CHECK_SEED + call) if pairs is None else pairs, call)

    def draw(self, calls: int) -> None:
        """Draw the inputs of the first `calls` calls of the trajectory and keep them: a factory may be slow."""
        for call in range(calls):
            if call not in self.place.drawn:
                self.place.drawn[call] = self._pairs(self.seed + CHECK_SEED + call)

    def advance(self) -> None:
        """Make everything ready for the next call of the trajectory: its inputs, and before the first one S0.

        Not part of a call's time: on a GPU the caller waits for the device before the call.
        """
        self.draw(self.place.calls)
        self.rewind()
        self.feed(self.place.call - 1)

    def rewind(self) -> None:
        """Put S0 back where the trajectory is over, so that no call goes where no eager call has been."""
        if self.place.call >= self.place.calls:
            self.reset()
        self.place.call += 1

    @property
    def has_state(self) -> bool:
        """Whether a call changes anything that a later call may read."""
        effects = self.kept.effects
        return effects != Effects(aliases=effects.aliases)

    def reset(self) -> None:
        """Put S0 back by the component's policy; the first time, make the warm calls.

        Calls on `warmup_inputs` come before the warm calls, and all of them again after each `reset()` of the module.

        Raises:
            InputError: the module fails on its inputs.

        """
        if not self.kept.is_started:
            self.start()
        else:
            self.kept.restore()
            if self.policy == "reset":  # the warm calls again, with what they were given the first time
                if -1 not in self.place.drawn:
                    self.place.drawn[-1] = self._pairs(self.seed)
                self._put(self.place.drawn[-1], -self.kept.warm_calls)
                self._warm_up()
        self.place.call = 0

    def start(self, *, keep_cold: bool = False) -> None:
        """Make the warm calls, and take the state after them as S0.

        Raises:
            InputError: the module fails on its inputs.

        """
        self.kept.begin(keep_cold=keep_cold)
        self.kept.settle(self._warm_up())

    def _warm_up(self) -> int:
        """Call the module eagerly until the structure of its state repeats; return the number of calls.

        Positions among the inputs advance from call to call, and are as before at the end.
        """
        if self.policy == "reset":
            module: Any = self.module
            module.reset()
        for number, inputs in enumerate(self.warmup_inputs):
            try:
                self.module(**inputs)
            except Exception as error:
                if is_device_failure(error):
                    raise
                raise InputError(
                    f"component.{self.key}.warmup_inputs[{number}]: {type(self.module).__name__}.forward raised "
                    f"{reason_of(error)}. Correct the entry; what it leaves out is as in component.{self.key}.inputs."
                ) from error
        moved = 0

        def call(number: int) -> bool:
            nonlocal moved
            if number:
                self._move(1)
                moved += 1
            started = perf_counter()
            try:
                self.call()
            except Exception as error:
                if not number or is_device_failure(error):
                    self.raise_explained(error)
                return False  # a cache of few calls is full
            self._synchronize()
            self.place.call_s = perf_counter() - started
            return True

        calls = self.kept.warm_up(call, self.kept.warm_calls if self.kept.is_started else self.warm_calls)
        self._move(-moved)
        self._synchronize()  # a step may run on another stream
        return calls

    def _synchronize(self) -> None:
        if self.device.type == "cuda" and torch.cuda.is_initialized():
            torch.cuda.synchronize(self.device)

    def raise_explained(self, error: Exception) -> NoReturn:
        """Raise the error of a call with the inputs of the call and what to do; a failure of the device as it is."""
        if isinstance(error, InputError) or is_device_failure(error):
            raise error
        leaves = [f"{dotted(keys)} {form_of(leaf)}" for keys, leaf in keyed_leaves(self.inputs)]
        more = f" and {len(leaves) - _DESCRIBED} more" * (len(leaves) > _DESCRIBED)
        raise InputError(
            f"component {self.name}: {type(self.module).__name__}.forward raised {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no message'} "
            f"(inputs: {', '.join(leaves[:_DESCRIBED])}{more}). {self._remedy(error)}"
        ) from error

    def _remedy(self, error: Exception) -> str:
        if "does not require grad" in str(error) or "Inference tensors" in str(error):
            return (
                "Calls run under torch.inference_mode(): begin what needs gradients with torch.inference_mode(False) "
                "and torch.enable_grad(), on clones of the inputs."
            )
        if self.cast == "module" and mixes_dtypes(error):
            dtype = str(self.dtype).removeprefix("torch.")
            return (
                f"The run casts weights to {dtype} (cast: module), and forward has tensors of another dtype. With "
                "cast: autocast weights stay as built, and torch.autocast casts what operators read; with cast: none "
                "nothing is cast (from Python: autocast=, or no dtype=)."
            )
        return f"Correct component.{self.key}.inputs (from Python: inputs=) or the module."

    def _pairs(self, seed: int) -> list[tuple[Tensor, Tensor]]:
        fresh = self.make_inputs(torch.Generator(self.device).manual_seed(seed))
        try:
            return self.kept.pairs(fresh)
        except ValueError as difference:
            raise InputError(
                f"component.{self.key}.inputs: with another seed, {difference}. Only values inside tensors may depend "
                "on the generator."
            ) from None

    def _put(self, pairs: Iterable[tuple[Tensor, Tensor]], call: int) -> None:
        for target, fresh in pairs:
            copy_values(target, fresh)
        self._move(self.kept.warm_calls + call)

    def _move(self, calls: int) -> None:
        """Add to positions among the inputs what so many calls add."""
        for path, step in self.advances.items():
            dict(named_tensors(self.inputs))[path].add_(step * calls)


def signature_of(module: nn.Module) -> inspect.Signature:
    """Return the signature of the module's `forward`, which a TorchScript module has in its schema."""
    forward: Any = module.forward
    schema = getattr(forward, "schema", None)
    if schema is None:
        return inspect.signature(forward)
    _, *arguments = schema.arguments
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY if each.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=each.default_value if each.has_default_value() else inspect.Parameter.empty,
            )
            for each in arguments
        ]
    )


def check_arguments(
    module: nn.Module, names: Collection[str], where: str, remedy: str = " Name them as forward does."
) -> None:
    """Check that arguments of these names fit the module's `forward`.

    Raises:
        InputError: one of them is no argument of forward, or a required argument is missing; `where` says whose they
            are.

    """
    signature = signature_of(module)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        unknown = next((name for name in names if name not in signature.parameters), None)
        what = f"{error}."
        if unknown is not None:
            what = f"forward has no argument {unknown!r}.{did_you_mean(unknown, signature.parameters)}"
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        if any(each.kind in by_position for each in signature.parameters.values()):
            what += " Arguments are passed by name: wrap the module in one whose forward names its arguments."
        forward = f"{type(module).__name__}.forward{signature}"
        raise InputError(f"{where} do not fit {forward}: {what}{remedy}") from None
