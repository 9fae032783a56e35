"""The reference of the parity check: fp32 eager outputs on inputs that no variant is prepared with.

Where a float32 copy of the module does not fit into memory, each operation is computed in float32 on widened copies of
its weights; where that is impossible too, the reference is eager in the run's dtype, and the record says so.
"""

from __future__ import annotations

import gc
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.components.build import Blueprint
from profiling.components.casting import Form, bytes_to_float32
from profiling.components.component import Component
from profiling.components.instantiate import is_device_failure, is_out_of_memory
from profiling.components.outputs import Difference, Outputs, Path, difference, leaf_errors, readable, to_host
from profiling.components.trees import dotted, form_of, keyed_leaves, map_tensors
from profiling.errors import InputError, reason_of
from profiling.machine.memory import free_bytes
from profiling.results.record import FP32_EAGER

#: Added to the run's seed for the inputs of the check, so that they differ from those a variant is prepared with.
CHECK_SEED = 7919

#: A step that is right once, or that leaves a wrong state or wrong inputs behind, is wrong in the second call.
CHECK_CALLS = 2

#: Most inputs that an error describes.
DESCRIBED = 12
#: Share of a float32 copy that must be free beside it, for activations; where it is too little, the call says so.
ACTIVATIONS = 0.1

#: Two eager calls that differ by less are not called nondeterministic: on a GPU, sums have no fixed order.
QUIET = 1e-5


@dataclass(frozen=True)
class CheckCalls:
    """What each call of the check returned, and its inputs after it.

    `repeated` is the first call once more, from the same state and inputs, where it was made: it differs where the
    module draws random numbers, adds up in no fixed order, or keeps state that cannot be restored.
    """

    calls: tuple[Outputs, ...]
    repeated: Outputs | None = None


T = TypeVar("T")


@dataclass(frozen=True)
class Computed(Generic[T]):
    """What was computed from modules in one form, and why that is not `float32` (None: it is)."""

    value: T
    form: Form
    reason: str | None


@dataclass(frozen=True)
class Reference:
    """Outputs of each call of the check, in host memory, so that they take none on the device during the timing."""

    outputs: CheckCalls  # of the eager module in `form`
    eager: CheckCalls  # of the eager module in the run's dtype
    form: Form = "float32"

    def name(self, dtype: torch.dtype) -> str:
        """Return what the outputs are, for a run that computes in `dtype`."""
        return reference_name(self.form, str(dtype).removeprefix("torch."))

    @property
    def spread(self) -> Difference:
        """The difference of two eager calls from the same inputs and state; 0 where the call was not repeated."""
        repeated = self.eager.repeated
        return Difference(0.0) if repeated is None else difference(repeated, self.eager.calls[0])

    def nondeterminism(self, dtype: torch.dtype) -> str | None:
        """Return in one line how far two eager calls differ; None up to the rounding of sums in another order.

        None too where the first has NaN, which differs from itself.
        """
        spread, first = self.spread, self.eager.calls[0]
        if spread.fault is not None:
            if difference(first, first).fault is not None:
                return None
            return (
                f"nondeterministic: two eager calls from the same inputs and state differ: {spread.fault} (random "
                "numbers that choose a shape? pass them as an input; state that could not be restored? give the module "
                "a method reset() and set state: reset in the component's YAML)"
            )
        if spread.error <= max(torch.finfo(dtype).eps / 2, QUIET):
            return None
        return (
            "nondeterministic: two eager calls from the same inputs and state differ by relative L2 "
            f"{spread.error:.2g} (the module is in eval mode: is there dropout without training=self.training? random "
            "numbers? pass them as an input, or draw them from a generator that is an attribute of the module)"
        )


def reference_name(form: Form, dtype: str) -> str:
    """Return what a reference in this form is, for a run in `dtype`."""
    return {"float32": FP32_EAGER, "upcast": f"{FP32_EAGER} on {dtype} weights", "run": f"eager {dtype}"}[form]


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


def _gb(size: float) -> str:
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:.0f} GB"


def free_memory() -> None:
    """Return the memory of modules that are no longer used; some are part of a reference cycle."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def first_call(component: Component, seed: int, *, repeat: bool = False) -> CheckCalls:
    """Return what `outputs_of` does, for a module that is called for the first time.

    Raises:
        InputError: the module itself fails on its inputs.
        Exception: a failure of the device, unchanged, since the module may be right.

    """
    try:
        return outputs_of(component, seed, repeat=repeat)
    except InputError:
        raise
    except Exception as error:
        if is_device_failure(error):
            raise
        leaves = [f"{dotted(keys)} {form_of(leaf)}" for keys, leaf in keyed_leaves(component.inputs)]
        inputs = ", ".join(leaves[:DESCRIBED]) + (f" and {len(leaves) - DESCRIBED} more" * (len(leaves) > DESCRIBED))
        raise InputError(
            f"component {component.name}: {type(component.module).__name__}.forward raised "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'} "
            f"(inputs: {inputs}). {_remedy(component, error)}"
        ) from error


def _remedy(component: Component, error: Exception) -> str:
    if "does not require grad" in str(error) or "Inference tensors" in str(error):
        return (
            "Calls run under torch.inference_mode(): begin what needs gradients with torch.inference_mode(False) and "
            "torch.enable_grad(), on clones of the inputs."
        )
    return f"Correct component.{component.key}.inputs or the module."


def outputs_of(component: Component, seed: int, *, repeat: bool = False) -> CheckCalls:
    """Run the component eagerly, as `check_calls` does; return the outputs of each call.

    With `repeat` the first call is made once more.

    Raises:
        InputError: the output holds no number, so there is nothing to compare, or holds what cannot be compared.

    """
    check = learning_calls(component, seed)
    if repeat:
        check = replace(check, repeated=_again(component, seed, reseed=False))
    output = {path: leaf for path, leaf in check.calls[0].items() if path[0] == "output"}
    where = f"component {component.name}: forward returned"
    for path, leaf in output.items():
        if leaf.problem is not None:
            what = leaf.form if path == ("output",) else f"{readable(path)} ({leaf.form})"
            raise InputError(f"{where} {what}, which cannot be compared: {leaf.problem}.")
    tensors = [leaf.numbers for leaf in output.values() if leaf.dtype and leaf.numbers is not None]
    if not any(tensor.numel() for tensor in tensors):
        content = "only empty tensors" if tensors else f"{output['output',].form}, which holds no tensor"
        raise InputError(
            f"{where} {content}, so there is nothing to compare. Return a tensor, or a dict, tuple, list or dataclass "
            "of tensors."
        )
    return check


def learning_calls(component: Component, seed: int) -> CheckCalls:
    """Make the check's calls eagerly, and learn from them what calls change, so that `reset` restores it."""
    check = check_calls(component, component.call, seed, after=component.kept.observe)
    if component.kept.settle():
        kept, errors = component.kept, []
        for lazy in (True, False):
            kept.keep_lazy(lazy)
            errors.append(math.inf)  # where the call raises
            with suppress(Exception):
                errors[-1] = difference(_again(component, seed, reseed=True), check.calls[0]).error
            if errors[-1] == 0:
                break
        kept.keep_lazy(errors[0] <= errors[-1])
    # The second of these calls went on with the objects of the first; in a check each call begins with them as given.
    return check_calls(component, component.call, seed) if component.kept.has_input_objects else check


def check_calls(
    component: Component, run: Callable[[], Any], seed: int, *, after: Callable[[], None] = lambda: None
) -> CheckCalls:
    """Call `run` `CHECK_CALLS` times from the initial state, each time on the inputs of `seed`.

    The global random number generators begin with `seed`. `after` is called after each call.
    """
    component.reset()
    _seed_generators(seed)
    calls = []
    for _ in range(CHECK_CALLS):
        component.refill(seed)
        calls.append(to_host(output=run(), inputs=component.inputs))
        after()
    return CheckCalls(tuple(calls))


def _seed_generators(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the global random number generators after the block."""
    host = random.getstate(), numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(host[0])
        numpy.random.set_state(host[1])


def _again(component: Component, seed: int, *, reseed: bool) -> Outputs:
    """Call the component once from the initial state.

    With `reseed` it draws the global random numbers of the first call again, else others.
    """
    component.reset()
    if reseed:
        _seed_generators(seed)
    component.refill(seed)
    return to_host(output=component.call(), inputs=component.inputs)


def rounding_effects(component: Component, seed: int) -> dict[Path, float]:
    """Return how far rounding errors move each output of the module, called eagerly; empty where nothing moves.

    The calls of the check are made twice, once with a small error in the result of each operator. It is empty too where
    the module cannot be called so.
    """
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    rounding = _Rounding(component.device)

    def run() -> Any:
        with rounding:
            return component.call()

    with suppress(Exception), eager:
        calls = [check_calls(component, each, seed).calls for each in (component.call, run)]
        return effects(zip(*calls, strict=True))
    return {}


def effects(pairs: Iterable[tuple[Outputs, Outputs]]) -> dict[Path, float]:
    """Return the largest error of each leaf that differs in a pair of outputs of one structure."""
    largest: dict[Path, float] = {}
    for one, other in pairs:
        for each in leaf_errors(other, one):
            if each.error > largest.get(each.path, 0.0):
                largest[each.path] = each.error
    return largest


#: Error of an operator, in roundings of its dtype: as far as sums of some thousand terms in two orders may differ.
_ROUNDINGS = 8


class _Rounding(TorchDispatchMode):
    """Makes the floating-point results of operators a little larger or smaller, at random."""

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._generator = torch.Generator(device).manual_seed(0)  # the global one's numbers are the module's

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(func, torch._ops.OpOverload):
            return map_tensors(self._rounded, result)
        is_view = any(each.alias_info is not None for each in func._schema.returns)
        return result if is_view else map_tensors(self._rounded, result)

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in (torch.float32, torch.float64) or tensor.layout != torch.strided or tensor.is_nested:
            return tensor
        share = torch.rand(tensor.shape, generator=self._generator, device=tensor.device, dtype=tensor.dtype)
        return tensor * (1 + (2 * share - 1) * _ROUNDINGS * torch.finfo(tensor.dtype).eps)


@contextmanager
def strict_float32() -> Iterator[None]:
    """Disable TF32 for float32 matrix products and convolutions inside the block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
