"""Random actions of a user over the ticks of a loop, for a pipeline's source without a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError

#: Share of a movement that is kept in the next tick, and probability a tick that a button changes.
MEMORY, CHANGE = 0.9, 0.05


def draw_actions(
    shapes: Mapping[str, Sequence[int]], ticks: int, seed: int, *, moves: Sequence[str] = (), held: Sequence[str] = ()
) -> dict[str, NDArray[np.float32]]:
    """Draw actions of a user who moves smoothly, and holds buttons for 20 ticks on average.

    Args:
        shapes: [1, n] of each action that is needed.
        ticks: number of ticks.
        seed: of the random numbers.
        moves: names of the actions that are movements, normal numbers.
        held: names of the actions that are buttons, 0 or 1.

    Returns:
        [ticks, n], float32, by the names in `shapes`.

    Raises:
        InputError: an action that is neither a movement nor a button, or one of a batch.

    """
    for name, shape in shapes.items():
        if name not in (*moves, *held):
            raise InputError(f"there is no action {name!r}, only {' and '.join((*moves, *held))}.")
        if len(shape) != 2 or shape[0] != 1:
            raise InputError(f"{name} takes {list(shape)}: actions are those of one user, [1, n].")
    random = np.random.default_rng(seed)
    actions: dict[str, NDArray[np.float32]] = {}
    for name in (each for each in moves if each in shapes):
        moved = np.zeros((ticks, shapes[name][-1]))
        for tick in range(1, ticks):
            moved[tick] = MEMORY * moved[tick - 1] + random.normal(size=moved.shape[1])
        actions[name] = moved.astype(np.float32)
    for name in (each for each in held if each in shapes):
        count = shapes[name][-1]
        changes = random.random((ticks, count)) < CHANGE
        pressed = (np.cumsum(changes, axis=0) + random.integers(0, 2, count)) % 2
        actions[name] = pressed.astype(np.float32)
    return {name: actions[name] for name in shapes}
