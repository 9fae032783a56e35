"""A module and inputs that a script holds, as a component: a YAML cannot describe them, so a key stands for them.

The component's YAML would be `module: {_target_: profiling.components.held.module, key: KEY}`, and the same for inputs.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from profiling.components.casting import floating_dtype
from profiling.components.compiled import compiled_parts, inside, take_inside
from profiling.components.component import CHECK_SEED, check_arguments
from profiling.components.reference import free_memory
from profiling.components.snapshot import Structure
from profiling.components.trees import keyed_tensors, map_tensors, opened, tensors_in
from profiling.errors import InputError, reason_of

#: Arguments of `forward` by name, those of the calls of a trajectory, or a function from a seed to such arguments.
Inputs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]]

_HELD: dict[str, Held] = {}


@dataclass(frozen=True)
class Held:
    """A module, or a function that builds it, and its inputs: those of the seed `seed` and those of the parity check.

    Raises:
        InputError: the module cannot be profiled, or inputs do not fit its `forward`.

    """

    module: nn.Module | Callable[[], nn.Module]
    inputs: Inputs
    check_inputs: Mapping[str, Any] | None = None
    seed: int = 0
    cast: bool = False  # whether copies of the module, and inputs in its dtype, are cast to the run's dtype
    compiled: tuple[str, ...] = field(default=(), init=False)  # parts of the module that its user has compiled
    _built: list[weakref.ref[nn.Module]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Check the module, and the inputs' names."""
        if not isinstance(self.module, nn.Module) and (not callable(self.module) or _is_module_class(self.module)):
            raise InputError(f"module {_words(self.module)}. Pass a torch.nn.Module, or a function that returns one.")
        if not isinstance(self.module, nn.Module) and (wanted := _wanted_by(self.module)):
            raise InputError(
                f"module is a function that wants {', '.join(wanted)}. Pass a torch.nn.Module, or a function without "
                "arguments that returns one."
            )
        if isinstance(self.module, nn.Module):
            lazy = next((name for name, each in self.module.named_parameters() if is_lazy(each)), None)
            if lazy is not None:
                raise InputError(f"module has the parameter {lazy}, which its first call makes. Call it once before.")
            object.__setattr__(self, "compiled", compiled_parts(self.module))
            object.__setattr__(self, "module", inside(self.module))
        if isinstance(self.inputs, Sequence) and not self.inputs:
            raise InputError("inputs is an empty list. Give the arguments of forward for each call of a trajectory.")
        several = [*self.inputs] if isinstance(self.inputs, Sequence) else [self.first]
        named = [(f"inputs[{number}]" if len(several) > 1 else "inputs", each) for number, each in enumerate(several)]
        if isinstance(self.inputs, Sequence) and not isinstance(self.first, Mapping):
            raise InputError(
                f"inputs is a {type(self.inputs).__name__}, and its first element {_words(self.first)}. Give the "
                "arguments of forward by name, inputs={'x': x}, or a list of such mappings, one for each call."
            )
        for name, inputs in (*named, ("check_inputs", self.check_inputs)):
            if inputs is not None:
                check_inputs(self.module, inputs, name)

    @property
    def first(self) -> Mapping[str, Any]:
        """The inputs that a variant is prepared with."""
        if callable(self.inputs):
            return self.inputs(self.seed)
        return self.inputs[0] if isinstance(self.inputs, Sequence) else self.inputs

    @property
    def calls(self) -> int | None:
        """The number of calls that inputs are listed for; None: any number."""
        return len(self.inputs) if isinstance(self.inputs, Sequence) else None

    @property
    def device(self) -> torch.device:
        """The device of the module's parameters and buffers, or of the inputs of a module without any."""
        tensors = [*self.module.parameters(), *self.module.buffers()] if isinstance(self.module, nn.Module) else []
        tensors += tensors_in(self.first)
        return tensors[0].device if tensors else torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of most of the module's floating parameters, or of the inputs of a module without any."""
        tensors = [*self.module.parameters()] if isinstance(self.module, nn.Module) else []
        return floating_dtype(tensors or tensors_in(self.first), torch.float32)

    def build(self) -> nn.Module:
        """Return a module that shares no tensor with the caller's.

        Raises:
            InputError: it cannot be copied, or the function returns no module, or the same one again.

        """
        if not isinstance(self.module, nn.Module):
            built = self.module()
            if not isinstance(built, nn.Module):
                raise InputError(f"what the function returned {_words(built)}, and is not a torch.nn.Module.")
            if any(each() is built for each in self._built):
                raise InputError("the function returned the same module twice. Build a new one, or pass the module.")
            check_inputs(built, self.first, "inputs")
            self._built.append(weakref.ref(built))
            return built
        found = Structure.of({"": self.module}).tensors.values()
        computed = {id(tensor): tensor.detach().clone() for _, tensor in found if not tensor.is_leaf}
        try:
            copied = copy.deepcopy(self.module, dict(computed))  # a weight that a hook computes, for example
        except Exception as error:
            raise InputError(
                f"{type(self.module).__name__} cannot be copied ({reason_of(error)}). Pass a function that builds it."
            ) from None
        take_inside(copied)
        return copied

    def draw(self, seed: int) -> Mapping[str, Any]:
        """Return the inputs of a seed, which may be the caller's own tensors."""
        if seed == self.seed:
            return self.first
        call = seed - self.seed - CHECK_SEED
        if isinstance(self.inputs, Sequence):
            return self.inputs[call % len(self.inputs)]
        if self.check_inputs is not None and call == 0:
            return self.check_inputs
        if callable(self.inputs) and self.check_inputs is None:
            return self.inputs(seed)
        generator = torch.Generator().manual_seed(seed)
        drawn = self.first if self.check_inputs is None else self.check_inputs
        return map_tensors(lambda tensor: shuffled(tensor, generator), drawn)


@contextmanager
def holding(held: Held) -> Iterator[str]:
    """Hold a module and its inputs inside the block; yield the key that stands for them."""
    key = next(key for number in count(1) if (key := f"held-{number}") not in _HELD)  # in each run alone: held-1
    _HELD[key] = held
    try:
        yield key
    finally:
        del _HELD[key]


def module(key: str) -> nn.Module:
    """Return a copy of the held module.

    Raises:
        InputError: nothing is held under this key, or the module cannot be copied.

    """
    free_memory()  # of an earlier copy: there may be too little for two
    return _held(key).build()


def inputs(
    _module: nn.Module, *, key: str, generator: torch.Generator, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Return copies of the held inputs of the seed; with the module, those in its dtype are cast to `dtype`.

    Objects such as a cache are copied too, since a call may change them; not those that the caller's function made.

    Raises:
        InputError: an object cannot be copied.

    """
    held = _held(key)
    own = held.dtype if held.cast else None
    drawn, memo = held.draw(generator.initial_seed()), dict[int, Any]()

    def placed(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, dtype if tensor.dtype == own else tensor.dtype, copy=True)

    if callable(held.inputs):
        return dict(map_tensors(placed, drawn))
    return {name: _copy(content, placed, memo) for name, content in drawn.items()}


def _copy(tree: Any, placed: Callable[[Tensor], Tensor], memo: dict[int, Any]) -> Any:
    """Return `tree` with `placed` applied to its tensors and with copies of the objects in it.

    Raises:
        InputError: an object cannot be copied.

    """
    if isinstance(tree, Tensor):
        return placed(tree)
    node = opened(tree)
    if node is not None:
        return node.rebuild([_copy(value, placed, memo) for value in node.values])
    try:
        return copy.deepcopy(tree, memo)
    except Exception as error:
        raise InputError(
            f"inputs: a {type(tree).__name__} cannot be copied ({reason_of(error)}). Pass a function `seed -> inputs` "
            "that makes a new one."
        ) from None


def check_inputs(module: nn.Module | Callable[[], nn.Module], inputs: object, name: str) -> None:
    """Check that inputs have the names of the arguments of `forward`, and that their tensors are where the module is.

    Raises:
        InputError: they do not fit, said in one line that begins with `name`.

    """
    if not isinstance(inputs, Mapping) or not inputs or not all(isinstance(key, str) for key in inputs):
        raise InputError(f"{name} {_words(inputs)}. Give the arguments of forward by name: {name}={{'x': x}}.")
    if not isinstance(module, nn.Module):
        return
    check_arguments(module, inputs, name)
    own = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), None)
    for path, tensor in named_inputs(inputs):
        if own is not None and tensor.device != own:
            raise InputError(
                f"{name}: {path} is on {tensor.device}, the module on {own}. Move one: x.to({str(own)!r})."
            )


def named_inputs(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for each tensor in the inputs, `cache[0]['key']` for example."""
    for name, content in inputs.items():
        for keys, tensor in keyed_tensors(content):
            yield f"{name}{''.join(map(str, keys))}", tensor


def shuffled(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor of the same values in another order.

    Unchanged are masks (bool, or two values only), sorted integers (positions, lengths), and single values: in another
    order could mean something that the module refuses. Sparse tensors, and dtypes of less than a byte, stay, too.
    """
    if tensor.dtype == torch.bool or tensor.numel() < 2 or tensor.layout != torch.strided:
        return tensor
    flat = tensor.detach().flatten()
    order = torch.randperm(flat.numel(), generator=generator).to(flat.device)
    integers = not (flat.is_floating_point() or flat.is_complex())
    try:
        numbers = torch.view_as_real(flat)[:, 0] if flat.is_complex() else flat
        numbers = numbers.long() if integers else numbers.double()  # float8 and uint16 cannot be compared
        if ((numbers == numbers.min()) | (numbers == numbers.max())).all():
            return tensor
        if integers and (numbers[1:] >= numbers[:-1]).all():
            return tensor
        return flat[order].view(tensor.shape)
    except NotImplementedError:  # torch cannot compare numbers of less than a byte
        return tensor


def _held(key: str) -> Held:
    if key not in _HELD:
        raise InputError(f"{key}: this module lived in a Python process that has ended. Call profiling.profile again.")
    return _HELD[key]


def _is_module_class(value: object) -> bool:
    return isinstance(value, type) and not issubclass(value, nn.Module)


def _wanted_by(factory: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a function cannot do without; none where that is not known."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def _words(value: object) -> str:
    return "is empty" if isinstance(value, Mapping) else f"has the type {type(value).__name__}"
