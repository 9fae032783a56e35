"""A user's own modules, outside the package: good ones and bad ones."""

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class Answer:
    picture: torch.Tensor
    score: torch.Tensor


class Net(nn.Module):
    """A small network whose last layer starts at zero, as many do; returns a nested structure."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(width, 16)
        self.last = nn.Linear(16, 4)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: torch.Tensor, gain: torch.Tensor):
        hidden = torch.relu(self.first(x)) * gain
        return {"answer": Answer(self.last(hidden), hidden.mean(-1)), "hidden": (hidden, [hidden + 1])}


class Caches(nn.Module):
    """Keeps a table of its first call, in the dtype of that call, as rotary embeddings and codebooks often do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.eye(8, dtype=self.layer.weight.dtype, device=x.device)
        return self.layer(x) @ self.table


class Nested(nn.Module):
    """Takes dicts and lists of tensors, plain values, and an argument that a factory makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, cond, cache, grid, position, scale=1.0, use_cache=False, text=None):
        y = self.layer(x) * scale + cond["embed"]["text"] * cond["weight"]
        if use_cache and text is None:
            y = y + sum(key * value for key, value in cache)
        return [y * grid.sum(), y[position["index"]]]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(nn.functional.silu(self.inner(x)))


class Blocks(nn.Module):
    """Repeated blocks of linear layers, and no convolution."""

    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make_position(module, *, generator, device, dtype, rows):
    return {"index": torch.randperm(rows, generator=generator, device=device)}


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("this module never works")


def make_inputs(module, *, generator, device, dtype):
    return {"x": torch.randn(2, 8, generator=generator, device=device).to(dtype), "gain": torch.ones(1, device=device)}
