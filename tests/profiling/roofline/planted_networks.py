"""Networks whose work is known by hand, as components."""

from typing import Any

import torch
from fixed_component import Net
from torch import Tensor, nn


@torch.library.custom_op("planted_limits::write_rings", mutates_args={"k", "v"})
def write_rings(qkv: Tensor, gain: Tensor, rotation: Tensor, slot: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Write the keys and values in `qkv` [3, width] into a slot of two rings, and return the queries."""
    queries, keys, values = (qkv * gain).unbind(0)
    for ring, row in ((k, keys), (v, values)):
        ring[int(slot)] = row + rotation.sum().to(row.dtype)
    return queries.clone()


def writes_rings() -> Net:
    """Return a module that writes by an operator from outside torch, which also gets what it does not write."""

    def forward(self: Any, qkv: Tensor) -> Tensor:
        return write_rings(qkv, self.gain, self.rotation, self.slot, self.k, self.v)

    gain, rotation = nn.Parameter(torch.ones(1, dtype=torch.bfloat16)), torch.ones(32)
    k, v = (torch.zeros(50, 128, dtype=torch.bfloat16) for _ in range(2))
    made = Net(forward, k=k, v=v, gain=gain, rotation=rotation, slot=torch.zeros((), dtype=torch.int64))
    made.state_tensors = lambda: (made.k, made.v)
    return made


class Chain(nn.Module):
    """Kernels that do next to nothing, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(500):
            x = -x
        return x


class Copy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class Product(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, dtype=dtype) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight
