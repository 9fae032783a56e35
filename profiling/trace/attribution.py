"""Submodules of compiled work, by the operators that a compiler leaves whole: products, attention, custom ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy

from profiling.trace.events import (
    MODULE,
    HostCall,
    Operator,
    Timeline,
    TracedCall,
    Work,
    innermost,
    launched_by,
    parents_of,
)
from profiling.trace.kernel_classes import class_of, class_of_name, class_of_operator


class BackwardModules:
    """Knows of a trace with spans of submodules which of them each node of autograd belongs to."""

    def __init__(self, trace: Timeline, above: Mapping[int | None, Operator]) -> None:
        self._above = above
        forward = [each for each in trace.operators if _number(each) is not None and not _of_backward(each)]
        spans = innermost(trace.modules, [(operator.begin, operator.row) for operator in forward])
        # Operators that make no node carry the number of the next one that does: the last of a number made it.
        self._modules = {_number(operator): span for operator, span in zip(forward, spans, strict=True)}

    def of(self, operator: Operator | None) -> str | None:
        """Return the path of the submodule whose backward pass `operator` is part of; None where it is of none."""
        while operator is not None and not _of_backward(operator):
            operator = self._above.get(operator.id)
        span = None if operator is None else self._modules.get(_number(operator))
        return None if span is None else span.name.removeprefix(MODULE)


def _number(operator: Operator) -> int | None:
    return operator.arguments.get("Sequence number")


def _of_backward(operator: Operator) -> bool:
    """Say whether it is a node of autograd: those name the thread of their forward pass, from 1."""
    return bool(operator.arguments.get("Fwd thread id")) and _number(operator) is not None


#: What an operator moves and computes: (bytes, FLOPs), None where that cannot be known.
CostOf = Callable[[Operator], tuple[int | None, int | None]]
#: Classes whose FLOPs are counted.
COUNTED = ("gemm", "conv", "attention")
#: Kernels around a product's own: cuBLAS's splitKreduce, scaling and epilogue, CUTLASS's ReduceSplitK.
_AROUND = re.compile("reduce|reduction|scal_kernel|epilogue", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Witness:
    """Of one piece of work; `module` is a path ("" is the whole component), None means not known throughout.

    `flops` are those of this piece, `operator_flops` those of all that its operator launched.
    """

    work: Work
    kind: str
    operator: str | None = None
    module: str | None = None
    bytes: int | None = None
    flops: int | None = None
    operator_flops: int | None = None


class Witnesses:
    """Asks a timeline about the work in it.

    Of an operator that launched several kernels, its FLOPs and bytes go to the one that does the arithmetic, where its
    name tells which: those that put the parts of a product together have none. Otherwise they are not known.
    """

    def __init__(self, trace: Timeline, cost_of: CostOf) -> None:
        self._trace, self._cost_of = trace, cost_of
        self._operators: dict[int | None, Operator] = {each.id: each for each in trace.operators if each.id is not None}
        self._launches = launched_by(trace)
        self._above = parents_of(trace.operators)
        self._backward = BackwardModules(trace, self._above)

    def of(self, call: TracedCall) -> tuple[Witness, ...]:
        """Return what is known of each piece of the call's work, in its order."""
        modules = self._modules(call)
        found = []
        shares = Counter(work.operator for work in call.work)
        main = self._main(call.work)
        for work, module in zip(call.work, modules, strict=True):
            operator = self._operators.get(work.operator)
            kind = class_of(work, None if operator is None else operator.name)
            moved, flops = (None, None) if operator is None else self._cost(operator, kind)
            alone = shares[work.operator] == 1
            chief = main.get(work.operator) is work
            found.append(
                Witness(
                    work,
                    kind,
                    operator=None if operator is None else operator.name,
                    module=module,
                    bytes=work.bytes if work.kind != "kernel" else moved if alone or chief else None,
                    flops=flops if chief else None,
                    operator_flops=flops,
                )
            )
        return tuple(found)

    def _cost(self, operator: Operator, kind: str) -> tuple[int | None, int | None]:
        """Return what the operator moves and computes, or what the one around it does that is of the same class.

        A library's own operator (`cudnn_convolution`) does not run without memory, but the one that chose it does.
        """
        found = self._cost_of(operator)
        while found == (None, None) and kind in ("conv", "attention"):
            around = self._above.get(operator.id)
            if around is None or class_of_operator(around.name) != kind:
                break
            operator, found = around, self._cost_of(around)
        return found

    def _main(self, work: Sequence[Work]) -> dict[int | None, Work]:
        """Return for each operator the kernel that does its arithmetic: the only one, or the only one named for it."""
        groups: dict[int | None, list[Work]] = {}
        for item in work:
            if item.operator is not None and item.kind == "kernel":
                groups.setdefault(item.operator, []).append(item)
        found = {}
        for operator, kernels in groups.items():
            named = [item for item in kernels if class_of_name(item.name) in COUNTED and not _AROUND.search(item.name)]
            if len(kernels) == 1 or len(named) == 1:
                found[operator] = kernels[0] if len(kernels) == 1 else named[0]
        return found

    def _modules(self, call: TracedCall) -> list[str | None]:
        """Return the submodule in whose forward each piece was handed over, or whose backward pass it belongs to."""
        asked: list[tuple[float, HostCall | None, int]] = []
        for place, work in enumerate(call.work):
            launch = self._launches.get(work.correlation)
            asked.append((work.begin if launch is None else launch.begin, launch, place))
        asked.sort(key=lambda item: item[0])
        spans = innermost(self._trace.modules, [(moment, launch and launch.row) for moment, launch, _ in asked])
        found: list[str | None] = [None] * len(asked)
        for (_, _, place), span in zip(asked, spans, strict=True):
            behind = self._backward.of(self._operators.get(call.work[place].operator))
            found[place] = behind if behind is not None or span is None else span.name.removeprefix(MODULE)
        return found


def one_class_a_name(calls: Sequence[Sequence[Witness]]) -> Mapping[str, str]:
    """Return the class in which a name spent most of its time, so that a row of a table has one."""
    spent: dict[str, Counter[str]] = {}
    for call in calls:
        for item in call:
            spent.setdefault(item.work.name, Counter())[item.kind] += round(item.work.length * 1e3) + 1
    return {name: kinds.most_common(1)[0][0] for name, kinds in spent.items()}


#: What a pair of equal names is worth, and what it costs to leave one of either out. Two names that differ may face
#: each other for nothing: of layers that are alike, the third faces the third though another has a kernel of its own.
_EQUAL, _LEFT_OUT = 2, 1
#: Cells of the table of scores (4 bytes each) beyond which nothing is aligned.
_MOST_CELLS = 50_000_000


@lru_cache(maxsize=16)  # the calls of a trace are mostly alike
def aligned(names: tuple[str, ...], known: tuple[str, ...]) -> tuple[int | None, ...]:
    """Return for each of `names` the place in `known` of its counterpart, an equal name; None where it has none.

    Places rise. Where `known` stands in `names` as a whole, that is the alignment, else the one of the highest score.
    """
    for begin in range(len(names) - len(known) + 1):
        if names[begin : begin + len(known)] == known:
            places = range(len(known))
            return (*(None,) * begin, *places, *(None,) * (len(names) - begin - len(known)))
    if len(names) * len(known) > _MOST_CELLS:
        return (None,) * len(names)
    return _traced_back(names, known, _scores(names, known))


def _scores(names: tuple[str, ...], known: tuple[str, ...]) -> numpy.ndarray:
    """Return the best score of every beginning of `names` (rows) against every beginning of `known` (columns)."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys((*names, *known)))}
    columns = numpy.array([numbers[name] for name in known])
    steps = _LEFT_OUT * numpy.arange(len(known) + 1, dtype=numpy.int32)
    table = numpy.empty((len(names) + 1, len(known) + 1), dtype=numpy.int32)
    table[0] = -steps
    for row, name in enumerate(names, 1):
        best = table[row - 1] - _LEFT_OUT
        best[1:] = numpy.maximum(best[1:], table[row - 1, :-1] + _EQUAL * (columns == numbers[name]))
        table[row] = numpy.maximum.accumulate(best + steps) - steps  # any run of `known` left out before a column
    return table


def _traced_back(names: tuple[str, ...], known: tuple[str, ...], table: numpy.ndarray) -> tuple[int | None, ...]:
    found: list[int | None] = [None] * len(names)
    row, column = len(names), len(known)
    while row and column:
        equal = names[row - 1] == known[column - 1]
        if table[row, column] == table[row - 1, column - 1] + _EQUAL * equal:
            row, column = row - 1, column - 1
            found[row] = column if equal else None
        elif table[row, column] == table[row - 1, column] - _LEFT_OUT:
            row -= 1
        else:
            column -= 1
    return tuple(found)


#: Kernels of one stream touch: the clock of the trace may tell an overlap of less than this.
_CLOCK_US = 0.1


def told_by(reference: Sequence[Witness], work: Sequence[Work]) -> list[Witness | None]:
    """Return for each piece of `work` what `reference`, the same work launched one by one, knows of it.

    The two are aligned by names in order; what has no counterpart gets None: copies around a replay, and kernels that
    the one chose and the other did not. Where work overlaps, on branches of a graph, its order is no witness. There a
    name is known if it stands for one thing among all that lies between the counterparts of what ran alone before and
    behind.
    """
    places = aligned(tuple(item.name for item in work), tuple(item.work.name for item in reference))
    alone, known_alone = _alone(work), _alone([item.work for item in reference])
    trusted = [calm and place is not None and known_alone[place] for place, calm in zip(places, alone, strict=True)]
    bounds = [-1, *(place for place, sure in zip(places, trusted, strict=True) if place is not None and sure)]
    bounds.append(len(reference))
    passed = list(accumulate(map(int, trusted)))  # how many of the bounds lie before each
    unsure = zip(passed, work, trusted, strict=True)
    beside = Counter((begun, item.name) for begun, item, sure in unsure if not sure)
    found: list[Witness | None] = []
    for item, place, sure, calm, begun in zip(work, places, trusted, alone, passed, strict=True):
        told = reference[bounds[begun]] if sure else None
        if not sure and not (calm and place is None):
            between = reference[bounds[begun] + 1 : bounds[begun + 1]]
            told = _one_called(item.name, between, beside[begun, item.name])
        found.append(None if told is None else replace(told, work=item))
    return found


def _alone(work: Sequence[Work]) -> list[bool]:
    """Say of each of `work`, sorted by begin, whether it ran by itself, on the stream that most of it ran on."""
    trunk = Counter(item.stream for item in work).most_common(1)[0][0] if work else None
    alone = [item.stream == trunk for item in work]
    longest = 0  # which of the earlier ones ends last
    for place, item in enumerate(work[1:], 1):
        if item.begin < work[longest].end - _CLOCK_US:
            alone[place] = alone[longest] = False
        if item.end > work[longest].end:
            longest = place
    return alone


def _one_called(name: str, reference: Sequence[Witness], count: int) -> Witness | None:
    """Return what is called `name`, if all of it belongs to one submodule, and to operators of one size.

    Where the replay has `count` of them and the reference another number, the work was split otherwise: nobody knows
    what one of them moved and computed.
    """
    called = [item for item in reference if item.work.name == name]
    kinds = {(item.module, item.operator, item.bytes, item.flops) for item in called}
    if len(kinds) != 1:
        return None
    return called[0] if len(called) == count else replace(called[0], bytes=None, flops=None, operator_flops=None)


def by_work(found: Sequence[Witness | None], own: Sequence[Witness]) -> tuple[Witness, ...]:
    """Return what is known of each piece: from its counterpart where there is one, else from its own trace.

    What a copy or a fill moved is in every trace; its counterpart has the submodule.
    """
    merged = []
    for counterpart, mine in zip(found, own, strict=True):
        if counterpart is None:
            merged.append(mine)
        elif mine.operator is not None:  # launched here too, so its own operator is the witness
            merged.append(replace(mine, module=counterpart.module))
        else:
            merged.append(counterpart)
    return tuple(merged)


#: A piece of work's operator: its id where the trace has one.
_Group = int | None


def anchored(fused: Sequence[Witness], eager: Sequence[Witness]) -> tuple[Witness, ...]:
    """Return `fused`, the work of one compiled call, with the submodules that can be told from one `eager` call.

    The n-th product (convolution, attention) of as many FLOPs is the n-th of the other, and the n-th call of a custom
    operator too, where both have the same number of them. What an operator launches beside its arithmetic goes with it.
    Kernels that the compiler made of several operators stay without a submodule.
    """
    mine, known = _by_key(fused), _by_key(eager)
    modules: dict[_Group, str | None] = {}
    for key, groups in mine.items():
        others = known.get(key, {})
        if len(groups) == len(others):
            modules |= dict(zip(groups, others.values(), strict=True))
    return tuple(replace(item, module=modules.get(item.work.operator)) for item in fused)


def _by_key(items: Sequence[Witness]) -> Mapping[Hashable, dict[_Group, str | None]]:
    """Return for each kind of anchor its operators in order, with the submodule of each."""
    found: dict[Hashable, dict[_Group, str | None]] = {}
    for item in items:
        key = _key(item)
        if key is not None:
            found.setdefault(key, {})[item.work.operator] = item.module
    return found


def _key(item: Witness) -> Hashable | None:
    if item.kind in COUNTED and item.operator_flops is not None:
        return item.kind, item.operator_flops
    if item.operator is None or item.operator.startswith("aten::") or "::" not in item.operator:
        return None
    return item.operator
