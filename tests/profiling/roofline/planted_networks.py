"""Networks whose work is known by hand, as components."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from profiling.components.component import Component


def component(module: nn.Module, device: str = "cpu", **inputs: Tensor) -> Component:
    """Make a component of `module` that always has the same inputs."""
    given: Mapping[str, Tensor] = {name: tensor.to(device) for name, tensor in inputs.items()}
    made = module.to(device).eval()
    dtype = next((tensor.dtype for tensor in made.parameters()), torch.float32)
    return Component("planted", made, given, lambda _: given, torch.device(device), dtype, 1, "random")


class Function(nn.Module):
    """Calls a function with its inputs, and first with the buffer `table` where there is one."""

    table: Tensor | None

    def __init__(self, call: Callable[..., Any], table: Tensor | None = None) -> None:
        super().__init__()
        self.call = call
        self.register_buffer("table", table)

    def forward(self, *args: Tensor, **inputs: Tensor) -> Any:
        return self.call(*args, **inputs) if self.table is None else self.call(self.table, *args, **inputs)


class Ring(nn.Module):
    """Writes one slot of its state a call and reads all of it."""

    slots: Tensor
    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slots", torch.zeros(10, 64))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def state_tensors(self) -> tuple[Tensor, ...]:
        return self.slots, self.position

    def reset(self) -> None:
        self.slots.zero_()
        self.position.zero_()

    def forward(self, x: Tensor) -> Tensor:
        self.slots.index_copy_(0, self.position % 10, x)
        self.position.add_(1)
        return self.slots.sum(0)


@torch.library.custom_op("planted_limits::write_rings", mutates_args={"k", "v"})
def write_rings(qkv: Tensor, gain: Tensor, rotation: Tensor, slot: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Write the keys and values in `qkv` [3, width] into a slot of two rings, and return the queries."""
    queries, keys, values = (qkv * gain).unbind(0)
    for ring, row in ((k, keys), (v, values)):
        ring[int(slot)] = row + rotation.sum().to(row.dtype)
    return queries.clone()


class WritesRings(nn.Module):
    """Writes one slot of two rings by an operator from outside torch, which also gets what it does not write."""

    k: Tensor
    v: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(50, 128, dtype=torch.bfloat16))
        self.gain = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        self.register_buffer("rotation", torch.ones(32))
        self.register_buffer("slot", torch.zeros((), dtype=torch.int64))

    def state_tensors(self) -> tuple[Tensor, ...]:
        return self.k, self.v

    def forward(self, qkv: Tensor) -> Tensor:
        return write_rings(qkv, self.gain, self.rotation, self.slot, self.k, self.v)


class Chain(nn.Module):
    """Kernels that do next to nothing, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(500):
            x = -x
        return x


class Copy(nn.Module):
    """A copy of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class Product(nn.Module):
    """A matrix times its input."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, dtype=dtype) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight
