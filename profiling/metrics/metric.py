"""What a measurement is: frozen options, a look at each phase of the cell, and a pass of its own."""

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
    """Record sections by name (one that is no field of the record goes under `metrics`), and what speaks against them.

    `problem` is the status that the cell falls to and the one-line reason: `invalid` where something disturbed the
    measurement, `failed` where the step's result is wrong.
    """

    sections: Mapping[str, Any]
    problem: tuple[Literal["failed", "invalid"], str] | None = None


@dataclass(frozen=True)
class Subject:
    """What a metric measures: a prepared step of a component, and the reference that it must agree with."""

    component: Component
    step: Step
    reference: Reference | None
    tolerance: float | None  # the variant's own, if it has one
    seed: int


class Metric(ABC):
    """A measurement. Subclasses are dataclasses whose fields are the options of their YAML."""

    #: Whether the cell must compute the float32 reference, which costs a float32 copy of the weights while it does.
    needs_reference: ClassVar[bool] = False

    def on_phase(self, phase: str, device: torch.device) -> None:  # noqa: B027 - most metrics have nothing to look at
        """Look at the process when the cell has reached `phase` (start, loaded, inputs, prepared)."""

    @abstractmethod
    def measure(self, subject: Subject) -> Measured:
        """Take samples of the step in a pass of its own."""
