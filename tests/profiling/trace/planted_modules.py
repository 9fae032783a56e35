"""Small networks whose submodules and waits are known; tests look for their lines."""

from pathlib import Path

import torch
from fixed_component import fixed_component
from torch import nn
from torch.nn import functional as F

from profiling.components.component import Component


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).softmax(-1)


class Waiting(Stack):
    """Waits for the device by a method, by a comparison and by a copy, through a helper of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if y.sum() < 0:  # planted: comparison
            y = -y
        scale = (
            y.max().item()  # planted: method
        )
        return y * scale + away(y).to(y.device)  # planted: copy back


class Constructing(Stack):
    """Copies by a constructor, by an index, and waits explicitly: none of them is an operator of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([2.0], device=x.device)  # planted: constructor
        rows = x[[0, 1]]  # planted: index
        torch.cuda.synchronize()  # planted: explicit
        return super().forward(rows * scale)


class Borrowing(nn.Module):
    """Takes the weights of submodules that it does not call, beside one that it does."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.pair = nn.ModuleDict({name: nn.Linear(width, width) for name in ("one", "two")})
        self.ring = nn.BatchNorm1d(width)
        self.tied = nn.Linear(width, width)
        self.tied.weight = self.pair["two"].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.pair["one"], self.pair["two"]
        x = F.linear(x, one.weight, one.bias)
        scale = one.weight * two.weight
        x = x + self.ring.running_var
        return self.tied(x.sigmoid()) @ scale


class Trained(nn.Module):
    """A forward and a backward pass in one call."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.model = Stack(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss.detach()


def away(y: torch.Tensor) -> torch.Tensor:
    return y.cpu()  # planted: copy


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# planted: {mark}"))


def component(module: nn.Module, device: str = "cpu", rows: int = 256) -> Component:
    """Make a component of `module` that always has the same input."""
    width = next(module.parameters()).shape[0]
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    return fixed_component(module.to(device), x.to(device))
