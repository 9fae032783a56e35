"""What is known of a replay's work: it has no operators of its own, but the same work launched one by one has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from profiling.inside.alignment import aligned
from profiling.inside.timeline import Work
from profiling.inside.witness import Witness

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
