"""Drift: the error of a stateful step against eager over many calls.

Parity compares one call. A network that keeps state passes each rounding error on to the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from profiling.components.component import Component
from profiling.components.outputs import Difference, OutputLog, Outputs, difference, to_host
from profiling.errors import check_number, check_whole
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.results.measured import Drift as DriftSection


@dataclass(frozen=True, kw_only=True)
class Drift(Metric):
    """Compare with eager in the run's dtype over `calls` calls from the reset state, with new inputs at each call.

    `tolerance` is the largest relative L2 error allowed at any call; with None no error fails the cell.

    Outputs are compared call by call. Those of eager, which must come first, lie in host memory up to a limit, else in
    a temporary file (`OutputLog`).

    Raises:
        InputError: fewer than one call, or a tolerance that is not above 0.

    """

    calls: int = 300
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("calls", self.calls)
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance, above=0)

    def expected(self, component: Component, seed: int) -> OutputLog:
        """Return the outputs of eager calls, made before a transform can change the module in place."""
        outputs = OutputLog()
        for output in self._outputs(component, component.call, seed):
            outputs.append(output)
        return outputs

    def measure(self, subject: Subject) -> Measured:
        """Make the same calls of the step, and compare each with the eager one."""
        expected = subject.expected or self.expected(subject.component, subject.seed)
        outputs = self._outputs(subject.component, subject.step.run, subject.seed)
        return self.compared([difference(*pair) for pair in zip(outputs, expected, strict=True)])

    def compared(self, differences: Sequence[Difference]) -> Measured:
        """Return the section of the record, and the problem that the differences show, if any."""
        for call, each in enumerate(differences):
            if each.fault is not None:
                return Measured({}, ("failed", f"drift: unlike eager's in call {call}: {each.fault}"))
        errors = [each.error for each in differences]
        worst = max(errors)
        section = DriftSection(rel_l2=tuple(errors), max=worst)
        if self.tolerance is not None and worst > self.tolerance:
            reason = f"drift: relative L2 error {worst:.2g} in call {errors.index(worst)}, allowed {self.tolerance:.2g}"
            return Measured({"drift": section}, ("failed", reason))
        return Measured({"drift": section})

    def _outputs(self, component: Component, run: Callable[[], Any], seed: int) -> Iterator[Outputs]:
        """Yield the output of each call from the reset state, to which the last one returns."""
        component.reset()
        for call in range(self.calls):
            component.feed(call)
            yield to_host(output=run())
        component.refill(seed)
        component.reset()
