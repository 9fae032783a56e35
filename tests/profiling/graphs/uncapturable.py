"""What cannot be captured: functions and modules, each with the line that causes it marked `HERE`."""

import inspect
from collections.abc import Callable

import torch
from torch import nn


def item(x):
    return x * 2 if x.sum().item() > 0 else x  # HERE


def truth(x):
    return x * 2 if (x > 0).any() else x  # HERE


def cpu_tensor(x):
    return x + torch.arange(8.0).to(x.device)  # HERE


def pageable(x):
    return x + torch.full((8,), 3.0).to(x.device, non_blocking=True)  # HERE


def pageable_scalar(x):
    return x + torch.tensor(3.0).to(x.device, non_blocking=True)  # HERE


def to_host(x):
    y = x * 2
    y.cpu()  # HERE
    return y


def literal(x):
    return x * torch.tensor([1.0, 2.0] * 4, device=x.device)  # HERE


def nonzero(x):
    return x.nonzero().sum()  # HERE


def mask(x):
    return x[x > 0].sum()  # HERE


def synchronizes(x):
    y = x * 2
    torch.cuda.synchronize()  # HERE
    return y


def never_works(x):
    raise KeyError("planted")


def raises(x):
    """Fail inside the capture for a reason of its own."""
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("planted")
    return x


def exhausts(x):
    """Ask for more memory inside the capture than there is."""
    if torch.cuda.is_current_stream_capturing():
        torch.empty(2**50, device="cuda", dtype=torch.uint8)
    return x + 1


class Unjoined(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            y = x * 2  # HERE
        return x + 1 if y is None else x


class NeverForked(nn.Module):
    """Work on a stream that is in no capture: CUDA says nothing, it runs once."""

    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        with torch.cuda.stream(self.side):
            y = x * 2  # HERE
        return x + y


CALLS = {"LazyInit": 0, "Benchmark": 0}  # beside the modules, whose own attributes are restored before each call


class LazyInit(nn.Module):
    """Initialises something at its ninth call, inside the capture: one warms up its state, three are observed, one is
    audited, and three warm up."""

    def __init__(self):
        super().__init__()
        CALLS["LazyInit"] = 0

    def forward(self, x):
        CALLS["LazyInit"] += 1
        if CALLS["LazyInit"] == 9:
            self.table = torch.arange(8.0).cuda()  # HERE
        return x + 1


class Benchmark(nn.Module):
    """Meets a shape that cuDNN has not benchmarked inside the capture."""

    def __init__(self):
        super().__init__()
        CALLS["Benchmark"] = 0
        self.conv = nn.Conv2d(3, 8, 3).cuda()

    def forward(self, x):
        CALLS["Benchmark"] += 1
        picture = torch.ones(1, 3, 32 + CALLS["Benchmark"], 32, device=x.device)
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            return x + self.conv(picture).sum()  # HERE


def line_of(kind: Callable) -> int:
    """Return the number of the line of `kind` that is marked."""
    lines, first = inspect.getsourcelines(kind)
    return first + next(i for i, line in enumerate(lines) if "# HERE" in line)
