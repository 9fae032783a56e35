"""A recipe: transforms of the module in order, then a compiler, then a capture, each optional.

In YAML a variant without a `_target_` is a recipe. To extend it, add a transform, any function or class `module ->
module`, or a compiler, a subclass of `Compiler`. The record has the seconds, changes and memory of each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from profiling.components.component import Component
from profiling.components.instantiate import is_device_failure
from profiling.components.trees import keyed_leaves
from profiling.errors import (
    CHANGES_NOTHING,
    DID_NOTHING,
    InputError,
    NothingChangedError,
    SkippedError,
    printable,
    reason_of,
)
from profiling.fx_passes.passes import RewritePass, check_callables, name_of
from profiling.graphs import CudaGraphed
from profiling.graphs.capture import CaptureError, no_autocast_cache, preserved_generators
from profiling.results.explanations import Graphs, ModuleChoice, Package, RecipeStep, ShapeCompile
from profiling.results.measured import MemoryKinds
from profiling.trace.profiler import synchronize
from profiling.variants.cuda_graph import CudaGraph, check_reset
from profiling.variants.kernels import compile_kernels
from profiling.variants.replaced_layers import (
    choices_of,
    choices_section,
    fallbacks,
    naming_what_fails,
    why_nothing,
)
from profiling.variants.variant import EagerStep, Static, Step, Variant


@dataclass(frozen=True)
class Outcome:
    """The result of a transform or a compiler.

    Attributes:
        call: passed to the next step; an nn.Module after a transform, else any callable with the same arguments.
        changed: number of places or modules changed, or graphs made; None: not counted. The cell of a transform that
            counts 0 is skipped.
        notes: remarks for the record, one line each; of a transform that changed nothing, the reasons.
        packages: files that a compiler made ahead of time, for the record.
        shapes: the first call of a compiled module on the inputs of each shape.
        explain: like `Step.explain`, returns sections of the record that only this step can fill.
        explain_uncompiled: like `explain`, but called only where no compiler follows: with one, other code runs than
            this would time.
        close: undoes what must not outlive the prepared step, for example in the module.
        choices: the layers that a transform replaced or left; `changed` is then the number replaced.

    """

    call: Callable[..., Any]
    changed: int | None = None
    notes: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    shapes: tuple[ShapeCompile, ...] = ()
    explain: Callable[[], Mapping[str, Any]] = dict
    explain_uncompiled: Callable[[], Mapping[str, Any]] = dict
    close: Callable[[], Any] = tuple
    choices: tuple[ModuleChoice, ...] = ()


class Transform(ABC):
    """A transform that counts its changes or needs the component's inputs; others may be plain functions.

    It changes the module in place, or returns another one that shares the tensors that calls change (caches,
    positions), since state is restored through the component's own module.
    """

    #: Whether later calls run none of the module's Python code, so that its numbers and attributes keep their values.
    runs_no_python: ClassVar[bool] = False

    def unavailable(self, device: torch.device) -> str | None:
        """Return why this transform cannot run on `device` (its cells are then skipped), or None."""
        return None

    @abstractmethod
    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Return the transformed module. `module` is the result of the transform before; `component` has the inputs.

        Raises:
            InputError: the module cannot be transformed.

        """


#: What `transforms` holds.
AnyTransform = Transform | Callable[[nn.Module], nn.Module]


class Compiler(ABC):
    """Turns a module into a faster callable; a frozen dataclass whose fields are the options of its YAML."""

    #: Suffix of the files that it writes for an application to load; None: it writes none.
    package_suffix: ClassVar[str | None] = None
    #: Whether later calls run none of the module's Python code, so that its numbers and attributes keep their values.
    runs_no_python: ClassVar[bool] = False

    @property
    def own_graphs(self) -> str | None:
        """The option that turns on CUDA graphs of its own (`mode=reduce-overhead`), or None."""
        return None

    def misfit(self, transforms: Sequence[AnyTransform], capture: CudaGraph | None) -> str | None:
        """Return why it cannot be combined with the other steps, and what to write instead, or None.

        Called when the config is read.
        """
        return None

    def unavailable(self, device: torch.device) -> str | None:
        """Return what this machine lacks to compile for `device` (its cells are then skipped), or None."""
        return None

    def start_workers(self, device: torch.device) -> None:
        """Start processes that compiling for `device` needs, without waiting; called before the module is built."""
        return None

    def flags(self, folder: Path) -> AbstractContextManager[Any]:
        """Set the global flags for compiling and for all later calls; leaving the context restores them."""
        return nullcontext()

    @abstractmethod
    def compile(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, written: Mapping[str, Tensor]
    ) -> Outcome:
        """Compile for all arguments in `examples`, which differ in shape; later calls must not compile.

        It may call the module on them. `folder` is the cell's own path in the run folder for files worth keeping,
        `written` has the module's tensors that calls write to, by path.

        Raises:
            InputError: this compiler cannot compile the module.
            RuntimeError: nothing was compiled, or less than the options promise.

        """


@dataclass(frozen=True, kw_only=True)
class Recipe(Variant):
    """Transform the module, compile it, capture it. Without any of these, it is eager PyTorch.

    Raises:
        InputError: a transform cannot be called, a compiler or capture has another type, steps cannot be combined, or
        the tolerance is below 0 or infinite.

    """

    transforms: Sequence[AnyTransform] = ()
    names: Sequence[str] = ()  # of the transforms, in messages and in the record; none: those of their classes
    compiler: Compiler | None = None
    capture: CudaGraph | None = None
    needs_changes: bool = True  # whether a transform that changes nothing in the module ends the preparation

    def __post_init__(self) -> None:
        """Check the steps before any module is built."""
        super().__post_init__()
        check_callables("transforms", self.transforms, or_of=(Transform,))
        if self.names and len(self.names) != len(self.transforms):
            given = f"names={list(self.names)}: there are {len(self.transforms)} transforms."
            raise InputError(f"{given} Name each of them, or none.")
        for number, each in enumerate(self.transforms):
            if isinstance(each, RewritePass):
                raise InputError(
                    f"transforms.{number}: {name_of(each)} rewrites a graph, not a module. Write {{_target_: "
                    "profiling.variants.rewrite.Rewrite, passes: [...]}, with it among the passes."
                )
        for name, value, kind, example in (
            ("compiler", self.compiler, Compiler, "profiling.variants.inductor.Inductor"),
            ("capture", self.capture, CudaGraph, "profiling.variants.cuda_graph.CudaGraph"),
        ):
            if value is not None and not isinstance(value, kind):
                raise InputError(
                    f"{name}={printable(repr(value), 100)} is no {kind.__name__}. Give it a _target_, {example} for "
                    "example, or write null for none."
                )
        if self.compiler is not None:
            misfit = self.compiler.misfit(self.transforms, self.capture)
            if misfit is not None:
                raise InputError(f"compiler: {misfit}")

    def unavailable(self, device: torch.device) -> str | None:
        """Return why one of the steps cannot run on `device`, or None."""
        for step in (self.capture, self.compiler, *self.transforms):
            unavailable: Any = getattr(step, "unavailable", None)
            if callable(unavailable) and (reason := unavailable(device)) is not None:
                return str(reason)
        return None

    def start_workers(self, device: torch.device) -> None:
        """Start the processes that the compiler needs."""
        if self.compiler is not None:
            self.compiler.start_workers(device)

    def aliasing(self) -> Recipe:
        """Return this recipe with outputs that the next call may overwrite."""
        return self if self.capture is None else replace(self, capture=replace(self.capture, alias_outputs=True))

    def __call__(self, component: Component, folder: Path) -> Step:
        """Run the steps of the recipe, and return the prepared step.

        Raises:
            InputError: a transform or the compiler refuses the module, or a transform returns no module.
            SkippedError: a transform changes nothing in the module, or the compiler finds nothing to compile in it.
            RuntimeError: a transform or the compiler failed.
            CaptureError: the call cannot be captured.

        """
        inputs = (*component.extra_inputs, component.inputs)
        self._check_state(component)
        with ExitStack() as stack:
            log = _Log(component.device, stack, self.compiler is not None)
            module = component.module
            if self.transforms:
                with component.kept.replacing():
                    module = self._transformed(component, log)
            if (
                self._is_graph
            ):  # a capture calls it eagerly first, to see what its operators do, also where it is compiled
                for each in inputs:
                    compile_kernels(module, each)
            call: Callable[..., Any] = module
            engine = None
            with naming_what_fails(module, component, log.replaced, compiled=self.compiler is not None):
                if self.compiler is not None:
                    stack.enter_context(self.compiler.flags(folder))  # set until the step is closed
                    call = self._compiled(self.compiler, module, component, folder, log)
                if self.capture is not None:
                    with log.step("capture", type(self.capture).__name__) as done:
                        engine = self.capture.captured(component, module, call)
                        notes = tuple(component.kept.effects.notes())
                        done.append(Outcome(engine, changed=len(inputs), notes=notes, close=engine.clear))
                    check_reset(component)
                elif self.compiler is None:
                    for each in inputs:
                        call(**each)
            *extra_steps, run = [partial(call if engine is None else engine, **each) for each in inputs]
            static = None if engine is None else engine.static_step(**component.inputs)
            if engine is not None:
                log.explain.append(partial(_graphs, engine))
            return Step(
                run=run,
                close=stack.pop_all().close,
                explain=partial(_merged, log.explain),
                static=None if static is None else Static(*static),
                extra_steps=tuple(extra_steps),
                eager_step=self._eager_step(module, partial(call, **component.inputs)),
                recipe=tuple(log.steps),
            )

    @property
    def frozen_step(self) -> Any:
        """The step because of which later calls run no Python of the module; None: they do."""
        steps = [each for each in (self.capture, self.compiler, *self.transforms) if each is not None]
        return next((each for each in steps if getattr(each, "runs_no_python", False)), None)

    @property
    def _is_graph(self) -> bool:
        """Whether a transform turns the module into a graph, whose calls run none of its Python code."""
        return any(getattr(each, "runs_no_python", False) for each in self.transforms)

    def _check_state(self, component: Component) -> None:
        """Refuse a module whose Python state changes from call to call, where later calls would run no Python.

        Raises:
            CaptureError: of a recipe with a capture.
            SkippedError: of one that exports or rewrites the module.

        """
        frozen = self.frozen_step
        if frozen is None or (reason := component.refusal()) is None:
            return
        raise (CaptureError if frozen is self.capture else SkippedError)(f"{name_of(frozen)} {reason}")

    def _transformed(self, component: Component, log: _Log) -> nn.Module:
        module = component.module
        for transform, name in zip(self.transforms, self.names or map(name_of, self.transforms), strict=True):
            with log.step("transform", name) as done:
                try:
                    done.append(_applied(transform, name, module, component))
                except NothingChangedError as error:
                    raise NothingChangedError(f"transform {name}: {error}") from error
            module = _module(done[0].call, name)
            if self.needs_changes:
                check_changes([log.steps])
        return module

    def _compiled(
        self, compiler: Compiler, module: nn.Module, component: Component, folder: Path, log: _Log
    ) -> Callable[..., Any]:
        examples, written = (*component.extra_inputs, component.inputs), component.kept.written()
        with log.step("compiler", type(compiler).__name__) as done, ExitStack() as as_captured:
            if self.capture is not None:  # otherwise the capture, which begins with the own inputs, would compile again
                examples = examples[::-1]
                as_captured.enter_context(no_autocast_cache())
                as_captured.enter_context(_unchanged(component))
            outcome = compiler.compile(module, examples, folder, written)
            done.append(_checked(outcome, f"compile() of {type(compiler).__name__}"))
        return outcome.call

    def _eager_step(self, module: nn.Module, call: Callable[[], Any]) -> EagerStep | None:
        if self.compiler is not None and self.compiler.own_graphs is not None:
            return None
        fused = self.compiler is not None or self._is_graph
        if self.capture is not None:
            call = no_autocast_cache()(call)  # as in the capture: a compiled call would otherwise compile again
        return EagerStep(call, None if fused else module)


@dataclass
class _Log:
    """The seconds and changes of each step of a recipe, which `closing` undoes."""

    device: torch.device
    closing: ExitStack
    compiled: bool
    steps: list[RecipeStep] = field(default_factory=list)
    replaced: list[ModuleChoice] = field(default_factory=list)  # layers, by transforms
    explain: list[Callable[[], Mapping[str, Any]]] = field(default_factory=list)

    @contextmanager
    def step(self, kind: Literal["transform", "compiler", "capture"], name: str) -> Iterator[list[Outcome]]:
        """Time a step; the block appends its outcome to the yielded list."""
        done: list[Outcome] = []
        started = perf_counter()
        yield done
        self.closing.callback(done[0].close)
        synchronize(self.device)
        seconds, outcome = perf_counter() - started, done[0]
        replaced = [each for each in outcome.choices if each.left is None]
        self.replaced += replaced
        self.explain += [outcome.explain, *([] if self.compiled else [outcome.explain_uncompiled])]
        self.steps.append(
            RecipeStep(
                kind=kind,
                name=name,
                seconds=seconds,
                changed=len(replaced) if outcome.choices else outcome.changed,
                choices=choices_section(outcome.choices) if outcome.choices else None,
                packages=outcome.packages or None,
                shapes=outcome.shapes if len(outcome.shapes) > 1 else None,
                notes=tuple(dict.fromkeys(outcome.notes)),
            )
        )


def check_changes(recipes: Iterable[Sequence[RecipeStep]]) -> None:
    """Check that each transform of a variant changed one of the modules that were prepared by `recipes`.

    Raises:
        SkippedError: a transform counted no changes in any of them.

    """
    for steps in zip(*recipes, strict=False):
        if all(step.kind == "transform" and step.changed == 0 for step in steps):
            reasons = dict.fromkeys(note for step in steps for note in step.notes)
            why = f": {'; '.join(reasons)}" if reasons else ""
            raise SkippedError(f"transform {steps[0].name} {CHANGES_NOTHING}{why}")


@contextmanager
def _unchanged(component: Component) -> Iterator[None]:
    """After the block, restore the component's state and the random number generators."""
    inputs = (component.inputs, component.extra_inputs)
    generators = [leaf for _, leaf in keyed_leaves(inputs) if isinstance(leaf, torch.Generator)]
    restore = component.keep_state()
    with preserved_generators(generators, component.device):
        try:
            yield
        finally:
            restore()


def _checked(outcome: Any, where: str) -> Outcome:
    """Return what a user's own method returned, if it is an `Outcome`."""
    if not isinstance(outcome, Outcome):
        raise InputError(f"{where} returned {type(outcome).__name__}. Return profiling.variants.recipe.Outcome(...).")
    return outcome


def _module(result: Any, name: str) -> nn.Module:
    """Return the result of a transform, if it is a module."""
    if not isinstance(result, nn.Module):
        raise InputError(f"transform {name} returned {type(result).__name__}. Return a torch.nn.Module.")
    return result


def _applied(transform: Any, name: str, module: nn.Module, component: Component) -> Outcome:
    try:
        if isinstance(transform, Transform):
            outcome = _checked(transform.apply(module, component), f"apply() of {name}")
        else:
            outcome = Outcome(_module(transform(module), name))
        choices = getattr(transform, "choices", None)
        if choices is not None and not outcome.choices and isinstance(changed := outcome.call, nn.Module):
            notes, ran = fallbacks(changed, component)
            if not ran and component.device.type == "cuda":
                raise NothingChangedError(f"{DID_NOTHING}: {'; '.join(notes)}")
            notes = (*outcome.notes, *notes)
            outcome = replace(outcome, choices=tuple(choices_of(choices(changed), changed)), notes=notes)
    except Exception as error:
        if isinstance(error, InputError | SkippedError) or is_device_failure(error):
            raise
        raise RuntimeError(f"transform {name} raised {reason_of(error)}") from error
    if outcome.choices and all(each.left is not None for each in outcome.choices):
        raise NothingChangedError(f"{DID_NOTHING}: {why_nothing(outcome.choices)}")
    return outcome


def _graphs(engine: CudaGraphed) -> Mapping[str, Graphs]:
    """Return the record's section of the graphs that `engine` holds."""
    captured, counters = engine.newest, engine.counters
    memory = {} if captured is None else {point: MemoryKinds(**kinds) for point, kinds in captured.memory.items()}
    held, seconds = counters.held, counters.capture_seconds
    return {"graphs": Graphs(held=held, capture_seconds=seconds, pool_bytes=counters.pool_bytes, memory=memory)}


def _merged(explain: Iterable[Callable[[], Mapping[str, Any]]]) -> Mapping[str, Any]:
    """Return the sections of all steps; rows of the same section are joined."""
    merged: dict[str, Any] = {}
    for each in explain:
        for name, section in each().items():
            rows = isinstance(section, tuple) and name in merged
            merged[name] = (*merged[name], *section) if rows else section
    return merged
