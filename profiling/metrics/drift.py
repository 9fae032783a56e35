"""Drift: how far a step that feeds on its own results is from eager after one call, ten, three hundred.

Parity looks at one call. A network that keeps state hands every rounding error on to the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profiling.components.component import Component
from profiling.components.reference import Outputs, relative_l2, to_host
from profiling.errors import InputError
from profiling.metrics.metric import Measured, Metric, Subject


@dataclass(frozen=True, kw_only=True)
class Drift(Metric):
    """Follow eager, in the run's own dtype, for `calls` calls from the start, each with inputs of its own.

    `tolerance` is what the relative L2 error may be at any call (None: the drift is shown and not judged).

    Raises:
        InputError: fewer than one call, or a tolerance that nothing could keep.

    """

    calls: int = 300
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be followed."""
        if isinstance(self.calls, bool) or not isinstance(self.calls, int) or self.calls < 1:
            raise InputError(f"calls={self.calls!r}: a whole number, at least 1.")
        if self.tolerance is not None and not self.tolerance > 0:
            raise InputError(f"tolerance={self.tolerance}: above 0, or null.")

    def measure(self, subject: Subject) -> Measured:
        """Run eager, then the step, over the same calls, and compare them one by one."""
        component = subject.component
        expected = self._follow(component, component.call, subject.seed)
        found = self._follow(component, subject.step.run, subject.seed)
        component.refill(subject.seed)
        component.reset()
        errors = [relative_l2(*pair) for pair in zip(found, expected, strict=True)]
        worst = max(errors)
        if worst == float("inf"):
            call = errors.index(worst)
            return Measured({}, ("failed", f"drift: call {call} is not finite, or of another form than eager's"))
        section: dict[str, Any] = {"calls": self.calls, "rel_l2": errors, "max": worst, "last": errors[-1]}
        if self.tolerance is not None and worst > self.tolerance:
            reason = f"drift: {worst:.2g} from eager in call {errors.index(worst)}, allowed {self.tolerance:.2g}"
            return Measured({"drift": section}, ("failed", reason))
        return Measured({"drift": section})

    def _follow(self, component: Component, run: Callable[[], Any], seed: int) -> list[Outputs]:
        component.reset()
        outputs = []
        for call in range(self.calls):
            component.refill(seed + call)
            outputs.append(to_host(run()))
        return outputs
