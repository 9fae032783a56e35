"""Modules that a GPU takes badly, each in its own way."""

import torch
from torch import nn


class Syncs(nn.Module):
    """Asks for a value on the host in the middle: runs eagerly, cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * 2 if y.sum().item() > 1e9 else y


class Asserts(nn.Module):
    """Indexes out of range on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table[(x * 0 + 100).long()[0]]


class BrokenUp(nn.Module):
    """Cut into pieces by the compiler, at two planted graph breaks; can be captured as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        torch._dynamo.graph_break()  # not in a loop: the compiler would give up the whole frame
        x = torch.relu(self.layers[1](x))
        torch._dynamo.graph_break()
        return self.layers[2](x)


class HostTensor(nn.Module):
    """Makes a tensor on the CPU in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ramp = torch.arange(8)
        return self.layer(x) * ramp.to(x.device)


class Counts(nn.Module):
    """Counts its calls in a buffer and keeps another one as it is; splits its input where it is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.layer(x[x[:, 0] > 0]) * self.scale


class Remembers(nn.Module):
    """Adds up what it has read since its reset, and returns that beside a product: rows of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def reset(self) -> None:
        self.total.zero_()
        self.calls.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        self.calls.add_(1)
        return self.layer(x) + self.total


class Noisy(nn.Module):
    """Adds noise of its own, as the generator of a GAN does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + 0.02 * torch.randn_like(x)


class Grows(nn.Module):
    """Keeps what it has read, and empties that with its reset only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.kept = []

    def reset(self) -> None:
        self.kept = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x.clone())
        return self.layer(x) + torch.cat(self.kept).mean(0)


class AssignsState(nn.Module):
    """Keeps its hidden state by assigning a new tensor in each call; torch.compile refuses its GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 8)
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.hidden = self.layer(x, self.hidden)
        return y
