"""A variant: a frozen set of options that turns a component into a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from profiling.components.component import Component
from profiling.errors import InputError, check_number
from profiling.results.explanations import RecipeStep


@dataclass(frozen=True)
class EagerStep:
    """The step with every kernel launched by the host: the step itself, or the call that it captured.

    A trace of it attributes the kernels of a replay to operators and submodules. `module` is the module whose
    submodules run one after the other in the call; None where a compiler fused them.
    """

    call: Callable[[], Any]
    module: nn.Module | None = None


@dataclass(frozen=True)
class Static:
    """The tensors that a captured step reads, as arguments of `forward`, and the step that takes them from there."""

    inputs: Mapping[str, Any]
    run: Callable[[], Any]


@dataclass(frozen=True)
class Step:
    """A prepared step: `run` takes no arguments, reads the component's inputs and returns the output.

    Attributes:
        run: the step.
        close: restores the global flags that the variant set, and frees its graphs.
        explain: returns sections of the record that only the variant can fill, structs of `profiling.results.record` by
            field name (`graphs`, `passes`). It is called once, after every metric, and may run the step.
        extra_steps: steps of the component's `extra_inputs`, in their order, prepared with this one.
        eager_step: for the profiler; None where the variant has nothing that launches kernel by kernel.
        advance: puts the inputs of the next call of the trajectory in place, and S0 before its first call.
        rewind: the latter only.
        recipe: seconds, changes and memory of each step of the preparation, for the record.
        static: the same step on inputs that lie where it reads them, where `run` copies them there.

    """

    run: Callable[[], Any]
    close: Callable[[], Any] = tuple
    explain: Callable[[], Mapping[str, Any]] = dict
    extra_steps: tuple[Callable[[], Any], ...] = ()
    eager_step: EagerStep | None = None
    advance: Callable[[], Any] = tuple
    rewind: Callable[[], Any] = tuple
    static: Static | None = None
    recipe: tuple[RecipeStep, ...] = ()

    def call(self) -> Any:
        """Run the step as the next call of the trajectory, and return the output."""
        self.advance()
        return self.run()

    def repeat(self) -> Any:
        """Run the step on the inputs that lie there: what a profiler sees is the step alone."""
        self.rewind()
        return self.run()


@dataclass(frozen=True, kw_only=True)
class Variant(ABC):
    """A way to execute a component; its fields are the options of its YAML.

    `tolerance` replaces the default parity tolerance (relative L2 error, no unit) where the variant is inexact by
    design, a quantised one for example.

    Raises:
        InputError: the tolerance is no finite number of at least 0.

    """

    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check the tolerance before anything is compiled: one below 0 fails every output, infinity accepts any."""
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance, least=0)

    def unavailable(self, device: torch.device) -> str | None:
        """Return why this variant cannot run on `device` (its cells are then skipped), or None."""
        return None

    def start_workers(self, device: torch.device) -> None:
        """Start processes that `prepare` needs, without waiting for them; called before the component is built."""
        return None

    def aliasing(self) -> Self:
        """Return this variant with outputs that the next call may overwrite, where it has an option for that."""
        return self

    def prepare(self, component: Component, folder: Path) -> Step:
        """Prepare `component` from S0; `Step.call` then plays its trajectory.

        Raises:
            InputError: the variant of a user's own returns no Step.

        """
        component.reset()  # captured graphs read the tensors of this state, which are kept
        step: Any = self(component, folder)
        if not isinstance(step, Step):
            raise InputError(
                f"{type(self).__name__}() returned {type(step).__name__}. Return profiling.variants.variant.Step(...)."
            )
        component.reset()  # calls of a compiler have advanced it
        return replace(step, advance=component.advance, rewind=component.rewind)

    @abstractmethod
    def __call__(self, component: Component, folder: Path) -> Step:
        """Prepare `component`: all compiling, warming up and capturing happens here, before any timing.

        `folder` is the cell's own path in the run folder for files worth keeping; the variant creates it if needed.
        """
