"""What the player does: a mouse that drifts and buttons that are held for a while, or a recording."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError

#: How much of a movement is left in the next frame, and how likely a button changes in one.
MOUSE_MEMORY, BUTTON_CHANGE = 0.9, 0.05


@dataclass(frozen=True)
class Actions:
    """A movement [n, axes] and the buttons held [n, n_buttons], float32, for as many frames; then from the start."""

    mouse: NDArray[np.float32]
    btn: NDArray[np.float32]

    def at(self, frame: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (mouse [axes], btn [n_buttons]) of a frame."""
        index = frame % len(self.mouse)
        return self.mouse[index], self.btn[index]


def drawn_actions(frames: int, axes: int, buttons: int, seed: int) -> Actions:
    """Draw actions of a player who moves smoothly and holds buttons."""
    random = np.random.default_rng(seed)
    mouse = np.zeros((frames, axes))
    for frame in range(1, frames):
        mouse[frame] = MOUSE_MEMORY * mouse[frame - 1] + random.normal(size=axes)
    changes = random.random((frames, buttons)) < BUTTON_CHANGE
    held = (np.cumsum(changes, axis=0) + random.integers(0, 2, buttons)) % 2
    return Actions(mouse.astype(np.float32), held.astype(np.float32))


def read_actions(path: Path, axes: int, buttons: int) -> Actions:
    """Read the arrays `mouse` [n, axes] and `btn` [n, buttons] of an .npz.

    Raises:
        InputError: there is no such file, or it holds something else.

    """
    try:
        with np.load(path, allow_pickle=False) as content:
            found = {name: content[name].astype(np.float32, casting="same_kind") for name in ("mouse", "btn")}
    except (OSError, ValueError, TypeError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"loop.actions={path}: {' '.join(str(error).split())}. Save it with numpy.savez(path, mouse=[n, {axes}], "
            f"btn=[n, {buttons}])."
        ) from None
    wanted = {"mouse": axes, "btn": buttons}
    length = found["mouse"].shape[:1]
    for name, width in wanted.items():
        if found[name].shape != (*length, width) or length == (0,) or not np.isfinite(found[name]).all():
            raise InputError(
                f"loop.actions={path}: {name} is {list(found[name].shape)}, wanted are finite numbers [n, {width}] "
                "with the same n, at least 1, in mouse and btn."
            )
    return Actions(found["mouse"], found["btn"])
