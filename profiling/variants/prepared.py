"""A prepared variant as an application uses it: called with new inputs, it returns the outputs."""

from __future__ import annotations

import shutil
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import torch
from torch import nn

from profiling.components.agreement import Rules, check
from profiling.components.casting import call_under
from profiling.components.compiled import compiled_note, take_inside
from profiling.components.component import CALLS, Component, Place, signature_of
from profiling.components.held import Held, named_inputs
from profiling.components.outputs import Outputs, difference
from profiling.components.reference import eager_reference
from profiling.components.snapshot import same
from profiling.components.trajectory import kept_generators, play
from profiling.components.trees import form_of, forms_of, map_tensors, other_form
from profiling.errors import InputError, WrongOutputError
from profiling.graphs import CaptureError
from profiling.trace.counters import Recompiles
from profiling.variants.recipe import Recipe
from profiling.variants.variant import Step, Variant

#: Largest distance of a step's session from one of its random module, over that of two sessions of the module.
_OF_CHANCE = 3.0


class PreparedStep:
    """The step of a variant of `module`: `output = step(x=x)`, with the arguments of its `forward`.

    A call copies its inputs into the buffers that the step was prepared with, in stream order, and runs the step under
    `torch.inference_mode()`. An input that the module writes to in place is copied back. One thread calls it at a time:
    a second caller raises. The module is in eval mode until `close`, or the end of a `with` block. Weights may be
    changed in place; a captured graph does not see new tensors, and a package or quantised weights see no change.

    The module is called to prepare the step, and the step is played against it over a trajectory. Its state is then as
    before; what its first calls make (a mask, a cache) stays allocated. `reset` returns to that state.

    `package` is the path to which the file of an ahead-of-time compiler is copied: the one that the step has loaded.

    Raises:
        InputError: the inputs hold no tensor, the variant refuses its options, or `package` cannot be written.
        CaptureError: the call cannot be captured, or a replay cannot follow the state of the module.
        WrongOutputError: an uncaptured step returns other outputs than the module.

    """

    def __init__(
        self,
        subject: Held,
        variant: Variant,
        *,
        autocast: torch.dtype | None = None,
        clone: bool,
        package: Path | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        module, device, inputs = subject.module, subject.device, subject.first
        assert isinstance(module, nn.Module)
        self._clone, self._lock = clone, Lock()
        self._restore = ExitStack()  # closes the step, then leaves the module as the caller had it
        self._restore.callback(take_inside(module))
        if subject.compiled:
            warnings.warn(compiled_note(subject.compiled), stacklevel=3)
        # Not the parts themselves: those that a transform replaces, and their weights, are to be freed.
        modes = [(weakref.ref(part), part.training) for part in module.modules()]
        self._restore.callback(_restore_modes, modes)
        self._arguments = tuple(signature_of(module).parameters)
        with torch.inference_mode():
            self._inputs = dict(map_tensors(lambda tensor: tensor.detach().clone(), inputs))
        self._on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        variant = variant.aliasing()  # cloned here, and so only once
        variant.start_workers(device)
        files = self._restore.enter_context(TemporaryDirectory(prefix="profiling-", ignore_cleanup_errors=True))
        if autocast is not None:
            self._restore.callback(call_under(module, partial(torch.autocast, device.type, autocast)))
        self._component = component = Component(
            name=type(module).__name__,
            module=module.eval(),
            inputs=self._inputs,
            make_inputs=lambda generator: subject.draw(generator.initial_seed()),
            device=device,
            dtype=subject.dtype,
            frames_per_call=1,
            weights="the caller's",
            ignore=tuple(allow),
            place=Place(calls=subject.calls or CALLS),
        )
        with torch.inference_mode(), self._on_device, kept_generators():
            try:
                self._prepare(component, variant, Path(files), package)
            except BaseException:
                self._restore.callback(component.kept.restore_cold)
                self._restore.close()
                raise
        self._is_open = True

    def _prepare(self, component: Component, variant: Variant, folder: Path, package: Path | None) -> None:
        """Prepare the step from S0, play it against eager, and leave the module's state as it was.

        Raises:
            CaptureError: the step is captured, and cannot follow the module: its outputs are wrong.
            WrongOutputError: they are wrong, and it is not captured.

        """
        component.start(keep_cold=True)
        reference = eager_reference(component)
        expected = _sessions_of_module(component)
        component.reset()
        component.refill(0)
        self._step = variant.prepare(component, folder / "kernels" / "prepared")
        self._restore.callback(self._step.close)
        if package is not None:
            _copy_package(self._step, folder, package)
        recompiles = Recompiles()
        verdict, _ = check(
            component,
            self._step.run,
            reference,
            Rules(tolerance=variant.tolerance),
            compiled=any(each.kind == "compiler" for each in self._step.recipe),
            around=recompiles,
        )
        if verdict.cannot_tell and isinstance(variant, Recipe) and variant.frozen_step is None:
            warnings.warn(f"the outputs of the step could not be checked: {verdict.reason}", stacklevel=4)
        elif not verdict.passed:
            captured = any(each.kind == "capture" for each in self._step.recipe)
            raise (CaptureError if captured else WrongOutputError)(f"the prepared step is refused: {verdict.reason}")
        if recompiles.reason is not None:
            warnings.warn(recompiles.reason, stacklevel=4)

        def call() -> Any:
            component.refill(0)
            return component.call()

        if (fault := component.kept.first_values_fault(call)) is not None:
            raise WrongOutputError(f"{fault}: `reset` begins with zeros there.")
        component.kept.restore_cold()
        session = _first_session(component, self._step.run)  # also compiles what the first calls need
        if verdict.leaves and verdict.passed:
            limit = 2 * max(each.tolerance for each in verdict.leaves)  # the module and the step are off by one each
            _check_first_session(expected, session, limit)
        component.kept.restore_cold()
        static = self._step.static
        self._run = self._step.run if static is None else static.run
        carried = (name for name, tensor in named_inputs(component.inputs) if id(tensor) in component.kept.carried)
        self._written = tuple(carried)
        self._inputs = dict(component.inputs if static is None else static.inputs)
        self._buffers, self._plain = dict(named_inputs(self._inputs)), _without_tensors(self._inputs)

    def reset(self) -> None:
        """Start a session: put the module's state back as `prepare` left it.

        Raises:
            InputError: the step is closed.

        """
        self._check_open()
        with torch.inference_mode(), self._on_device:
            self._component.kept.restore_cold()

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run the step on new inputs of the shapes and dtypes that it was prepared with; tensors may be on the host.

        Raises:
            InputError: the step is closed, or an input has another name, shape, dtype or, if it holds no tensor, value.

        """
        self._check_open()
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
            difference = other_form(inputs, forms_of(self._inputs))
            raise InputError(
                f"step({', '.join(inputs)}): {difference}. It was prepared with {', '.join(self._inputs)}."
            )
        for name, tensor in fresh.items():
            buffer = self._buffers[name]
            if tensor.shape != buffer.shape or tensor.dtype != buffer.dtype:
                raise InputError(
                    f"step: {name} is {form_of(tensor)}, it was prepared for {form_of(buffer)}. Convert the input, "
                    "or call `prepare` with an example of this shape and dtype."
                )
        for name, value in plain.items():
            if value != self._plain[name] and not same(value, self._plain[name]):  # NaN is not equal to itself
                raise InputError(f"step: {name} is {value!r}, it was prepared for {self._plain[name]!r}.")
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "step: another thread is in a call of this step, and both would write to its buffers. Prepare a step "
                "for each thread, or guard the calls with a lock."
            )
        try:
            with torch.inference_mode(), self._on_device:
                for name, tensor in fresh.items():
                    buffer = self._buffers[name]
                    if tensor is not buffer:
                        buffer.copy_(tensor, non_blocking=True)
                output = self._run()
                for name in self._written:
                    fresh[name].copy_(self._buffers[name])
            # Outside of inference mode, so that the copies are ordinary tensors.
            return map_tensors(lambda tensor: tensor.detach().clone(), output) if self._clone else output
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InputError("this step is closed: prepare the module again.")

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


def _sessions_of_module(component: Component) -> list[list[Outputs]]:
    """Return what the unchanged module returns in the first calls of three sessions, with the seeds 0, 1 and 0 again.

    Each session begins from the state before the warm-up calls, and has other inputs than these. Afterwards the state
    is as it was.
    """
    sessions = []
    with component.kept.unchanged():
        for seed in (0, 1, 0):
            component.kept.restore_unmade()
            sessions.append(_first_session(component, partial(_call_on_copies, component), seed))
    return sessions


def _first_session(component: Component, run: Callable[[], Any], seed: int = 0) -> list[Outputs]:
    """Return the outputs of the first calls of a session: those that were warm calls, and two more.

    `seed` is added to that of the random number generators.
    """
    calls = min(component.kept.warm_calls + 2, component.place.calls)
    played = play(component, run, calls, reset=False, seed=seed)
    return [{path: leaf for path, leaf in outputs.items() if path[0] == "output"} for outputs in played]


def _call_on_copies(component: Component) -> Any:
    """Call the module on inputs of their own memory, as an application without a prepared step does.

    Containers among the inputs, which may be state, are those of the component.
    """
    carried = component.kept.carried
    inputs = {
        name: value.clone() if isinstance(value, torch.Tensor) and id(value) not in carried else value
        for name, value in component.inputs.items()
    }
    return component.module(**inputs)


def _check_first_session(expected: Sequence[Sequence[Outputs]], session: Sequence[Outputs], limit: float) -> None:
    """Check the first calls of a session, which begins without what earlier calls keep.

    `expected` are three sessions of the module, the last with the random numbers of the first. An output may be some
    times as far off as random numbers move it; one that the module itself returns with NaN is not checked.

    Raises:
        WrongOutputError: outputs are further from those of the module than `limit`, a relative L2 error; or those of
            the module's equal sessions from each other.

    """
    first, other, again = expected
    for number, (one, two) in enumerate(zip(first, again, strict=True), 1):
        found = difference(two, one)
        if difference(one, one).fault is None and (found.fault is not None or found.error > limit):
            what = found.fault or f"relative L2 {found.error:.2g}, at most {limit:.2g}"
            raise WrongOutputError(
                f"the prepared step is refused: the module's own call {number}, made twice from the same state with "
                f"the same random numbers, returned different outputs ({what}). They depend on something outside "
                "of the module, a global variable for example, which `reset` cannot put back. Keep it in an attribute."
            )
    chances = [difference(*pair) for pair in zip(first, other, strict=True)]
    limit += _OF_CHANCE * max((each.error for each in chances if each.fault is None), default=0.0)
    for number, (output, one, chance) in enumerate(zip(session, first, chances, strict=True), 1):
        found = difference(output, one)
        if chance.fault is None and (found.fault is not None or found.error > limit):
            what = found.fault or f"relative L2 {found.error:.2g}, at most {limit:.2g}"
            raise WrongOutputError(
                f"the prepared step is refused: from a fresh state, call {number} does not return what the module does "
                f"({what}). If a call keeps its input, keep a copy (x.clone()): the next one is written into the same "
                "memory. If the first call makes state of its input, or does what a captured graph does not, make that "
                "state in __init__ and write to it in each call."
            )


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
