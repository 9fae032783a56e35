"""A prepared variant as an application uses it: called with new inputs, it returns the outputs."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.components.casting import call_under
from profiling.components.component import Component, signature_of
from profiling.components.held import named_inputs
from profiling.components.reference import kept_generators, learning_calls
from profiling.components.trees import form_of, map_tensors, other_form, written_tensors
from profiling.errors import InputError
from profiling.trace.operator_costs import address_of
from profiling.variants.variant import Step, Variant


class PreparedStep:
    """The step of a variant of `module`: `output = step(x=x)`, with the arguments of its `forward`.

    A call copies its inputs into the buffers that the step was prepared with, in stream order, and runs the step under
    `torch.inference_mode()`. An input that the module writes to in place is copied back. One step may be called by one
    thread at a time. The module is in eval mode until `close`, or the end of a `with` block. Weights may be changed in
    place; a captured graph does not see new tensors, and a package or quantised weights see no change.

    The module is called to prepare the step. Its state is then restored, except for what a first call makes once (a
    mask, a table).

    `package` is the path to which the file of an ahead-of-time compiler is copied: the one that the step has loaded.

    Raises:
        InputError: the inputs hold no tensor, the variant refuses its options, or `package` cannot be written.

    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Mapping[str, Any],
        variant: Variant,
        device: torch.device,
        *,
        autocast: torch.dtype | None = None,
        clone: bool,
        package: Path | None = None,
    ) -> None:
        self._clone = clone
        self._restore = ExitStack()  # closes the step, then leaves the module as the caller had it
        # Not the parts themselves: those that a transform replaces, and their weights, are to be freed.
        modes = [(weakref.ref(part), part.training) for part in module.modules()]
        self._restore.callback(_restore_modes, modes)
        self._arguments = tuple(signature_of(module).parameters)
        with torch.inference_mode():
            self._inputs = dict(map_tensors(lambda tensor: tensor.detach().clone(), inputs))
        self._buffers, self._plain = dict(named_inputs(self._inputs)), _without_tensors(self._inputs)
        self._on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        variant = variant.aliasing()  # cloned here, and so only once
        variant.start_workers(device)
        files = self._restore.enter_context(TemporaryDirectory(prefix="profiling-", ignore_cleanup_errors=True))
        if autocast is not None:
            self._restore.callback(call_under(module, partial(torch.autocast, device.type, autocast)))
        component = Component(
            name=type(module).__name__,
            module=module.eval(),
            inputs=self._inputs,
            make_inputs=lambda generator: inputs,
            device=device,
            dtype=next((p.dtype for p in module.parameters()), torch.float32),
            frames_per_call=1,
            weights="the caller's",
        )
        try:
            with torch.inference_mode(), self._on_device:
                # As it is measured: after calls that show what the module makes once, which a capture must not make.
                with kept_generators():
                    learning_calls(component, seed=0)
                self._written = _written_inputs(component)
                component.refill(0)
                run = Path(files)
                self._step = variant.prepare(component, run / "kernels" / "prepared")
                self._restore.callback(self._step.close)
                if package is not None:
                    _copy_package(self._step, run, package)
                component.reset()
                component.kept.release()
        except BaseException:
            self._restore.close()
            raise
        self._is_open = True

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run the step on new inputs of the shapes and dtypes that it was prepared with; tensors may be on the host.

        Raises:
            InputError: the step is closed, or an input has another name, shape, dtype or, if it holds no tensor, value.

        """
        if not self._is_open:
            raise InputError("this step is closed: prepare the module again.")
        if args:
            named = dict(zip(self._arguments, args, strict=False))
            if len(named) < len(args) or named.keys() & inputs.keys():
                right = ", ".join(f"{name}=..." for name in self._inputs)
                raise InputError(
                    f"step: {len(args)} positional and {len(inputs)} keyword arguments do not fit forward("
                    f"{', '.join(self._arguments)}). Give each once, by its name: step({right})."
                )
            inputs = {**named, **inputs}
        fresh, plain = dict(named_inputs(inputs)), _without_tensors(inputs)
        if fresh.keys() != self._buffers.keys() or plain.keys() != self._plain.keys():
            difference = other_form(inputs, self._inputs)
            raise InputError(
                f"step({', '.join(inputs)}): {difference}. It was prepared with {', '.join(self._inputs)}."
            )
        for name, tensor in fresh.items():
            buffer = self._buffers[name]
            if tensor.shape != buffer.shape or tensor.dtype != buffer.dtype:
                raise InputError(f"step: {name} is {form_of(tensor)}, it was prepared for {form_of(buffer)}.")
        for name, value in plain.items():
            if value != self._plain[name]:
                raise InputError(f"step: {name} is {value!r}, it was prepared for {self._plain[name]!r}.")
        with torch.inference_mode(), self._on_device:
            for name, tensor in fresh.items():
                buffer = self._buffers[name]
                if tensor is not buffer:
                    buffer.copy_(tensor, non_blocking=True)
            output = self._step.run()
            for name in self._written:
                fresh[name].copy_(self._buffers[name])
        # Outside of inference mode, so that the copies are ordinary tensors.
        return map_tensors(lambda tensor: tensor.detach().clone(), output) if self._clone else output

    def close(self) -> None:
        """Free the step's graphs, restore the module's mode, and the flags that the variant set."""
        if self._is_open:
            self._is_open = False
            self._restore.close()

    def __enter__(self) -> PreparedStep:
        """Return the step, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the step."""
        self.close()


def _written_inputs(component: Component) -> tuple[str, ...]:
    """Return the names of the inputs that a call changes in place, such as a state that it is given."""
    component.refill(0)
    strided = {name: tensor for name, tensor in named_inputs(component.inputs) if tensor.layout == torch.strided}
    before = {name: tensor.clone() for name, tensor in strided.items()}
    with kept_generators(), _Writes() as writes:
        component.call()
    component.reset()
    return tuple(
        name
        for name, tensor in strided.items()
        if address_of(tensor) in writes.addresses or not torch.equal(tensor, before[name])
    )


class _Writes(TorchDispatchMode):
    """The storages that operators write to: also where they write the values that were there."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, torch._ops.OpOverload):
            self.addresses |= {address_of(each) for each in written_tensors(func, args, kwargs or {})}
        return func(*args, **(kwargs or {}))


def _copy_package(step: Step, run: Path, package: Path) -> None:
    (made,) = (each.file for row in step.recipe for each in row.packages or ())
    try:
        shutil.copyfile(run / made, package)
    except OSError as error:
        raise InputError(f"package={str(package)!r} cannot be written: {error.strerror}. Name another file.") from error


def _without_tensors(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with None in place of each tensor."""
    return dict(map_tensors(lambda _: None, inputs))  # pyright: ignore[reportArgumentType, reportReturnType]


def _restore_modes(modes: Iterable[tuple[weakref.ref[nn.Module], bool]]) -> None:
    """Put the modules that are still alive into their training or eval mode."""
    for reference, training in modes:
        if (part := reference()) is not None:
            part.training = training
