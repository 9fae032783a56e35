"""The interface of a metric: options, an observation at each phase of the cell, a measurement pass of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from profiling.components.component import Component
from profiling.components.reference import Reference
from profiling.variants.variant import Step


@dataclass(frozen=True)
class Measured:
    """What a metric measured, by name, and whether the cell can still be ok.

    `memory` and `parity` are sections of the record, fields of `profiling.results.record.Metrics` are typed, and any
    other name, with any JSON content, goes to `metrics.extra`. `problem` is (status, one-line reason): `invalid` where
    another program was timed, `failed` where the result is wrong.
    """

    sections: Mapping[str, Any]
    problem: tuple[Literal["failed", "invalid"], str] | None = None


@dataclass(frozen=True)
class Subject:
    """What a metric measures: a prepared step of a component, and the reference for its outputs."""

    component: Component
    step: Step
    reference: Reference | None
    tolerance: float | None  # of the variant; None: the metric's own
    seed: int


class Metric(ABC):
    """A measurement. Subclasses are dataclasses; their fields are the options of their YAML."""

    #: Whether the cell must compute the float32 reference, which needs a float32 copy of the weights meanwhile.
    needs_reference: ClassVar[bool] = False

    def on_phase(self, phase: str, device: torch.device) -> None:  # noqa: B027 - most metrics observe nothing
        """Observe the process when the cell has reached `phase` (start, loaded, inputs, prepared)."""

    @abstractmethod
    def measure(self, subject: Subject) -> Measured:
        """Measure the step in a pass of its own."""
