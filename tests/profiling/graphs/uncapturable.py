"""Modules that cannot be captured, each with the line that causes it marked `HERE`."""

import torch
from torch import nn


class Item(nn.Module):
    def forward(self, x):
        if x.sum().item() > 0:  # HERE
            return x * 2
        return x


class Truth(nn.Module):
    def forward(self, x):
        return x * 2 if (x > 0).any() else x  # HERE


class CpuTensor(nn.Module):
    def forward(self, x):
        return x + torch.arange(8.0).to(x.device)  # HERE


class Pageable(nn.Module):
    def forward(self, x):
        return x + torch.full((8,), 3.0).to(x.device, non_blocking=True)  # HERE


class PageableScalar(nn.Module):
    def forward(self, x):
        return x + torch.tensor(3.0).to(x.device, non_blocking=True)  # HERE


class ToHost(nn.Module):
    def forward(self, x):
        y = x * 2
        y.cpu()  # HERE
        return y


class Literal(nn.Module):
    def forward(self, x):
        return x * torch.tensor([1.0, 2.0] * 4, device=x.device)  # HERE


class Nonzero(nn.Module):
    def forward(self, x):
        return x.nonzero().sum()  # HERE


class Mask(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()  # HERE


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


class Synchronizes(nn.Module):
    def forward(self, x):
        y = x * 2
        torch.cuda.synchronize()  # HERE
        return y


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


class Raises(nn.Module):
    def forward(self, x):
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("planted")  # HERE
        return x


def line_of(kind: type) -> int:
    """Return the number of the line of `kind` that is marked."""
    import inspect

    lines, first = inspect.getsourcelines(kind)
    return first + next(i for i, line in enumerate(lines) if "# HERE" in line)
