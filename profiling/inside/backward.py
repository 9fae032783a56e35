"""Submodules of a backward pass: autograd gives a node the number of the forward operator that made it."""

from __future__ import annotations

from collections.abc import Mapping

from profiling.inside.nesting import innermost
from profiling.inside.timeline import MODULE, Operator, Timeline


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
