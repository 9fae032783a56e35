"""What is known of a replay's work: it has no operators of its own, but the same work launched one by one has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiling.inside.alignment import aligned
from profiling.inside.timeline import Work
from profiling.inside.witness import Witness


def told_by(reference: Sequence[Witness], work: Sequence[Work]) -> list[Witness | None]:
    """Return for each piece of `work` what `reference`, the same work launched one by one, knows of it.

    The two are aligned by names in order; what has no counterpart gets None: copies around a replay, and kernels that
    the one chose and the other did not.
    """
    places = aligned(tuple(item.name for item in work), tuple(item.work.name for item in reference))
    pairs = zip(work, places, strict=True)
    return [None if place is None else replace(reference[place], work=item) for item, place in pairs]


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
