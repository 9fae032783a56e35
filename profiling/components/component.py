"""A component: a network under test, built and loaded, with the input tensors that every step reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from profiling.components.instantiate import is_device_failure
from profiling.components.state import State
from profiling.components.trees import other_form, overwrite
from profiling.errors import InputError, did_you_mean, reason_of

#: Makes a fresh set of inputs: generator → {argument name: tensor, plain value, or nested structure of both}.
MakeInputs = Callable[[torch.Generator], Mapping[str, Any]]


@dataclass(frozen=True)
class Component:
    """A network under test.

    A step reads `inputs` at every call. `refill` overwrites their tensors in place, so that the parity check can run a
    step on inputs that it was not prepared with; plain values among them never change.
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
    policy: str = "snapshot"  # how `reset` restores the module's state
    kept: State = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType] - made for the module

    def __post_init__(self) -> None:
        """Make the state of the module, unless it is that of the component from which this one was copied."""
        if self.kept is None or self.kept.module is not self.module or self.kept.policy != self.policy:
            object.__setattr__(self, "kept", State(self.module, self.inputs, self.policy))

    @property
    def key(self) -> str:
        """The component's name in the config, which the points of its sweep share."""
        return self.name.partition("@")[0]

    @property
    def parameters(self) -> int:
        """Number of trainable parameters, without buffers and constants."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)

    def state(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that a call may change, for counting their bytes.

        They are the module's `state_tensors()` if it has that method, else those that the first calls changed.
        """
        state_tensors: Any = getattr(self.module, "state_tensors", None)
        return tuple(state_tensors()) if state_tensors is not None else self.kept.changed or ()

    def keep_state(self) -> Callable[[], None]:
        """Take a snapshot of the state; return the function that restores it."""
        return self.kept.keep()

    def call(self) -> Any:
        """Run the module on the inputs, eagerly."""
        return self.module(**self.inputs)

    def refill(self, seed: int) -> None:
        """Overwrite the tensors of the inputs in place with those of `seed`; their addresses do not change.

        Raises:
            InputError: the inputs of this seed have another structure, shape, dtype or plain value.

        """
        self.kept.restore_inputs()
        fresh = self.make_inputs(torch.Generator(self.device).manual_seed(seed))
        if (difference := other_form(fresh, self.inputs)) is not None:
            raise InputError(
                f"component.{self.key}.inputs: with another seed, {difference}. Only values inside tensors may depend "
                "on the generator."
            )
        overwrite(self.inputs, fresh)

    def reset(self) -> None:
        """Restore the state in place, as it was before the first call, by the component's policy.

        Calls on `warmup_inputs` come before the first call, and again after each `reset()` of the module.

        Raises:
            InputError: the module fails on one of its `warmup_inputs`.

        """
        if self.policy != "reset" and not self.kept.is_started:
            self.warm_up()
        self.kept.reset()
        if self.policy == "reset":
            self.warm_up()

    def warm_up(self) -> None:
        """Call the module eagerly on each of its `warmup_inputs`, for the state that these calls leave behind.

        Raises:
            InputError: the module fails on one of them.
            Exception: a failure of the device, unchanged.

        """
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
        if self.warmup_inputs and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # a step may run on another stream


def of_other_shapes(
    candidates: Iterable[Mapping[str, Any]], inputs: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ...]:
    """Return those of `candidates` that differ in shapes or dtypes from `inputs` and from each other."""
    others: list[Mapping[str, Any]] = []
    for candidate in candidates:
        if all(other_form(candidate, known) is not None for known in (inputs, *others)):
            others.append(candidate)
    return tuple(others)


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


def takes_by_name(signature: inspect.Signature) -> bool:
    """Return whether all arguments may be passed by name."""
    return not any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in signature.parameters.values())


_ANY_NUMBER = inspect.Parameter.VAR_POSITIONAL
#: What to do with a forward that does not take its arguments by name.
WRAP_IT = "Arguments are passed by name: wrap the module in one whose forward names its arguments."


def check_arguments(module: nn.Module, inputs: Mapping[str, Any], component: str) -> None:
    """Check that the input names are arguments of the module's `forward`.

    Raises:
        InputError: an input is no argument of forward, or a required argument has no input.

    """
    signature = signature_of(module)
    parameters = signature.parameters
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in inputs:
        if name not in parameters and not accepts_any:
            raise InputError(
                f"component.{component}.inputs.{name}: {type(module).__name__}.forward{signature} has no argument "
                f"{name!r}.{did_you_mean(name, parameters)} Rename it in the component's YAML."
            )
        if name in parameters and parameters[name].kind in (inspect.Parameter.POSITIONAL_ONLY, _ANY_NUMBER):
            raise InputError(
                f"component.{component}.inputs.{name}: {type(module).__name__}.forward{signature} takes {name!r} by "
                f"its position only. {WRAP_IT}"
            )
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in inputs:
            raise InputError(
                f"component.{component}.inputs: {type(module).__name__}.forward{signature} needs {name!r}. "
                f"Add component.{component}.inputs.{name} with a shape, or a plain value."
            )
