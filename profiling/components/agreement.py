"""Is an output right? The outputs of a step's trajectory against the reference, call by call.

An output may be `factor` times as far from the reference in call k as eager's was in calls 1 to k, as a whole and in
its worst part: a slice along a dimension, a tile of a picture, a run of samples (`outputs.leaf_errors`). No slice may
be off by half of its own RMS, unless eager's is: a channel of small numbers that is all zero moves the whole by little.
After the last call the state that eager's calls change is compared likewise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.components.component import Component
from profiling.components.effects import Effects
from profiling.components.outputs import NO_ERROR, Errors, LeafError, OutputLog, Outputs, Path, leaf_errors, mismatch
from profiling.components.reference import Moves, Reference, moves
from profiling.components.trajectory import play, played, state_of
from profiling.components.trees import map_tensors

#: In the reason of a verdict that is none.
UNDECIDED = "undecided: "
#: Largest fraction of elements of an integer or bool output that may differ, however many of eager's own do.
MOST_DIFFERING = 0.5
#: Least tolerance of an output as a whole and of its worst part, in roundings of its dtype, and of any dtype.
ROUNDINGS, LOCAL_ROUNDINGS = 4, 32
FLOOR, LOCAL_FLOOR = 1e-4, 1e-3
#: Least tolerance of a slice of the output, of its own RMS.
OWN_FLOOR = 0.5
#: Of n numbers, rounding errors of two ways to compute them differ by a factor of up to about 1 + FEW / sqrt(n), since
#: they depend on each other: 24 samples of bfloat16 sound, compiled on an H100, were 2.0 times as far off as eager's.
FEW = 4.0
#: How many times its own tolerance the worst part of an output of a quantised recipe may be off.
LOCAL_OF_OWN = 4.0


@dataclass(frozen=True)
class JudgedLeaf:
    """A tensor or number of the output in a call: its error, and the largest accepted, as a whole and in a part."""

    error: LeafError
    tolerance: float
    local_tolerance: float
    own_tolerance: float
    as_eager: bool

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance, as a whole and in each part, or integers are those of eager."""
        if self.error.exact:
            return self.error.error <= self.tolerance or self.as_eager
        return (
            self.error.error <= self.tolerance
            and self.error.local <= self.local_tolerance
            and self.error.of_own <= self.own_tolerance
        )

    @property
    def excess(self) -> tuple[bool, float]:
        """Sorts leaves: failed before passed, then by the error in units of its tolerance."""
        error = self.error  # what is shown of a right output is its error as a whole, and in its worst part
        whole, local = _ratio(error.error, self.tolerance), _ratio(error.local, self.local_tolerance)
        return not self.passed, max(whole, local, _ratio(error.of_own, self.own_tolerance) if not self.passed else 0.0)

    def reason(self, reference: str) -> str:
        """Return in one line what is wrong."""
        error = self.error
        if error.fault is not None:
            return f"{error} {error.fault}"
        if error.exact:
            return (
                f"{error.error:.2g} of the elements of {error} differ from the {reference} reference, allowed "
                f"{self.tolerance:.2g}"
            )
        if error.error > self.tolerance:
            return (
                f"relative L2 error {error.error:.2g} of {error} against the {reference} reference, allowed "
                f"{self.tolerance:.2g}"
            )
        as_a_whole = f"(as a whole {error.error:.2g}, allowed {self.tolerance:.2g})"
        if error.local > self.local_tolerance:
            return (
                f"{error.place} of {error} is off by {error.local:.2g} of the RMS of the {reference} reference, "
                f"allowed {self.local_tolerance:.2g} {as_a_whole}"
            )
        return (
            f"{error.own_place} of {error} is off by {error.of_own:.2g} of its own RMS in the {reference} reference, "
            f"allowed {self.own_tolerance:.2g} {as_a_whole}"
        )


def _ratio(error: float, tolerance: float) -> float:
    return error / tolerance if tolerance else math.inf if error else 0.0


@dataclass(frozen=True)
class Verdict:
    """Whether a step is right. `leaves` are those of the worst call, the worst first; `numbers` of all calls."""

    reason: str | None
    leaves: tuple[JudgedLeaf, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0  # that were judged
    wrong_from: int | None = None  # the first wrong call, from 1

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.reason is None

    @property
    def cannot_tell(self) -> bool:
        """Whether nothing can be said of the outputs: two eager trajectories differ as much."""
        return UNDECIDED in (self.reason or "")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How outputs are judged: see the module's docstring.

    `tolerance` is the recipe's own (of a quantised one), which takes the place of the rule; with `several` stages, some
    of which have none, the larger of both holds. `excuse` says what else than a mistake moves outputs, and `words` says
    so in one line. Where two eager trajectories differ (`random`), an output that is excused altogether is no chaos
    that rounding errors led to: the step may as well ignore state that could not be put back.
    """

    factor: float = 2.0
    floor: float = FLOOR
    tolerance: float | None = None
    several: bool = False
    excuse: Moves = ()
    words: str = ""
    random: bool = False


class _Trial:
    """The calls of a step that were judged so far: tolerances of each output, and the largest numbers."""

    def __init__(self, reference: Reference, rules: Rules, dtype: torch.dtype) -> None:
        self._reference, self._rules, self._dtype = reference, rules, str(dtype).removeprefix("torch.")
        self.numbers: dict[str, float] = {}
        self._first: dict[Path, float] = {}  # eager's error in the first call
        self._worst: dict[Path, Errors] = {}  # eager's, in the calls so far
        self._moved: dict[Path, Errors] = {}
        self.chaotic: set[Path] = set()

    def _see(self, eager: Sequence[LeafError], call: int) -> None:
        """Take in eager's errors in a call, from 0."""
        for each in eager:
            self._first.setdefault(each.path, each.error)
            self._worst[each.path] = _largest(self._worst.get(each.path), each.errors)
            own, grown = self._rules.tolerance, self._growth(each)
            if not each.exact and (self._rules.factor * each.error >= 1 if own is None else own < 1 <= own * grown):
                self.chaotic.add(each.path)
        for path, moved in (self._rules.excuse[call] if call < len(self._rules.excuse) else {}).items():
            self._moved[path] = _largest(self._moved.get(path), moved)

    def _growth(self, error: LeafError) -> float:
        """Return eager's largest error so far over that of the first call (at least 1): state accumulates errors."""
        floor = max(self._rules.floor, ROUNDINGS * error.rounding)
        eager = self._worst.get(error.path, NO_ERROR)[0]
        return max(eager, floor) / max(self._first.get(error.path, 0.0), floor)

    def _excused(self, path: Path) -> float:
        """Return how far an output may be off because something else moves it."""
        return self._rules.factor * self._moved.get(path, NO_ERROR)[0]

    def _tolerances(self, error: LeafError) -> Errors:
        """Return the largest error of an output, of its worst part, and of a slice over its own RMS."""
        if error.path[0] == "inputs" and not self._reference.effects.inputs:
            return 0.0, 0.0, 0.0  # eager leaves them alone
        rules, (eager, local, of_own) = self._rules, self._worst.get(error.path, NO_ERROR)
        moved = self._moved.get(error.path, NO_ERROR)
        if error.exact:
            own = rules.tolerance or min(rules.factor * max(eager, moved[0]), MOST_DIFFERING)
            return own, math.inf, math.inf
        factor = rules.factor * (1 + FEW / math.sqrt(max(1, error.count)))
        least, rounding = rules.factor * moved[0], error.rounding
        part = max(factor * local, rules.factor * moved[1], LOCAL_FLOOR, LOCAL_ROUNDINGS * rounding)
        whole = max(factor * eager, least, rules.floor, ROUNDINGS * rounding)
        if rules.tolerance is None:
            return whole, part, max(factor * of_own, rules.factor * moved[2], OWN_FLOOR)
        own = rules.tolerance * self._growth(error)
        return max(own, whole if rules.several else least), max(part, LOCAL_OF_OWN * own), math.inf

    def judged(self, output: Outputs, fp32: Outputs, eager: Outputs, call: int, key: int) -> list[JudgedLeaf] | str:
        """Return the judged leaves of a call, the worst first, or in one line why they cannot be judged.

        `key` is that of eager's errors: the call, or 0 of the state after it.
        """
        if (fault := mismatch(eager, fp32, dtypes=False)) is not None:
            return f"eager's own output in {self._dtype} has another structure than in float32: {fault}"
        eager_errors = self._reference.eager_errors(key, eager, fp32)
        broken = next((each for each in eager_errors if each.fault), None)
        if broken is not None:
            return f"eager's own output in {self._dtype} is not finite or not comparable: {broken} {broken.fault}"
        self._see(eager_errors, call - 1)
        own = max((each.error for each in eager_errors if not each.exact), default=0.0)
        self.numbers["eager_rel_l2"] = max(own, self.numbers.get("eager_rel_l2", 0.0))
        if call == 1 and self.chaotic:
            if self._rules.words and any(self._excused(path) >= 1 for path in self.chaotic):
                return f"{UNDECIDED}{self._rules.words}"
            reason = f"eager in {self._dtype} has itself an error of {own:.2g}, so that an output of zeros would pass"
            return f"{reason}: use dtype=float32"
        if (fault := mismatch(output, eager)) is not None:
            return f"other outputs than eager's in {self._dtype}: {fault}"
        judged = []
        for each in leaf_errors(output, fp32):
            if each.path in self.chaotic:
                continue
            is_kept = each.path[0] == "inputs" and not self._reference.effects.inputs  # eager leaves it alone
            as_eager = (each.exact or is_kept) and torch.equal(*(_numbers(of, each.path) for of in (output, eager)))
            if is_kept and as_eager:
                continue
            leaf = JudgedLeaf(each, *self._tolerances(each), as_eager)
            unknown = self._rules.words and self._excused(each.path) >= 1 and each.fault is None
            if unknown and each.error > max(self._rules.floor, self._rules.tolerance or 0.0):
                if call == 1 or self._rules.random:
                    return f"{UNDECIDED}{self._rules.words}"
                self.chaotic.add(each.path)
                continue
            judged.append(leaf)
        judged.sort(key=lambda leaf: leaf.excess, reverse=True)
        floating = [leaf for leaf in judged if not leaf.error.exact]
        for measure, most in (
            ("rel_l2", max((leaf.error.error for leaf in floating), default=None)),
            ("tolerance", max((leaf.tolerance for leaf in floating), default=None)),
            ("max_abs", max((leaf.error.max_abs for leaf in judged if leaf.error.path[0] == "output"), default=None)),
        ):
            if most is not None:
                self.numbers[measure] = max(most, self.numbers.get(measure, 0.0))
        return judged


def _largest(one: Errors | None, other: Errors) -> Errors:
    return other if one is None else (max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]))


def judge(
    reference: Reference,
    outputs: Iterable[Outputs],
    state: Callable[[], Outputs | None],
    rules: Rules,
    dtype: torch.dtype,
) -> Verdict:
    """Compare a step's trajectory with the reference, call by call, and then the state that it leaves.

    `outputs` yields that of each call and `state` returns the state after the last. Calls after a wrong one are not
    made. Where eager's own error reaches 1 / factor in a later call, the calls before are judged.
    """
    trial, name = _Trial(reference, rules, dtype), reference.name(dtype)
    numbers = trial.numbers
    worst: tuple[JudgedLeaf, ...] = ()
    random_words = reference.nondeterminism(dtype)
    if random_words is not None and reference.spread.fault is not None:
        return Verdict(f"{UNDECIDED}{random_words}")
    expected = zip(reference.outputs.log, reference.eager.log, strict=False)
    if reference.spread.error:
        numbers["repeat_rel_l2"] = reference.spread.error
    call = 0
    for call, (output, (fp32, eager)) in enumerate(zip(outputs, expected, strict=False), 1):
        found = trial.judged(output, fp32, eager, call, call)
        if isinstance(found, str):
            return Verdict(_from_call(call, found, reference.effects), worst, numbers, call, call)
        if found and not found[0].passed:
            reason = _from_call(call, _reason(found, name), reference.effects)
            return Verdict(reason, tuple(found), numbers, call, call)
        if found and (not worst or found[0].excess > worst[0].excess):
            worst = tuple(found)
        if trial.chaotic:
            return Verdict(None, worst, numbers, call - 1)
    sides = (reference.outputs, reference.eager)
    if all(each.calls == call and each.state is not None for each in sides) and (after := state()) is not None:
        fp32, eager = (each.state or {} for each in sides)
        found = trial.judged(after, fp32, eager, call, 0)
        reason = found if isinstance(found, str) else _reason(found, name) if found and not found[0].passed else None
        if reason is not None:
            leaves = worst if isinstance(found, str) else tuple(found)
            return Verdict(f"the state after {call} calls: {reason}", leaves, numbers, call, call)
    return Verdict(None, worst, numbers, call)


def _numbers(outputs: Outputs, path: Path) -> torch.Tensor:
    numbers = outputs[path].numbers
    assert numbers is not None
    return numbers


def _reason(judged: Sequence[JudgedLeaf], reference: str) -> str:
    wrong = sum(not leaf.passed for leaf in judged)
    return judged[0].reason(reference) + (f"; {wrong - 1} more outputs are wrong" if wrong > 1 else "")


def _from_call(call: int, reason: str, effects: Effects) -> str:
    """Return a reason with the call from which on it holds, and the effect that may explain it."""
    if call == 1:
        return reason
    cause = effects.explanation()
    return f"wrong from call {call} on: {reason}" + (f". {cause}" if cause else "")


def check(
    component: Component,
    run: Callable[[], Any],
    reference: Reference,
    rules: Rules,
    *,
    compiled: bool = False,
    around: Callable[[Callable[[], Any]], Any] | None = None,
    on_output: Callable[[Outputs, Outputs], None] = lambda output, expected: None,
) -> tuple[Verdict, Rules]:
    """Play the trajectory with `run` and judge it; return the verdict and the rules that led to it.

    Where a step is found wrong, what else than a mistake may move its outputs is looked for: the random numbers of the
    module, or rounding errors that it amplifies. The same outputs are judged again, and then those of the later calls.
    `compiled` steps may draw random numbers of their own. `around` makes the calls the first time. `on_output` is given
    each output and that of the reference.
    """
    log, after = OutputLog(), list[Outputs | None]()

    def outputs(around: Callable[[Callable[[], Any]], Any] | None = None) -> Iterator[Outputs]:
        made = play(component, run, reference.calls, around=around)
        for output, expected in zip(made, reference.outputs.log, strict=False):
            on_output(output, expected)
            yield output

    def logged() -> Iterator[Outputs]:
        for output in outputs(around):
            log.append(output)
            yield output

    def state() -> Outputs | None:
        after.append(state_of(component))
        return after[0]

    verdict = judge(reference, logged(), state, rules, component.dtype)
    if verdict.passed or (excused := _excused(component, reference, rules, compiled)) is rules:
        return verdict, rules
    verdict = judge(reference, log, lambda: after[0] if after else None, excused, component.dtype)
    if verdict.passed and not after:  # the first time, calls after the wrong one were not made
        verdict = judge(reference, outputs(), partial(state_of, component), excused, component.dtype)
    return verdict, excused


def check_log(log: OutputLog, reference: Reference, rules: Rules, dtype: torch.dtype) -> tuple[Verdict, Rules]:
    """Judge outputs that were played, without a state after them; return the verdict and the rules that led to it.

    Where they are found wrong, they may have as much to do with chance as two eager trajectories differ.
    """
    verdict = judge(reference, log, lambda: None, rules, dtype)
    if verdict.passed or (excused := _excused_by_chance(reference, rules, dtype, compiled=False)) is None:
        return verdict, rules
    return judge(reference, log, lambda: None, excused, dtype), excused


#: Added to what is said of a random module whose variant is compiled.
_OWN_NUMBERS = "; inductor draws its own random numbers, with +step.compile.options.fallback_random=true those of eager"
_NO_ORDER = "two eager calls from the same inputs and state differ: sums have no fixed order"
_AMPLIFIES = (
    "rounding errors alone change eager's own output by relative L2 {:.2g} (many iterations, or random weights?): "
    "compare fewer iterations, or load trained weights"
)


def _excused(component: Component, reference: Reference, rules: Rules, compiled: bool) -> Rules:
    """Return the rules with what else than a mistake of the step may move the outputs."""
    if (excused := _excused_by_chance(reference, rules, component.dtype, compiled=compiled)) is not None:
        return excused
    if (component.dtype != torch.float32 and reference.form != "run") or rules.tolerance is not None:
        return rules
    moved = rounding_moves(component)
    most = max((whole for each in moved for whole, *_ in each.values()), default=0.0)
    return replace(rules, excuse=moved, words=_AMPLIFIES.format(most)) if most else rules


def _excused_by_chance(reference: Reference, rules: Rules, dtype: torch.dtype, *, compiled: bool) -> Rules | None:
    """Return the rules with how far two eager trajectories are apart; None where they do not differ."""
    if reference.repeat is None or not reference.spread.error or reference.spread.fault is not None:
        return None
    excuse = moves(reference.eager, reference.repeat)
    words = reference.nondeterminism(dtype) or _NO_ORDER
    return replace(rules, excuse=excuse, words=words + (_OWN_NUMBERS if compiled else ""), random=True)


def rounding_moves(component: Component) -> Moves:
    """Return how far rounding errors move each output of the module, called eagerly; empty where it cannot be told.

    The trajectory is played twice, once with a small error in the result of each operator.
    """
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    rounding = _Rounding(component.device)

    def run() -> Any:
        with rounding:
            return component.call()

    with suppress(Exception), eager:
        one, other = (played(component, each, component.place.calls) for each in (component.call, run))
        found = moves(one, other)
        return found if any(found) else []
    return []


#: Error of an operator, in roundings of its dtype: as far as sums of some thousand terms in two orders may differ.
_ROUNDINGS = {torch.float32: 8, torch.float64: 8, torch.bfloat16: 1, torch.float16: 1}


class _Rounding(TorchDispatchMode):
    """Makes the floating-point results of operators a little larger or smaller, at random."""

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._generator = torch.Generator(device).manual_seed(0)  # the global one's numbers are the module's

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(func, torch._ops.OpOverload):
            return map_tensors(self._rounded, result)
        is_view = any(each.alias_info is not None for each in func._schema.returns)
        return result if is_view else map_tensors(self._rounded, result)

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        roundings = _ROUNDINGS.get(tensor.dtype)
        if roundings is None or tensor.layout != torch.strided or tensor.is_nested:
            return tensor
        share = torch.rand(tensor.shape, generator=self._generator, device=tensor.device, dtype=torch.float32)
        return (tensor * (1 + (2 * share - 1) * roundings * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)
