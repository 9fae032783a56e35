"""The interface of a metric: its options, an observation at each phase of the cell, and a measurement pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from profiling.components.component import Component
from profiling.components.reference import Reference
from profiling.metrics.sampling import TakeTurns
from profiling.variants.variant import Step


@dataclass(frozen=True)
class Measured:
    """Results of a metric, by name, and the problem that it detected, if any.

    The names `memory` and `parity` are sections of the record, and fields of `profiling.results.record.Metrics` are
    typed. Any other name goes to `metrics.extra`, with any JSON content. `problem` is (status, one-line reason):
    `invalid` if another program was timed, `failed` if the result is wrong.
    """

    sections: Mapping[str, Any]
    problem: tuple[Literal["failed", "invalid"], str] | None = None

    def __post_init__(self) -> None:
        """Check both, so that the traceback of a mistake shows the metric's own line.

        Raises:
            TypeError: `sections` is no mapping with names as keys.
            ValueError: `problem` is neither None nor a pair as above.

        """
        if not isinstance(self.sections, Mapping) or not all(isinstance(name, str) for name in self.sections):
            raise TypeError("sections must map the names of the results to them")
        match self.problem:
            case None | ("failed" | "invalid", str()):
                return
        raise ValueError(f'problem={self.problem!r} must be None, ("failed", REASON) or ("invalid", REASON)')


@dataclass(frozen=True)
class Subject:
    """The subject of a measurement: a prepared step of a component, and the reference for its outputs."""

    component: Component
    step: Step
    reference: Reference | None
    tolerance: float | None  # the variant's; None: the metric's own tolerance applies
    seed: int
    take_turns: TakeTurns | None = None  # None: nothing else is measured between its samples
    around: Callable[[Callable[[], Any]], Any] | None = None  # makes each call of the first trajectory, to watch it
    expected: Any = None  # what the metric's own `expected` returned before the variant was prepared


class Metric(ABC):
    """A measurement. Subclasses are dataclasses whose fields are the options in their YAML."""

    #: Whether the cell must compute the reference, which temporarily needs a float32 copy of the weights if one fits.
    needs_reference: ClassVar[bool] = False
    #: Whether it waits for its turns in the middle of `measure`.
    takes_turns: ClassVar[bool] = False

    def on_phase(self, phase: str, device: torch.device) -> None:  # noqa: B027 - most metrics observe nothing
        """Observe the process when the cell has reached `phase` (start, loaded, inputs, prepared)."""

    def expected(self, component: Component, seed: int) -> Any:
        """Return what `measure` needs of the module before the variant, which may change it in place."""
        return None

    @abstractmethod
    def measure(self, subject: Subject) -> Measured:
        """Measure the step in a separate pass."""
