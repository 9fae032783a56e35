"""Attribution of GPU work to operators and submodules, also where a CUDA graph or a compiler hides both.

The profiler links each kernel to the operator that launched it, and by spans to a submodule (`Attributor`). A replayed
CUDA graph has no such links: its kernels correspond, in the exact order of the capture, to a reference trace of the
same step before it (`attributed_by_reference`). Compiled code has no submodules. A compiler keeps matrix products,
convolutions, attention and custom operators, so these get their submodules from a trace of the eager module, in order
(`with_eager_modules`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import inf
from typing import Any, Literal

from profiling.trace.events import MODULE, GpuWork, Operator, Span, Timeline, TracedCall, innermost, nested
from profiling.trace.kernel_classes import class_of, class_of_name, class_of_operator
from profiling.trace.operator_costs import Cost, OperatorCosts, bytes_of, recorded_tensors

#: Smallest share of a kernel's time with known bytes (or FLOPs) for which a bandwidth (or FLOP rate) is reported.
_KNOWN = 0.5
#: Classes whose FLOPs are counted.
_COUNTED = ("gemm", "conv", "attention")
#: Helper kernels of a matrix product: cuBLAS's splitKreduce, scaling and epilogue, CUTLASS's ReduceSplitK.
_AUXILIARY = re.compile("reduce|reduction|scal_kernel|epilogue", re.IGNORECASE)
#: cuDNN's conversions of a tensor from channels first to last and back, and its copies of the channels of a group.
_CONVERSIONS = ("nchwToNhwc", "nhwcToNchw", "nhwcSliceC")


@dataclass(frozen=True, slots=True)
class KernelAttribution:
    """The class, operator and submodule of a kernel, copy or fill, and its bytes and FLOPs; None means not known.

    `module` is the submodule's path, "" for the component itself. `flops` counts this kernel alone, `operator_flops`
    all kernels that its operator launched. `arguments` are those of the operator, as far as the trace recorded them.
    """

    work: GpuWork
    kind: str
    operator: str | None = None
    module: str | None = None
    bytes: int | None = None
    flops: int | None = None
    operator_flops: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Attributor:
    """Attributes GPU work by the links in its own trace, without a reference.

    If an operator launched several kernels, its FLOPs and bytes go to the main kernel, recognised by its name, or in
    equal parts to several with one name and grid (a convolution may launch one for each group). Helpers, which for
    example combine partial products, get none; conversions of a layout and copies of a group's channels get the
    bytes of reading and writing a tensor once.
    """

    def __init__(self, trace: Timeline, costs: OperatorCosts) -> None:
        self._trace, self._costs = trace, costs
        self._operators: dict[int | None, Operator] = {each.id: each for each in trace.operators if each.id is not None}
        callers = zip(trace.operators, nested(trace.operators), strict=True)
        self._callers = {each.id: trace.operators[place] for each, (place, _) in callers if place is not None}
        # Autograd gives the nodes of the backward pass the sequence numbers of the forward operators that made them.
        # An operator without a node carries the next node's number: the last operator of a number made that node.
        forward = [each for each in trace.operators if _sequence(each) is not None and not _is_backward(each)]
        spans = innermost(trace.modules, [(each.begin, each.row) for each in forward])
        self._forward = {_sequence(each): span for each, span in zip(forward, spans, strict=True)}

    def of(self, call: TracedCall) -> tuple[KernelAttribution, ...]:
        """Return the attribution of each piece of the call's work, in its order."""
        by_operator: dict[int | None, list[GpuWork]] = {}
        for work in call.work:
            by_operator.setdefault(work.operator, []).append(work)
        spans = innermost(self._trace.modules, [(work.launched, work.launch and work.launch.row) for work in call.work])
        around = dict(zip(call.work, spans, strict=True))
        attributed: dict[GpuWork, KernelAttribution] = {}
        for number, kernels in by_operator.items():
            operator = self._operators.get(number)
            main, conversions = ([], {}) if operator is None else (_main(kernels), self._conversions(operator, kernels))
            for work in kernels:
                kind = class_of(work, None if operator is None else operator.name)
                cost = Cost() if operator is None else self._cost(operator, kind)
                moved, flops = (cost.bytes if len(kernels) == 1 else conversions.get(work)), None
                if work in main:
                    moved = moved if cost.bytes is None else cost.bytes // len(main)
                    flops = None if cost.flops is None else cost.flops // len(main)
                attributed[work] = KernelAttribution(
                    *(work, kind, None if operator is None else operator.name),
                    module=self.module_of(operator, around[work]),
                    bytes=moved if work.kind == "kernel" else work.bytes,
                    flops=flops,
                    operator_flops=cost.flops,
                    arguments={} if operator is None else operator.arguments,
                )
        return tuple(attributed[work] for work in call.work)

    def module_of(self, operator: Operator | None, around: Span | None) -> str | None:
        """Return the submodule whose backward pass contains `operator`, else that of the span `around` its launch."""
        while operator is not None and not _is_backward(operator):
            operator = self._callers.get(operator.id)
        span = (self._forward.get(_sequence(operator)) if operator is not None else None) or around
        return None if span is None else span.name.removeprefix(MODULE)

    def _cost(self, operator: Operator, kind: str) -> Cost:
        """Return the cost of the operator, or of the nearest caller of the same class whose cost is known.

        A library's operator (`cudnn_convolution`) cannot run on the meta device; the operator that calls it can.
        """
        cost = self._costs.of(operator)
        while cost == Cost() and kind in ("conv", "attention"):
            caller = self._callers.get(operator.id)
            if caller is None or class_of_operator(caller.name) != kind:
                break
            operator, cost = caller, self._costs.of(caller)
        return cost

    def _conversions(self, operator: Operator, kernels: Sequence[GpuWork]) -> dict[GpuWork, int]:
        """Return the bytes of cuDNN's layout conversions, if it is certain which tensor each one converts.

        A convolution may convert its input, its weights and its output. Input and weights are converted if they are
        contiguous, the larger one by the longer conversion. The output has the rest of the operator's bytes. With a
        kernel for each group, the group's channels of input and output may be copied before and after it; each copy
        gets the mean of the two.
        """
        before, after, slices = ([each for each in kernels if way in each.name] for way in _CONVERSIONS)
        if class_of_operator(operator.name) != "conv" or not (before or after or slices):
            return {}
        found: dict[GpuWork, int] = {}
        given = recorded_tensors(operator.arguments)[:2]
        sizes = sorted(bytes_of(tensor) for tensor in given if tensor.is_contiguous())
        if len(before) == len(sizes):
            found |= zip(sorted(before, key=lambda each: each.length), (2 * size for size in sizes), strict=True)
        result = (self._cost(operator, "conv").bytes or 0) - sum(map(bytes_of, given))
        if len(after) == 1 and result > 0:
            found[after[0]] = 2 * result
        groups = given[0].shape[1] // given[1].shape[1] if slices and len(given) == 2 else 0
        if 0 < 2 * groups == len(slices) and result > 0:
            found |= dict.fromkeys(slices, (bytes_of(given[0]) + result) // groups)
        return found


def _main(kernels: Sequence[GpuWork]) -> Sequence[GpuWork]:
    """Return the main kernels of an operator: its only kernel, or those of one name, like a matrix product's."""
    kernels = [item for item in kernels if item.kind == "kernel"]
    named = [item for item in kernels if class_of_name(item.name) in _COUNTED and not _AUXILIARY.search(item.name)]
    alike = len({(item.name, item.grid, item.block) for item in named}) == 1
    return kernels if len(kernels) == 1 else named if alike else []


def _sequence(operator: Operator) -> int | None:
    return operator.arguments.get("Sequence number")


def _is_backward(operator: Operator) -> bool:
    """Return whether the operator is a node of autograd: only these record their forward pass's thread (from 1)."""
    return bool(operator.arguments.get("Fwd thread id")) and _sequence(operator) is not None


#: Clock resolution of the trace in microseconds: kernels of one stream may seem to overlap by less than this.
_CLOCK_US = 0.1


def in_exact_order(names: Sequence[object], known: Sequence[object]) -> list[int | None]:
    """Return for each of `names` the index of its counterpart in `known`; None where the order leaves it open.

    Equal sequences correspond one to one. Of others only the beginning and the end that both have in common do, without
    what could belong to either.
    """
    shorter = min(len(names), len(known))
    pairs = zip(names, known, strict=False)
    begin = next((place for place, (name, other) in enumerate(pairs) if name != other), shorter)
    if begin == len(names) == len(known):
        return list(range(begin))
    pairs = zip(reversed(names), reversed(known), strict=False)
    end = next((place for place, (name, other) in enumerate(pairs) if name != other), shorter)
    begin, end = min(begin, shorter - end), min(end, shorter - begin)
    middle = [None] * (len(names) - begin - end)
    return [*range(begin), *middle, *range(len(known) - end, len(known))]


def attributed_by_reference(
    own: Sequence[KernelAttribution], reference: Sequence[KernelAttribution]
) -> tuple[tuple[KernelAttribution, ...], int]:
    """Return (`own`, completed from `reference`, the number of kernels that have no counterpart there).

    `own` is the work of a call by its own trace, `reference` the same step launched kernel by kernel, in the order of
    its launches. What a CUDA graph replays corresponds to the reference in exact order, what the host launches around
    a replay to nothing; without a replay all of the work corresponds. Ids of a graph's nodes give the order of the
    capture. Without ids, branches that run side by side begin in any order: work there is attributed by its name, if
    all of that name in the reference's part has one attribution. Work keeps the operator that its own trace knows.
    """
    replayed = [item.work for item in own if "GraphLaunch" in getattr(item.work.launch, "name", "")]
    groups = _in_order_of_launch(replayed or [item.work for item in own])
    count = sum(map(len, groups))
    bounds = accumulate(map(len, groups), initial=0) if count == len(reference) else range(len(reference) + 1)
    parts = [reference[begin:end] for begin, end in pairwise(bounds)]
    names = [sorted(map(_name, group)) for group in groups]
    known = [sorted(_name(each.work) for each in part) for part in parts]
    found: dict[GpuWork, KernelAttribution] = {}
    for group, place in zip(groups, in_exact_order(names, known), strict=True):
        part = () if place is None else parts[place]
        for item in group:
            alike = [each for each in part if _name(each.work) == _name(item)]
            if len({(each.module, each.operator, each.bytes, each.flops) for each in alike}) == 1:
                found[item] = alike[0]
    completed = []
    for item in own:
        other = found.get(item.work, item)
        own_operator = item.operator is not None
        completed.append(replace(item, module=other.module) if own_operator else replace(other, work=item.work))
    return tuple(completed), count - len(found) if reference else 0


def _name(work: GpuWork) -> str:
    """Return what a kernel, copy or fill is called; a replay may fill memory by a kernel of its own (`memset32`)."""
    return "fill" if work.kind == "gpu_memset" or work.name.startswith("memset") else work.name


def _in_order_of_launch(work: Sequence[GpuWork]) -> list[list[GpuWork]]:
    """Return the work in the order of its launch, in groups inside which the trace does not tell the order.

    Groups of several are branches of a replay without ids of nodes: what is not on the most used stream, or overlaps.
    """
    streams = Counter(item.stream for item in work)
    launched_alone = len({item.correlation for item in work}) == len(work)
    if launched_alone or len(streams) == 1 or all(item.node for item in work):
        return [[item] for item in sorted(work, key=lambda item: (item.launched, item.node or 0))]
    main_stream = streams.most_common(1)[0][0]
    groups: list[list[GpuWork]] = []
    reached = -inf
    for item in work:
        if groups and (item.stream != main_stream or item.begin < reached - _CLOCK_US):
            groups[-1].append(item)
        else:
            groups.append([item])
        reached = max(reached, item.end)
    return groups


def with_eager_modules(
    compiled: Sequence[KernelAttribution], eager: Sequence[KernelAttribution]
) -> tuple[KernelAttribution, ...]:
    """Return `compiled`, the work of one call of compiled code, with submodules from one call of the eager module.

    Calls are matched in order: the n-th product (convolution, attention) with a given number of FLOPs is matched with
    the n-th such call of the eager module, and so is the n-th call of a custom operator, if both traces have equally
    many. All kernels of a matched operator get its submodule. Kernels that the compiler fused from several operators
    have none.
    """
    modules: dict[int | None, str | None] = {}
    known = _by_anchor(eager)
    for anchor, operators in _by_anchor(compiled).items():
        if len(operators) == len(known.get(anchor, ())):
            modules |= zip(operators, known[anchor].values(), strict=True)
    return tuple(replace(item, module=modules.get(item.work.operator)) for item in compiled)


def _by_anchor(items: Sequence[KernelAttribution]) -> Mapping[Hashable, dict[int | None, str | None]]:
    """Return {kind of operator that a compiler keeps: {id of each call, in order: its submodule}}."""
    groups: dict[Hashable, dict[int | None, str | None]] = {}
    for item in items:
        namespace, _, custom = (item.operator or "").partition("::")
        if item.kind in _COUNTED and item.operator_flops is not None:
            groups.setdefault((item.kind, item.operator_flops), {})[item.work.operator] = item.module
        elif custom and namespace != "aten":
            groups.setdefault(item.operator, {})[item.work.operator] = item.module
    return groups


def microseconds(items: Iterable[KernelAttribution]) -> float:
    """Return the sum of the durations on the GPU."""
    return sum(item.work.length for item in items)


def rate(items: Sequence[KernelAttribution], attribute: Literal["bytes", "flops"], unit: float) -> float | None:
    """Return the known bytes (or FLOPs) per µs over `unit`; None if they are of less than half the time."""
    known = [item for item in items if getattr(item, attribute) is not None]
    spent = microseconds(known)
    if spent <= 0 or spent < _KNOWN * microseconds(items):
        return None
    return sum(getattr(item, attribute) for item in known) / spent / unit


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
