"""A picture stage that fails in the middle of a loop."""

import os
import signal

import torch
from torch import nn


class FailingPicture(nn.Module):
    """Raises an error, or ends its own process, at one of its calls."""

    def __init__(self, *, how: str, call: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.how, self.call, self.calls = how, call, 0

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.call:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"planted in call {self.call}")
        return self.layer(z)


class Stale(nn.Module):
    """From the 111th call of the process on, multiplies what it returns by `factor`: 0 or NaN."""

    CALLS = 0

    def __init__(self, *, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(16, 16), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Stale.CALLS += 1
        return self.layer(x) * (self.factor if Stale.CALLS > 110 else 1)
