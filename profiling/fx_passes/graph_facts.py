"""Tensors that a graph holds: how a pass reads one and adds one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.trees import named_tensors, written_tensors


def leaves(value: Any) -> list[Tensor]:
    """Return the tensors in `value`, which may be nested, in a fixed order."""
    return [tensor for _, tensor in named_tensors(value)]


def storage_of(tensor: Tensor) -> int:
    """Return a number that two living tensors share when they share their memory; wrappers without memory get 0."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0


class Watch(TorchDispatchMode):
    """Follows the values of `inputs` through every operator, and collects the memory that is written to.

    `on_dynamic_shape` is called when the shape of an output depends on values that come from the inputs.
    """

    def __init__(self, inputs: Iterable[Tensor], on_dynamic_shape: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._reached: Any = WeakIdKeyDictionary(dict.fromkeys(inputs, True))
        self._on_dynamic_shape = on_dynamic_shape
        self.written: set[int] = set()

    def reached(self, value: Any) -> bool:
        """Say whether any tensor in `value` was computed from the inputs."""
        return any(tensor in self._reached for tensor in leaves(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reached = self.reached((args, kwargs))
        if reached and self._on_dynamic_shape and _has_dynamic_shape(func, args):
            self._on_dynamic_shape(str(func.overloadpacket.__name__))
        result = func(*args, **kwargs)
        for written in written_tensors(func, args, kwargs):
            self.written.add(storage_of(written))
            if reached:
                self._reached[written] = True
        if reached:
            for tensor in leaves(result):
                self._reached[tensor] = True
        return result


def _has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is torch.ops.aten.index:  # whose only dynamic form is a mask
        return any(index.dtype in (torch.bool, torch.uint8) for index in leaves(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags


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


def constant(module: fx.GraphModule, node: Any) -> Tensor | None:
    """Return the tensor that a `get_attr` node stands for, None for other nodes and where the graph writes to it."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    known = facts(node)
    if known is None or known.family in mutated(module.graph):
        return None
    value = reduce(getattr, str(node.target).split("."), module)
    return value if isinstance(value, Tensor) else None


def add_constant(module: fx.GraphModule, before: fx.Node, name: str, value: Tensor) -> fx.Node:
    """Give the module a tensor under a free name like `name`, and return a node for it in front of `before`."""
    number = 0
    while hasattr(module, f"_{name}_{number}"):
        number += 1
    module.register_buffer(f"_{name}_{number}", value.detach(), persistent=False)
    with module.graph.inserting_before(before):
        return module.graph.get_attr(f"_{name}_{number}")
