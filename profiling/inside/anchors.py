"""Submodules of compiled work, by the operators that a compiler leaves whole: products, attention, custom ones."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from profiling.inside.witness import COUNTED, Witness

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
