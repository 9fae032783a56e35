"""A module that fails on the device in one chosen phase of its cell and computes correctly in all others."""

import os
import signal
import sys

import torch
from torch import nn


class Failing(nn.Module):
    """Calls one of the faults below when a frame of the file `where` is on the stack.

    `where` may also be "load" (when the module is built) or "capture" (while a CUDA graph is captured).
    """

    def __init__(self, fault: str, where: str) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.fault, self.where = fault, where
        if where == "load":
            globals()[fault](torch.zeros(2, 8, device=self.layer.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _is_running(self.where):
            globals()[self.fault](x)
        return self.layer(x)


def _is_running(where: str) -> bool:
    if where == "capture":
        return torch.cuda.is_current_stream_capturing()
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith(where):
            return True
        frame = frame.f_back
    return False


def out_of_memory(x: torch.Tensor) -> None:
    """Allocate more than any GPU has."""
    torch.empty(1 << 50, device=x.device)


def illegal_access(x: torch.Tensor) -> None:
    """Write outside every allocation: the CUDA context of the process is lost ("sticky" error)."""
    from wild_kernel import write_outside  # needs Triton

    write_outside(x)


def endless_kernel(x: torch.Tensor) -> None:
    """Start a kernel that spins for days."""
    torch.cuda._sleep(10**15)


def killed(x: torch.Tensor) -> None:
    """End the process as the kernel's out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
