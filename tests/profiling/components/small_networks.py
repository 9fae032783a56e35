"""Small networks with the habits of the real ones: nested blocks, rotary constants, tables rebuilt by a load hook."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rope(nn.Module):
    def __init__(self):
        super().__init__()
        self.freqs: Tensor
        self.register_buffer("freqs", torch.linspace(1, 4, 4))


class World(nn.Module):
    """Keeps a table made from its `freqs`, which is in no state dict and must follow a load."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.proj_in = nn.Linear(4, width, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.rope = Rope()
        self.table = self.rope.freqs.cos()
        self.register_load_state_dict_post_hook(lambda module, keys: module.rebuild())

    def rebuild(self) -> None:
        self.table = self.rope.freqs.cos()


class Half(nn.Module):
    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.conv_in = nn.Conv1d(inside, 6, 1)
        self.conv_out = nn.Conv1d(6, outside, 3)


def decoder() -> Half:
    return Half(4, 2)


def encoder() -> Half:
    return Half(2, 4)


def seeded(module: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Draw other weights for the module's names than the module has."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=generator) for name, value in module.state_dict().items()}


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def prefixed(prefix: str, state: dict) -> dict:
    return {prefix + name: value for name, value in state.items()}


def assert_holds(module: nn.Module, state: dict[str, Tensor]) -> None:
    found = module.state_dict()
    assert set(found) == set(state)
    for name, value in state.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
