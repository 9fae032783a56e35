"""The session-wide switch: off, every engine calls its module; on again, it looks first whether its graphs hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Session:
    enabled: bool = True
    epoch: int = 0  # counts the times that graphs were switched on again
    recorded: int = 0  # graphs captured by all engines so far


SESSION = _Session()


def set_cuda_graphs(enabled: bool) -> None:
    """Switch replaying on or off for every engine of this process; off, a call runs the module itself.

    On again, an engine whose module has been given other parameters or buffers meanwhile (a cast, a checkpoint with
    `assign=True`, `train()`) drops its graphs: they read the old ones.
    """
    if enabled and not SESSION.enabled:
        SESSION.epoch += 1
    SESSION.enabled = enabled
