"""Parity: the step's error against the fp32 reference, before any timing, on inputs that it was not prepared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from profiling.components.reference import CHECK_SEED, Outputs, relative_l2, to_host
from profiling.errors import check_number
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.results.record import Parity as ParitySection


@dataclass(frozen=True, kw_only=True)
class Parity(Metric):
    """Compare with the fp32 eager reference.

    The largest relative L2 error allowed is `factor` times that of eager in the run's dtype, and at least `floor`: in
    float32, eager is the reference and has an error of 0, but another order of the same sums is no fault.

    Raises:
        InputError: a factor below 1 or a negative floor, which eager itself would fail.

    """

    factor: float = 2.0
    floor: float = 1e-4
    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("factor", self.factor, least=1)
        check_number("floor", self.floor, least=0)

    def measure(self, subject: Subject) -> Measured:
        """Run the step on the check inputs, then restore the run's own inputs."""
        component, reference = subject.component, subject.reference
        assert reference is not None, "the cell computes a reference if a metric needs one"
        component.reset()
        component.refill(subject.seed + CHECK_SEED)
        outputs = to_host(subject.step.run())
        component.refill(subject.seed)
        component.reset()
        eager = relative_l2(reference.eager, reference.outputs)
        tolerance = subject.tolerance if subject.tolerance is not None else max(self.factor * eager, self.floor)
        if outputs.keys() != reference.outputs.keys():
            reason = f"parity: the outputs are {sorted(outputs)}, those of the reference {sorted(reference.outputs)}"
            return Measured({"parity": ParitySection(reference="fp32 eager", passed=False)}, ("failed", reason))
        error = relative_l2(outputs, reference.outputs)
        passed = math.isfinite(eager) and error <= tolerance
        numbers: dict[str, Any] = {
            "rel_l2": error,
            "eager_rel_l2": eager,
            "tolerance": tolerance,
            "max_abs": max_abs(outputs, reference.outputs),
            **decibels(component.kind, outputs, reference.outputs),
        }
        finite: dict[str, Any] = {name: value for name, value in numbers.items() if math.isfinite(value)}
        section = {"parity": ParitySection(reference="fp32 eager", passed=passed, **finite)}
        if passed:
            return Measured(section)
        if not math.isfinite(eager):
            reason = f"parity: eager's own output in {str(component.dtype).removeprefix('torch.')} is not finite"
            return Measured(section, ("failed", reason))
        value = f"{error:.2g}" if math.isfinite(error) else "not finite"
        reason = f"parity: relative L2 error {value} against the fp32 eager reference, allowed {tolerance:.2g}"
        return Measured(section, ("failed", reason))


def max_abs(outputs: Outputs, reference: Outputs) -> float:
    """Return the largest absolute difference over all outputs, in the outputs' unit; inf where shapes differ."""
    return max(
        float((outputs[path].double() - expected.double()).abs().max())
        if outputs[path].shape == expected.shape
        else math.inf
        for path, expected in reference.items()
    )


def decibels(kind: str | None, outputs: Outputs, reference: Outputs) -> dict[str, float]:
    """Return PSNR for pictures (peak: the reference's range) and SNR for sound, of the worst output, in dB."""
    if kind is None:
        return {}
    values = []
    for path, expected in reference.items():
        wide, output = expected.double(), outputs[path].double()
        if output.shape != wide.shape:
            return {}
        noise = float((output - wide).square().mean())
        signal = float((wide.max() - wide.min()).square()) if kind == "image" else float(wide.square().mean())
        if noise > 0 and signal > 0:
            values.append(10 * math.log10(signal / noise))
    return {"psnr_db" if kind == "image" else "snr_db": min(values)} if values else {}
