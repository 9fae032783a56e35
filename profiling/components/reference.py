"""What a step is compared with: a trajectory of fp32 eager, or of what takes its place where that does not fit.

Where a float32 copy of the module does not fit into memory, each operation is computed in float32 on widened copies of
its weights; where that is impossible too, the reference is eager in the run's dtype, and the record says so.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import nn

from profiling.components.build import Blueprint
from profiling.components.casting import Form, bytes_to_float32
from profiling.components.component import Component
from profiling.components.effects import QUIET, Effects
from profiling.components.instantiate import is_device_failure, is_out_of_memory
from profiling.components.outputs import Difference, Errors, LeafError, Outputs, Path, difference, leaf_errors, mismatch
from profiling.components.trajectory import Played, learn, played
from profiling.errors import InputError, reason_of
from profiling.machine.memory import free_bytes
from profiling.machine.tf32 import strict_float32
from profiling.results.measured import FP32_EAGER

#: Share of a float32 copy that must be free beside it, for activations; where it is too little, the call says so.
ACTIVATIONS = 0.1

T = TypeVar("T")


@dataclass(frozen=True)
class Computed(Generic[T]):
    """What was computed from modules in one form, and why that is not `float32` (None: it is)."""

    value: T
    form: Form
    reason: str | None


def compute_reference(
    build: Callable[[], Mapping[str, Blueprint]], compute: Callable[[Mapping[str, Blueprint]], T]
) -> Computed[T]:
    """Return what `compute` returns for built modules in the most exact form that can be called here.

    In turn: in float32 where a copy is expected to fit; with weights widened operation by operation, after memory ran
    out, or where a module that is not cast cannot be called in float32; and as the run calls them. Modules are built
    anew for each form: a module may keep tensors of its first call.

    Raises:
        InputError: the modules fail in every form; the reason is that of the first.
        Exception: what the last form raised, for example if memory ran out.

    """
    form: Form = "float32"
    reasons: list[str] = []
    problem: str | None = None  # what is wrong with the input, as the first form said it
    while True:
        blueprints = build()
        if form == "float32" and (too_large := _too_large(blueprints)) is not None:
            form = "upcast"
            reasons.append(too_large)
        is_last = form == "run" or all(blueprint.runs_in_float32 for blueprint in blueprints.values())
        as_built = any(blueprint.spec.cast == "none" for blueprint in blueprints.values())
        try:
            blueprints = {name: blueprint.cast(form) for name, blueprint in blueprints.items()}
            with torch.inference_mode(), strict_float32():
                return Computed(compute(blueprints), form, "; ".join(reasons) or None)
        except Exception as error:
            out_of_memory = is_out_of_memory(error)
            if is_last and problem is not None and isinstance(error, InputError):
                raise InputError(problem) from error
            if is_last or (is_device_failure(error) and not out_of_memory):
                raise
            if isinstance(error, InputError):
                problem = problem or str(error)
            failure = "memory ran out" if out_of_memory else f"forward fails ({reason_of(error.__cause__ or error)})"
            reasons.append(f"{failure} {_WHERE[form]}")
            form = "upcast" if form == "float32" and (out_of_memory or as_built) else "run"
        finally:  # before modules are built again
            del blueprints
            free_memory()


_WHERE = {"float32": "in float32", "upcast": "with each operation in float32"}


def _too_large(blueprints: Mapping[str, Blueprint]) -> str | None:
    """Return why the modules in float32 are not expected to fit into free memory, or None."""
    sizes = [bytes_to_float32(blueprint.module) for blueprint in blueprints.values()]
    total, more = (sum(each) for each in zip(*sizes, strict=True))
    device = next(iter(blueprints.values())).device
    if device.type == "cuda":
        torch.cuda.empty_cache()
    free = free_bytes(device)
    if not more or more + ACTIVATIONS * total <= free:
        return None
    return f"an fp32 copy ({_gb(total)}) does not fit: the module leaves {_gb(free)} free"


def has_room_for_copy(module: nn.Module, device: torch.device) -> bool:
    """Return whether the copy for the reference fits beside a module as well as it would without the module."""
    total, _ = bytes_to_float32(module)
    own = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    free = free_bytes(device)
    in_float32, as_built = (1 + ACTIVATIONS) * total, (1 + ACTIVATIONS) * own
    return in_float32 <= free or (in_float32 > free + own and as_built <= free)


def _gb(size: float) -> str:
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:.0f} GB"


def free_memory() -> None:
    """Return the memory of modules that are no longer used; some are part of a reference cycle."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


#: By path of an output, in each call: how far something else than a mistake moves it.
Moves = Sequence[Mapping[Path, Errors]]


def moves(one: Played, other: Played) -> Moves:
    """Return the error of each output between two trajectories, call by call; the last call includes the end state."""
    found = [_moved(*pair) for pair in zip(one.log, other.log, strict=False)]
    if found and one.state is not None and other.state is not None:
        found[-1] |= _moved(one.state, other.state)
    return found


def _moved(one: Outputs, other: Outputs) -> dict[Path, Errors]:
    """Return how far outputs are apart, where that is a number: a value next to one of no logarithm is no measure."""
    if mismatch(other, one) is not None:
        return {}
    return {each.path: each.errors for each in leaf_errors(other, one) if 0 < each.error < math.inf}


@dataclass(frozen=True)
class Reference:
    """What a step is compared with: a trajectory of the fp32 reference, and one of eager in the run's dtype.

    `repeat` is a second eager trajectory from the same state on the same inputs, where it was played. It differs where
    the module draws random numbers, adds up in no fixed order, or keeps state that cannot be restored.
    """

    outputs: Played
    eager: Played
    form: Form = "float32"
    repeat: Played | None = None
    effects: Effects = field(default_factory=Effects)
    _eager_errors: dict[int, list[LeafError]] = field(default_factory=dict, repr=False, compare=False)

    def eager_errors(self, call: int, eager: Outputs, outputs: Outputs) -> list[LeafError]:
        """Return the errors of eager in the run's dtype in a call (0: of the state after the last), computed once."""
        if call not in self._eager_errors:
            self._eager_errors[call] = leaf_errors(eager, outputs)
        return self._eager_errors[call]

    @property
    def calls(self) -> int:
        """Number of calls that can be compared."""
        return min(self.outputs.calls, self.eager.calls)

    def name(self, dtype: torch.dtype) -> str:
        """Return what the outputs are, for a run that computes in `dtype`."""
        own = str(dtype).removeprefix("torch.")
        return {"float32": FP32_EAGER, "upcast": f"{FP32_EAGER} on {own} weights", "run": f"eager {own}"}[self.form]

    @cached_property
    def spread(self) -> Difference:
        """The largest difference of two eager trajectories; 0 where there is one."""
        pairs = [] if self.repeat is None else zip(self.repeat.log, self.eager.log, strict=False)
        worst = Difference(0.0)
        for found in (difference(*pair) for pair in pairs):
            if found.fault is not None:
                return found
            worst = max(worst, found, key=lambda each: each.error)
        return worst

    def nondeterminism(self, dtype: torch.dtype) -> str | None:
        """Return in one line how far two eager trajectories differ; None up to the rounding of sums in another order.

        None too where the first has NaN, which differs from itself.
        """
        if self.spread.fault is not None:
            if any(difference(each, each).fault is not None for each in self.eager.log):
                return None
            return (
                f"nondeterministic: two eager calls from the same inputs and state differ: {self.spread.fault} (random "
                "numbers that choose a shape? pass them as an input; state that could not be restored? give the module "
                "a method reset() and set state: reset in the component's YAML)"
            )
        if self.spread.error <= max(torch.finfo(dtype).eps / 2, QUIET):
            return None
        return (
            "nondeterministic: two eager calls from the same inputs and state differ by relative L2 "
            f"{self.spread.error:.2g} (the module is in eval mode: is there dropout without training=self.training? "
            "random numbers? pass them as an input, or draw them from a generator that is an attribute of the module; "
            "a number outside of the module, in a global? keep it in the module)"
        )


def eager_reference(component: Component) -> Reference:
    """Return eager in the run's dtype as its own reference: of a check without a float32 copy of the module."""
    eager = learn(component)
    repeat = played(component, component.call, eager.calls, seed=1)
    return Reference(eager, eager, "run", repeat, component.kept.effects)
