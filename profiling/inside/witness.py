"""What is known of each piece of a call's work beyond its time: its operator, its submodule, its bytes and FLOPs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from profiling.inside.backward import BackwardModules
from profiling.inside.classes import class_of, class_of_name, class_of_operator
from profiling.inside.nesting import innermost, parents_of
from profiling.inside.timeline import MODULE, HostCall, Operator, Timeline, TracedCall, Work, launched_by

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
