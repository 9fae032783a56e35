"""What a pass may ask of a node without running it: shape, dtype, layout, and which nodes share its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from profiling.transforms.watch import Watch, leaves, storage_of


@dataclass(frozen=True)
class Facts:
    """A node's tensor as it was in the last run. Nodes of one `family` share memory (views, in-place results)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...]
    offset: int
    family: int

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie row by row, without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def facts(node: Any) -> Facts | None:
    """Return the facts of a node that holds one tensor; None for anything else, and for a node that is new."""
    return node.meta.get("facts") if isinstance(node, fx.Node) else None


def family(node: fx.Node) -> frozenset[int]:
    """Return the families of the node's tensors: one for a tensor, any number for a tuple of them."""
    return frozenset(node.meta.get("families", ()))


def mutates(node: fx.Node) -> frozenset[int]:
    """Return the families that the node writes to."""
    return node.meta.get("mutates", frozenset())


def mutated(graph: fx.Graph) -> frozenset[int]:
    """Return the families that anything in the graph writes to; reordering or dropping copies of them is not safe."""
    return frozenset().union(*(mutates(node) for node in graph.nodes))


def propagate(module: fx.GraphModule, inputs: Mapping[str, Tensor]) -> Any:
    """Run the module once on copies of `inputs`, write every node's facts, and return the output."""
    copies = {name: tensor.clone() for name, tensor in inputs.items()}
    with torch.no_grad():
        return _Propagation(module).run(*(copies[node.target] for node in module.graph.find_nodes(op="placeholder")))


class _Propagation(fx.Interpreter):
    """Runs a graph node by node and looks at each result."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self._standing: dict[int, int] = {}  # storage → family, of inputs and constants, which live throughout
        self._families = 0

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and write down what came out."""
        with Watch(()) as watch:
            result = super().run_node(n)
        if n.op == "output":
            return result
        near = self._standing if n.op in ("placeholder", "get_attr") else self._argument_families(n)
        # Before the result's own memory is near: torch.tensor, say, writes to what it has just made.
        n.meta["mutates"] = frozenset(near[storage] for storage in watch.written if storage in near)
        n.meta["families"] = tuple(self._family(tensor, near) for tensor in leaves(result))
        n.meta["facts"] = _facts(result, n.meta["families"][0]) if isinstance(result, Tensor) else None
        return result

    def _argument_families(self, n: fx.Node) -> dict[int, int]:
        found: dict[int, int] = {}
        for argument in n.all_input_nodes:
            for tensor, number in zip(leaves(self.env[argument]), argument.meta["families"], strict=True):
                found[storage_of(tensor)] = number
        return found

    def _family(self, tensor: Tensor, near: dict[int, int]) -> int:
        storage = storage_of(tensor)
        if storage not in near:
            self._families += 1
            near[storage] = self._families
        return near[storage]


def _facts(tensor: Tensor, family: int) -> Facts:
    return Facts(
        tuple(tensor.shape), tensor.dtype, tensor.device, tuple(tensor.stride()), int(tensor.storage_offset()), family
    )
