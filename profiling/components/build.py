"""Builds a component from its spec: the module on the run's device, its weights and its inputs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import _get_current_function_mode_stack, _pop_mode
from torch.utils._pytree import tree_flatten_with_path, tree_map

from profiling.components.casting import HALF, Form, bytes_to_float32, cast_module, floating_dtype
from profiling.components.compiled import compiled_note, compiled_parts, inside, take_inside
from profiling.components.component import Component, MakeInputs, Place, check_arguments
from profiling.components.instantiate import as_input_error, instantiate, partial_of
from profiling.components.snapshot import Structure
from profiling.components.spec import ComponentSpec, InputFactory, InputSpec, Settings, input_tree
from profiling.components.trajectory import seed_generators
from profiling.components.trees import dotted, forms_of, keyed_leaves, map_tensors
from profiling.components.weights import give_weights
from profiling.errors import InputError
from profiling.machine.memory import free_bytes
from profiling.machine.tf32 import set_tf32


def build(spec: ComponentSpec, settings: Settings) -> Blueprint:
    """Build the module on the run's device, in the dtypes of its factory, and load or randomise its weights.

    Two builds are equal, also where importing or constructing the module changes the state of the process.

    Raises:
        InputError: a target, argument, checkpoint or input spec is wrong.

    """
    device = torch.device(settings.device)
    where = f"component.{spec.key}.module"
    with suppress(Exception, SystemExit):  # raised again below; only the first of two builds would import it
        importlib.import_module(str(spec.module["_target_"]).rpartition(".")[0])
    set_process_state(settings)
    seed_generators(settings.seed)  # a factory may use any of them
    modes = len(_get_current_function_mode_stack())
    with device:  # parameters are created on the device, so that a large module needs no host memory
        module = instantiate(spec.module, where)
    set_process_state(settings)
    while len(_get_current_function_mode_stack()) > modes:
        _pop_mode()  # `with device` leaves it where the module has set the default device inside
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise InputError(f"{where}: {spec.module['_target_']} returned a {kind}, not a torch.nn.Module.")
    compiled = compiled_parts(module) if "_modules" in vars(module) else ()
    module = inside(module)
    check_built(module, where)
    take_inside(module)
    if spec.state_options.policy == "reset" and not callable(getattr(module, "reset", None)):
        raise InputError(
            f"component.{spec.key}.state=reset: {type(module).__name__} has no method reset(). Add one that restores "
            "its state in place, or leave out state, so that a snapshot is restored."
        )
    module = module.to(device).eval()
    weights, hint = give_weights(module, spec, settings)
    run_dtype = getattr(torch, settings.dtype)
    dtype = input_dtype(spec, module, run_dtype)
    nodes = (spec.inputs, *(extra["inputs"] for extra in spec.extra_inputs), *spec.warmup_nodes())
    draw, *others = (input_maker(node, spec.key, module, device, dtype) for node in nodes)
    draw_extra, draw_warmup = others[: len(spec.extra_inputs)], others[len(spec.extra_inputs) :]
    names, entry = draw(torch.Generator(device).manual_seed(settings.seed)), f"component.{spec.key}.inputs"
    check_arguments(module, names, entry, " Correct the entry: each argument has a shape, or a plain value.")
    notes = (compiled_note(compiled),) if compiled else ()
    return Blueprint(spec, module, draw, device, run_dtype, weights, hint, tuple(draw_extra), tuple(draw_warmup), notes)


def input_dtype(spec: ComponentSpec, module: nn.Module, run_dtype: torch.dtype) -> torch.dtype:
    """Return what an input's dtype `auto` means: the run's dtype, or that of a module that is not cast."""
    return run_dtype if spec.cast == "module" else floating_dtype(module.parameters(), run_dtype)


def use_deterministic_algorithms(wanted: bool, *, warn_only: bool = False) -> None:
    """Call torch's function of this name where that changes anything: it imports the compiler, which takes seconds."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if before != (wanted, warn_only):
        torch.use_deterministic_algorithms(wanted, warn_only=warn_only)


def use_threads(number: int) -> None:
    """Let torch use so many CPU threads.

    Nothing is called where it does already: `set_num_threads` makes MKL use all of them for every small operation,
    which an application that does not call it is spared.
    """
    if number != torch.get_num_threads():
        torch.set_num_threads(number)


def set_process_state(settings: Settings) -> None:
    """Set what holds for the whole process and what a module may have changed: threads, TF32, torch's defaults."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    if not torch.is_inference_mode_enabled():
        torch.set_grad_enabled(True)
    if settings.threads is not None:
        use_threads(settings.threads)
    set_tf32(settings.tf32)
    device = torch.device(settings.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def check_built(module: nn.Module, where: str) -> None:
    """Check that the module has parameters that can be loaded, cast and counted.

    Raises:
        InputError: its class does not call `super().__init__()`, or a parameter has no shape yet or no memory.

    """
    if "_parameters" not in vars(module):
        raise InputError(f"{where}: {type(module).__name__}.__init__ does not call super().__init__(). Add the call.")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"{where}: {name} has no shape before the first call (a lazy layer). Give the layer its sizes, or name "
                "a function as _target_ that calls the module once and returns it."
            )
        if tensor.is_meta:
            raise InputError(
                f"{where}: {name} is on device meta, without memory. Build the module without torch.device('meta'), "
                "or call its to_empty and load its weights in the factory."
            )


@dataclass(frozen=True)
class Blueprint:
    """A module on its device with its weights, and the functions that draw its inputs."""

    spec: ComponentSpec
    module: nn.Module
    draw: MakeInputs  # floating inputs in the run's dtype, or in that of a module that is not cast
    device: torch.device
    run_dtype: torch.dtype
    weights: str  # their source, or "random"
    hint: str | None  # how to get the published weights, if these are random
    draw_extra: tuple[MakeInputs, ...] = ()  # inputs of the further shapes that a step is prepared for
    draw_warmup: tuple[MakeInputs, ...] = ()  # inputs of the calls that come before all others
    notes: tuple[str, ...] = ()  # what the record is to say of the module
    form: Form = "run"  # what the module was cast to last

    def checksums(self) -> list[float]:
        """Return a number for each floating-point parameter, to compare two builds without keeping both."""
        with torch.no_grad():
            weights = (weight for weight in self.module.parameters() if weight.is_floating_point())
            norms = [torch.linalg.vector_norm(weight).double() for weight in weights]
            return torch.stack(norms).tolist() if norms else []

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that calls compute in: float32 for a reference, and that of the weights of a module as built."""
        if self.form != "run":
            return torch.float32
        return input_dtype(self.spec, self.module, self.run_dtype) if self.spec.cast == "none" else self.run_dtype

    @property
    def runs_in_float32(self) -> bool:
        """Whether the run's own form is the float32 one."""
        widened = self.spec.cast == "module" or bytes_to_float32(self.module)[1] == 0
        return self.dtype == torch.float32 and widened

    def check_same(self, checksums: list[float]) -> None:
        """Compare with the checksums of another build.

        Raises:
            InputError: the weights are others, so that the outputs of the two cannot be compared.

        """
        if not numpy.allclose(self.checksums(), checksums, rtol=1e-6, atol=0, equal_nan=True):
            raise InputError(
                f"component {self.spec.name}: two builds of it have different weights. Let its module draw them from "
                "torch's, numpy's or Python's global random generator without seeding it, or load a checkpoint."
            )

    def cast(self, form: Form) -> Blueprint:
        """Cast the module in place, return the memory that this frees to the device, and return the new blueprint.

        Raises:
            InputError: the module cannot be called in this form.

        """
        cast_module(self.module, form, self.spec.cast, self.run_dtype, self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return replace(self, form=form)

    def component(self, seed: int) -> Component:
        """Return the component; the module must have been cast to the form in which it is to be called.

        A reference gets the inputs of the run, half-precision ones widened to float32: it reads the same numbers.
        """

        def widen(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.float() if tensor.dtype in HALF else tensor

        def make(draw: MakeInputs, generator: torch.Generator) -> Mapping[str, Any]:
            made = dict(draw(generator))
            if self.form == "run":
                return made
            made = map_tensors(widen, made)
            for _, tensor in Structure.of({"": made}).tensors.values():
                tensor.data = widen(tensor)  # in an object, a cache for example, which is passed as it was made
            return made

        def first(draw: MakeInputs, number: int = 0) -> Mapping[str, Any]:
            return make(draw, torch.Generator(self.device).manual_seed(seed + number))

        inputs, extra = first(self.draw), tuple(map(first, self.draw_extra))
        # Other numbers in each of them: several may have one shape, and fill a cache.
        warmup = tuple(first(draw, number) for number, draw in enumerate(self.draw_warmup, 1))
        by_form = {tuple(sorted(forms_of(each).items())): each for each in (*warmup, inputs)}
        state = self.spec.state_options
        return Component(
            name=self.spec.name,
            module=self.module,
            inputs=inputs,
            make_inputs=partial(make, self.draw),
            device=self.device,
            dtype=self.dtype,
            frames_per_call=self.spec.frames_per_call,
            weights=self.weights,
            kind=self.spec.kind,
            cast=self.spec.cast,
            policy=state.policy,
            seed=seed,
            warm_calls=state.warm_calls,
            ignore=state.ignore,
            advances={
                dotted(keys): leaf.advance
                for keys, leaf in tree_flatten_with_path(input_tree(self.spec.inputs, "inputs"))[0]
                if isinstance(leaf, InputSpec) and leaf.advance is not None
            },
            place=Place(calls=state.calls),
            extra_inputs=(*extra, *(each for each in by_form.values() if each is not inputs)),
            warmup_inputs=warmup,
        )


def input_maker(
    node: Mapping[str, Any], component: str, module: nn.Module, device: torch.device, dtype: torch.dtype
) -> MakeInputs:
    """Return the function that draws the inputs of an `inputs` node: on `device`, floating ones in `dtype`.

    It raises an InputError where a factory returns no dict by argument name, a tensor on another device, or an
    iterator.

    Raises:
        InputError: a target does not exist, or an input spec is wrong.

    """
    where = f"component.{component}.inputs"
    makers = tree_map(lambda leaf: _maker(leaf, module, device, dtype), input_tree(node, where))

    def draw(generator: torch.Generator) -> Mapping[str, Any]:
        made = tree_map(lambda make: make(generator), makers)
        if not isinstance(made, Mapping) or not all(isinstance(name, str) for name in made):
            raise InputError(
                f"{where}: {node.get('_target_')} returned a {type(made).__name__}. Return a dict with a tensor, a "
                "plain value, or a structure of them for each argument of forward."
            )
        for keys, leaf in keyed_leaves(made):
            if isinstance(leaf, Iterator):
                kind = type(leaf).__name__
                raise InputError(f"{where}.{dotted(keys)} is a {kind}, which can be read only once. Make it a list.")
            if isinstance(leaf, torch.Tensor) and not _is_on(leaf, device):
                raise InputError(
                    f"{where}.{dotted(keys)} is on {leaf.device}, the module on {device}. Make it with device=device, "
                    "or pass a plain number."
                )
        return made

    return draw


def _maker(leaf: Any, module: nn.Module, device: torch.device, dtype: torch.dtype) -> Callable[[torch.Generator], Any]:
    """Return the function that draws a leaf of `input_tree`."""
    if isinstance(leaf, InputSpec):
        return lambda generator: draw_input(leaf, generator, dtype)
    if not isinstance(leaf, InputFactory):
        return lambda _: leaf
    factory = partial_of(leaf.node, leaf.where, given=("generator", "device", "dtype"), positional=1)

    def call(generator: torch.Generator) -> Any:
        with as_input_error(leaf.node, leaf.where):
            return factory(module, generator=generator, device=device, dtype=dtype)

    return call


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def draw_input(spec: InputSpec, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Return an input on the generator's device, in `dtype` where the spec's own is auto.

    Raises:
        InputError: the host has not enough memory for it; the system might kill this process or another one.

    """
    device = generator.device
    gib, free_gib = 8 * math.prod(spec.shape) / 2**30, free_bytes(device) / 2**30
    if device.type == "cpu" and gib > free_gib:
        raise InputError(
            f"an input of shape {list(spec.shape)} takes {gib:.0f} GiB while it is drawn, and {free_gib:.0f} GiB of "
            "memory are free. Choose a smaller shape."
        )
    dtype = dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)
    if spec.value is not None:
        return torch.tensor(spec.value, dtype=dtype, device=device).expand(spec.shape).contiguous()
    if spec.distribution == "normal":
        return torch.randn(spec.shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
    low, high = spec.low or 0.0, spec.high or 0.0
    if spec.distribution == "integers":
        return torch.randint(int(low), int(high), spec.shape, generator=generator, device=device).to(dtype)
    values = torch.rand(spec.shape, generator=generator, device=device, dtype=torch.float32)
    if spec.distribution == "bernoulli":
        return (values < 0.5).to(dtype)
    return (values * (high - low) + low).to(dtype)
