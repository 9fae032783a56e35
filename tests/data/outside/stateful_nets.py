"""Networks that keep state where a harness could miss it."""

import torch
from torch import nn

_HIDDEN = []


class Position(nn.Module):
    """Counts its calls in a Python number, and takes another matrix in each."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrices", torch.randn(64, 8, 8))
        self.pos = 0

    def forward(self, x):
        matrix = self.matrices[self.pos % 64]
        self.pos += 1
        return x @ matrix


class Passed(nn.Module):
    """Writes to a cache that it is given, and to its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, cache):
        cache.add_(x)
        self.layer.weight.mul_(0.5)
        return self.layer(x) + cache


class Steps(nn.Module):
    """A decoder: a cache in an object, a position, and a hidden state that each call assigns anew."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.drop = kind, nn.Linear(8, 8), nn.Dropout(0.5)
        self.hidden: torch.Tensor | None = None
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, x):
        x = self.layer(x)
        if self.kind == "cache":
            if not self.cache:
                self.cache = {"rows": x.new_zeros(64, 8), "at": torch.zeros(1, dtype=torch.int64, device=x.device)}
            self.cache["rows"].index_copy_(0, self.cache["at"], x[:1])
            self.cache["at"].add_(1)
            return x + self.cache["rows"].sum(0)
        if self.kind == "hidden":
            self.hidden = x if self.hidden is None else torch.tanh(self.hidden + x)
            return self.hidden * 1.5
        if self.kind == "random_length":  # a duration is drawn, as speech models do
            return self.layer(x).repeat(int(torch.randint(1, 1000, ())), 1)
        if self.kind == "dropout":
            return self.drop.train()(x)
        _HIDDEN.append(x)  # outside of the module
        return torch.stack(_HIDDEN).sum(0)
