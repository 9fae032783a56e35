"""What is known of a replay's work: it has no operators of its own, but the same work launched one by one has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiling.inside.alignment import aligned
from profiling.inside.timeline import Work
from profiling.inside.witness import Witness

#: Kernels of one stream touch: the clock of the trace may tell an overlap of less than this.
_CLOCK_US = 0.1


def told_by(reference: Sequence[Witness], work: Sequence[Work]) -> list[Witness | None]:
    """Return for each piece of `work` what `reference`, the same work launched one by one, knows of it.

    The two are aligned by names in order; what has no counterpart gets None: copies around a replay, and kernels that
    the one chose and the other did not. Where work overlaps, on branches of a graph, its order is no witness: a name
    that stands for different things in `reference` has no counterpart there.
    """
    places = aligned(tuple(item.name for item in work), tuple(item.work.name for item in reference))
    unclear = _of_several(reference) if _overlaps(work) else frozenset()
    pairs = zip(work, places, strict=True)
    return [
        None if place is None or item.name in unclear else replace(reference[place], work=item) for item, place in pairs
    ]


def _overlaps(work: Sequence[Work]) -> bool:
    """Say whether any of `work`, sorted by begin, began before all earlier ones had ended."""
    reached = float("-inf")
    for item in work:
        if item.begin < reached - _CLOCK_US:
            return True
        reached = max(reached, item.end)
    return False


def _of_several(reference: Sequence[Witness]) -> frozenset[str]:
    """Return the names that belong to more than one submodule, or to operators of different sizes."""
    known: dict[str, set[tuple[object, ...]]] = {}
    for item in reference:
        known.setdefault(item.work.name, set()).add((item.module, item.operator, item.bytes, item.flops))
    return frozenset(name for name, kinds in known.items() if len(kinds) > 1)


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
