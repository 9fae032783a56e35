"""Parity: the step's error against the fp32 reference, before any timing, on inputs that it was not prepared with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from profiling.components.outputs import LeafError, Outputs, Path, leaf_errors, mismatch, readable
from profiling.components.reference import CHECK_SEED, CheckCalls, Reference, check_calls, effects, rounding_effects
from profiling.errors import check_number
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.results.record import OutputError
from profiling.results.record import Parity as ParitySection

#: Least tolerance where eager in half precision is itself the reference, in roundings of the dtype.
EAGER_ROUNDINGS = 4
#: Number of outputs whose errors are recorded, the worst first.
RECORDED = 16
#: Largest fraction of elements of an integer or bool output that may differ, however many of eager's own do.
MOST_DIFFERING = 0.5


@dataclass(frozen=True, kw_only=True)
class Parity(Metric):
    """Compare each tensor and number of the output with the reference, in two calls on the same inputs.

    The largest relative L2 error allowed is `factor` times that of eager in the run's dtype, and at least `floor`: in
    float32, eager is the reference and has an error of 0, but another order of the same sums is no fault. Where eager
    in half precision is the reference, at least 4 roundings of its dtype are allowed. Integers of 8 and 16 bits are
    samples (pixels, sound) and judged likewise. Of a wider integer or bool tensor the fraction of differing elements
    may be `factor` times that of eager (0: none may differ); one that is exactly eager's is right. A variant's own
    tolerance replaces both. The global random generators begin with the same seed on both sides. Where a module draws
    from them and the step draws other numbers, `factor` times the difference of two eager calls is allowed too. So is,
    in float32, `factor` times what rounding errors alone change in eager's output: a network may amplify them. If that
    would allow anything, parity cannot tell, and fails.

    Structure, dtype, shape, device and other values must be those of eager in the run's dtype. So must the inputs after
    the call, which a step must not write to unless eager does.

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
        component, reference, seed = subject.component, subject.reference, subject.seed + CHECK_SEED
        assert reference is not None, "the cell computes a reference if a metric needs one"
        outputs = check_calls(component, subject.step.run, seed)
        checks = self._checks(subject, outputs, _Excuse())
        if any(reason is not None for _, reason in checks):
            checks = self._checks(subject, outputs, self._excuse(subject, reference, seed))
        component.refill(subject.seed)
        component.reset()
        number, (section, reason) = next((pair for pair in enumerate(checks) if pair[1][1]), (0, checks[0]))
        if reason is None:
            return Measured({"parity": section})
        when = f"in call {number + 1} on the same inputs, the first was right: " if number else ""
        paths = component.kept.reassigned if number else ()
        hint = f"; each call assigns other tensors to {paths[0]}, write to it in place (copy_)" if paths else ""
        return Measured({"parity": section}, ("failed", f"parity: {when}{reason}{hint}"))

    def _excuse(self, subject: Subject, reference: Reference, seed: int) -> _Excuse:
        """Return what else than a mistake of the variant may move the outputs."""
        repeated = reference.eager.repeated
        if reference.spread.error and repeated is not None and reference.spread.fault is None:
            compiled = any(each.kind == "compiler" for each in subject.step.recipe)
            words = f"{reference.nondeterminism(subject.component.dtype)}{_OWN_NUMBERS if compiled else ''}"
            return _Excuse("repeat_rel_l2", effects([(reference.eager.calls[0], repeated)]), words)
        if subject.component.dtype != torch.float32 or subject.tolerance is not None:
            return _Excuse()
        moved = rounding_effects(subject.component, seed)
        return _Excuse("rounding_rel_l2", moved, _AMPLIFIES.format(max(moved.values()))) if moved else _Excuse()

    def _checks(self, subject: Subject, outputs: CheckCalls, excuse: _Excuse) -> list[tuple[ParitySection, str | None]]:
        assert subject.reference is not None
        calls = zip(outputs.calls, subject.reference.outputs.calls, subject.reference.eager.calls, strict=True)
        return [self._check(subject, subject.reference, excuse, *call) for call in calls]

    def _check(
        self,
        subject: Subject,
        references: Reference,
        excuse: _Excuse,
        outputs: Outputs,
        reference: Outputs,
        eager: Outputs,
    ) -> tuple[ParitySection, str | None]:
        """Compare the outputs of one call; return the section, and in one line why the check failed, if it did."""
        dtype = str(subject.component.dtype).removeprefix("torch.")
        name, floor = references.name(subject.component.dtype), self.floor
        if references.form == "run":
            floor = max(floor, EAGER_ROUNDINGS * torch.finfo(subject.component.dtype).eps)

        def failed(reason: str, **numbers: float) -> tuple[ParitySection, str]:
            return ParitySection(reference=name, passed=False, **_finite(numbers)), reason

        random = references.nondeterminism(subject.component.dtype)
        if random is not None and references.spread.fault is not None:
            return failed(f"cannot tell: {random}")
        if (fault := mismatch(eager, reference, dtypes=False)) is not None:
            return failed(f"eager's own output in {dtype} has another structure than in float32: {fault}")
        eager_errors = leaf_errors(eager, reference)
        broken = next((each for each in eager_errors if each.fault), None)
        eager_l2 = max((each.error for each in eager_errors if not each.exact), default=0.0)
        tolerance = max(self.factor * eager_l2, floor)
        if subject.tolerance is not None:
            tolerance = max(subject.tolerance, tolerance if subject.of_several else 0.0)
        if broken is not None:
            return failed(f"eager's own output in {dtype} is not finite or not comparable: {broken} {broken.fault}")
        limits = {"eager_rel_l2": eager_l2, "tolerance": tolerance, **excuse.numbers}
        if references.spread.error:
            limits["repeat_rel_l2"] = references.spread.error
        if subject.tolerance is None and self.factor * eager_l2 >= 1:
            if self.factor * max(excuse.effects.values(), default=0.0) >= 1:  # it draws others in another dtype
                return failed(f"cannot tell: {excuse.words}", **limits)
            reason = f"eager in {dtype} has itself an error of {eager_l2:.2g}, so that an output of zeros would pass"
            return failed(f"{reason}: use dtype=float32", **limits)
        if (fault := mismatch(outputs, eager)) is not None:
            return failed(f"other outputs than eager's in {dtype}: {fault}", **limits)
        judged = []
        for each, eager_error in zip(leaf_errors(outputs, reference), eager_errors, strict=True):
            leaf = _JudgedLeaf(
                each, self._limit(each, eager_error, tolerance, subject.tolerance), _as_eager(each, eager)
            )
            allowed = self.factor * excuse.effects.get(each.path, 0.0)
            if not leaf.passed and allowed >= 1:
                return failed(f"cannot tell: {excuse.words}", **limits)
            if not leaf.passed and allowed > leaf.tolerance:
                leaf = replace(leaf, tolerance=min(allowed, MOST_DIFFERING) if each.exact else allowed)
            judged.append(leaf)
        judged.sort(key=lambda leaf: leaf.excess, reverse=True)
        wrong = [leaf for leaf in judged if not leaf.passed]
        errors = [leaf.error for leaf in judged]
        numbers = {
            **limits,
            "tolerance": max((leaf.tolerance for leaf in judged if not leaf.error.exact), default=tolerance),
            "max_abs": max((each.max_abs for each in errors if _is_output(each.path)), default=0.0),
            **similarity(subject.component.kind, outputs, reference),
        }
        if any(not each.exact for each in errors):
            numbers["rel_l2"] = max(each.error for each in errors if not each.exact)
        section = ParitySection(
            reference=name,
            passed=not wrong,
            outputs=tuple(leaf.section() for leaf in judged[:RECORDED] if _is_output(leaf.error.path) or leaf.excess),
            **_finite(numbers),
        )
        return section, _reason(wrong, name) if wrong else None

    def _limit(self, error: LeafError, eager: LeafError, tolerance: float, own: float | None) -> float:
        """Return the largest error of a leaf: integers and bools may differ where eager's own do, by `factor`."""
        if not error.exact or own is not None:
            return tolerance
        return min(self.factor * eager.error, MOST_DIFFERING)


@dataclass(frozen=True)
class _Excuse:
    """What moves eager's own outputs: the error of each leaf that moves, the name in the record, and a sentence."""

    name: str = ""
    effects: Mapping[Path, float] = field(default_factory=dict)
    words: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """What the record holds of it."""
        return {self.name: max(self.effects.values())} if self.effects else {}


#: Added to what is said of a random module whose variant is compiled.
_OWN_NUMBERS = "; inductor draws its own random numbers, with compiler.options.fallback_random=true those of eager"
_AMPLIFIES = (
    "rounding errors alone change eager's own output by relative L2 {:.2g} (many iterations, or random weights?): "
    "compare fewer iterations, or load trained weights"
)


@dataclass(frozen=True)
class _JudgedLeaf:
    """A tensor or number of the output: its error, the largest that is accepted, and whether it is just as eager's."""

    error: LeafError
    tolerance: float
    as_eager: bool

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance, or integers are those of eager."""
        return self.error.error <= self.tolerance or (self.error.exact and self.as_eager)

    @property
    def excess(self) -> tuple[bool, float]:
        """Sorts leaves: failed before passed, then by the error in units of its tolerance."""
        ratio = self.error.error / self.tolerance if self.tolerance else math.inf if self.error.error else 0.0
        return not self.passed, ratio

    def section(self) -> OutputError:
        """Return what the record holds of this leaf."""
        error, leaf = self.error, self.error.leaf
        shape = tuple(leaf.shape) if all(isinstance(size, int) for size in leaf.shape) else None
        measure = "differing" if error.exact else "rel_l2"
        numbers = _finite({measure: error.error, "tolerance": self.tolerance, "max_abs": error.max_abs})
        return OutputError(
            path=readable(error.path), dtype=leaf.dtype or leaf.form, shape=shape, passed=self.passed, **numbers
        )


def _as_eager(error: LeafError, eager: Outputs) -> bool:
    numbers, expected = error.leaf.numbers, eager[error.path].numbers
    return numbers is not None and expected is not None and error.exact and torch.equal(numbers, expected)


def _is_output(path: Path) -> bool:
    """Return whether a path belongs to the output, and not to the inputs as the call left them."""
    return path[0] == "output"


def _finite(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Leave out numbers that are not finite, which a record cannot hold."""
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _reason(wrong: Sequence[_JudgedLeaf], reference: str) -> str:
    """Return in one line what is wrong with the worst leaf, and how many others are wrong."""
    error, tolerance = wrong[0].error, wrong[0].tolerance
    others = f"; {len(wrong) - 1} more outputs are wrong" if len(wrong) > 1 else ""
    if error.fault is not None:
        return f"{error} {error.fault}{others}"
    if error.exact:
        what = f"{error.error:.2g} of the elements of {error} differ from"
    else:
        what = f"relative L2 error {error.error:.2g} of {error} against"
    return f"{what} the {reference} reference, allowed {tolerance:.2g}{others}"


def similarity(kind: str | None, outputs: Outputs, reference: Outputs) -> dict[str, float]:
    """Return (PSNR of pictures, with the reference's range as peak, else SNR, in dB; cosine) of the worst output.

    Without a `kind`, integers are left out: they may be indices.
    """
    ratios, cosines = [], []
    for path, leaf in reference.items():
        expected, actual = leaf.numbers, outputs[path].numbers
        if not _is_output(path) or expected is None or actual is None or leaf.kind == "complex" or not actual.numel():
            continue
        if kind is None and leaf.kind != "floating":
            continue
        wide, other = expected.double(), actual.double()
        noise, energy = float((other - wide).square().mean()), float(wide.square().mean())
        signal = float((wide.max() - wide.min()).square()) if kind == "image" else energy
        if 0 < noise < math.inf and 0 < signal < math.inf:
            ratios.append(10 * (math.log10(signal) - math.log10(noise)))
        norms = math.sqrt(energy * float(other.square().mean()))
        if norms > 0:
            cosines.append(float((wide * other).mean()) / norms)
    ratio = {"psnr_db" if kind == "image" else "snr_db": min(ratios)} if ratios else {}
    return {**ratio, "cosine": min(cosines)} if cosines else ratio
