"""Parity: a step's errors over a trajectory, against the fp32 reference, before any timing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from profiling.components.agreement import FLOOR, JudgedLeaf, Rules, Verdict, check, check_log
from profiling.components.outputs import OutputLog, Outputs, Path, mismatch, on_device, readable
from profiling.components.reference import Reference
from profiling.errors import check_number
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.results.measured import OutputError
from profiling.results.measured import Parity as ParitySection

#: Number of outputs whose errors are recorded, the worst first.
RECORDED = 16


@dataclass(frozen=True, kw_only=True)
class Parity(Metric):
    """Compare each tensor and number of the output with the reference, in each call of a trajectory from S0.

    In call k the largest error allowed of an output is `factor` times the largest of eager in the run's dtype in calls
    1 to k, at least `floor` and a few roundings of its dtype; likewise that of its worst part (a slice, a tile, a block
    of sound). In float32, eager is the reference and has an error of 0, but another order of the same sums is no fault.
    Integers of 8 and 16 bits are samples (pixels, sound) and judged likewise. Of a wider integer or bool tensor the
    fraction of differing elements may be `factor` times that of eager (0: none may differ); one that is exactly eager's
    is right. A variant's own tolerance takes the place of the rule, and grows with eager's error from call to call.

    The global random generators begin with the same seed on both sides. Where a module draws from them and the step
    draws other numbers, `factor` times the difference of two eager trajectories is allowed too. So is, in float32,
    `factor` times what rounding errors alone change in eager's output: a network may amplify them. If that would allow
    anything in the first call, parity is undecided, and fails; in a later one, the calls before are judged.

    Structure, dtype, shape, device and other values must be those of eager in the run's dtype. So must the inputs after
    the call, which a step must not write to unless eager does, and the state that eager's calls change, after the last.

    Raises:
        InputError: a factor below 1 or a negative floor, which eager itself would fail.

    """

    factor: float = 2.0
    floor: float = FLOOR
    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("factor", self.factor, least=1)
        check_number("floor", self.floor, least=0)

    def measure(self, subject: Subject) -> Measured:
        """Play the trajectory with the step, then restore the run's own inputs and S0."""
        component, reference = subject.component, subject.reference
        assert reference is not None, "the cell computes a reference if a metric needs one"
        own = Rules(factor=self.factor, floor=self.floor, tolerance=subject.tolerance)
        similar: dict[str, float] = {}

        def compare(output: Outputs, expected: Outputs) -> None:
            if mismatch(output, expected, dtypes=False) is None:
                for name, value in similarity(component.kind, output, expected).items():
                    similar[name] = min(value, similar.get(name, value))

        compiled = any(each.kind == "compiler" for each in subject.step.recipe)
        verdict, rules = check(
            component, subject.step.run, reference, own, compiled=compiled, around=subject.around, on_output=compare
        )
        component.refill(subject.seed)
        component.reset()
        if component.device.type == "cuda":  # outputs were compared there: that memory is none of the step's
            torch.cuda.empty_cache()
        return _measured(verdict, reference.name(component.dtype), rules, similar)

    def of_pipeline(
        self, log: OutputLog, reference: Reference, dtype: torch.dtype, tolerance: float | None
    ) -> Measured:
        """Compare what several stages together delivered, tick by tick; there is no state to compare.

        `tolerance` is the largest of a stage. Where another stage has none, what this metric allows is right, too.
        """
        rules = Rules(factor=self.factor, floor=self.floor, tolerance=tolerance, several=True)
        verdict, rules = check_log(log, reference, rules, dtype)
        return _measured(verdict, reference.name(dtype), rules, {})


def _measured(verdict: Verdict, name: str, rules: Rules, similar: Mapping[str, float]) -> Measured:
    """Return what the record holds of a verdict, and the problem where it has not passed."""
    excuse = {}
    if rules.excuse and verdict.numbers and "repeat_rel_l2" not in verdict.numbers:
        excuse["rounding_rel_l2"] = max(whole for each in rules.excuse for whole, *_ in each.values())
    shown = [leaf for leaf in verdict.leaves[:RECORDED] if _is_output(leaf.error.path) or leaf.excess[1]]
    section = ParitySection(
        reference=name,
        passed=verdict.passed,
        calls=verdict.calls or None,
        wrong_from=verdict.wrong_from,
        outputs=tuple(map(_output_error, shown)),
        **_finite({**verdict.numbers, **excuse, **similar}),
    )
    return Measured({"parity": section}, None if verdict.passed else ("failed", f"parity: {verdict.reason}"))


def _output_error(leaf: JudgedLeaf) -> OutputError:
    error, form = leaf.error, leaf.error.leaf
    shape = tuple(form.shape) if all(isinstance(size, int) for size in form.shape) else None
    numbers: dict[str, float] = {"tolerance": leaf.tolerance, "max_abs": error.max_abs}
    numbers |= {"differing": error.error} if error.exact else {"rel_l2": error.error}
    if error.local:
        numbers |= {"local": error.local, "local_tolerance": leaf.local_tolerance}
    return OutputError(
        path=readable(error.path), dtype=form.dtype or form.form, shape=shape, passed=leaf.passed, **_finite(numbers)
    )


def _is_output(path: Path) -> bool:
    """Return whether a path belongs to the output, and not to the inputs as the call left them."""
    return path[0] == "output"


def _finite(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Leave out numbers that are not finite, which a record cannot hold."""
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def similarity(kind: str | None, outputs: Outputs, reference: Outputs) -> dict[str, float]:
    """Return (PSNR of pictures, with the reference's range as peak, else SNR, in dB; cosine) of the worst output.

    Without a `kind`, integers are left out: they may be indices.
    """
    ratios, cosines = list[float](), list[float]()
    for path, leaf in reference.items():
        output = outputs[path]
        if not _is_output(path) or leaf.numbers is None or output.numbers is None or leaf.kind == "complex":
            continue
        if not output.numbers.numel() or (kind is None and leaf.kind != "floating"):
            continue
        ratio, cosine = on_device(partial(_similarity, kind), output, leaf)
        ratios += [] if ratio is None else [ratio]
        cosines += [] if cosine is None else [cosine]
    ratio = {"psnr_db" if kind == "image" else "snr_db": min(ratios)} if ratios else {}
    return {**ratio, "cosine": min(cosines)} if cosines else ratio


def _similarity(kind: str | None, actual: torch.Tensor, expected: torch.Tensor) -> tuple[float | None, float | None]:
    """Return (ratio of signal and noise in dB, cosine) of tensors; None where there is none."""
    wide, other = expected.double(), actual.double()
    noise, energy = float((other - wide).square().mean()), float(wide.square().mean())
    signal = float((wide.max() - wide.min()).square()) if kind == "image" else energy
    is_known = 0 < noise < math.inf and 0 < signal < math.inf
    norms = math.sqrt(energy * float(other.square().mean()))
    return (
        10 * (math.log10(signal) - math.log10(noise)) if is_known else None,
        float((wide * other).mean()) / norms if norms > 0 else None,
    )
