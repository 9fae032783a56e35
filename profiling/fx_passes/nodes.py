"""Reads a graph's nodes for the passes: tensor forms, shared memory, constants, calls and their arguments.

`propagate` runs a graph once and writes this into `node.meta`. A family is a number for a piece of memory: nodes of one
family share it, as views and in-place results do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.trees import tensors_in, written_tensors


@dataclass(frozen=True)
class NodeInfo:
    """Form and memory of a node's tensor in the last run; strides and offset in elements."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...]
    offset: int
    family: int


def node_info(node: Any) -> NodeInfo | None:
    """Return the info of a node that holds one tensor; None for anything else, and for a node that never ran."""
    return node.meta.get("info") if isinstance(node, fx.Node) else None


def families(node: fx.Node) -> frozenset[int]:
    """Return the families of the node's tensors: one for a tensor, any number for a tuple of them."""
    return frozenset(node.meta.get("families", ()))


def written_by(node: fx.Node) -> frozenset[int]:
    """Return the families that the node writes to."""
    return node.meta.get("written", frozenset())


def written_in(graph: fx.Graph) -> frozenset[int]:
    """Return the families that any node writes to; it is not safe to reorder or drop copies of them."""
    return frozenset().union(*(written_by(node) for node in graph.nodes))


def is_call(node: Any, *targets: Any) -> bool:
    """Return whether `node` calls one of `targets`: functions, or methods by their name."""
    return isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets


def arguments(node: fx.Node, *names: str) -> dict[str, Any]:
    """Return the node's arguments by name, `names` being the function's first ones in order; None where absent."""
    return dict.fromkeys(names) | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def unscaled(node: Any) -> tuple[Any, float]:
    """Return the node below multiplications and divisions by numbers, and their product."""
    scale = 1.0
    while is_call(node, torch.mul, torch.div) and len(node.args) == 2 and not node.kwargs:
        left, right = node.args
        if is_call(node, torch.mul) and isinstance(left, int | float):
            left, right = right, left
        if isinstance(right, bool) or not isinstance(right, int | float):
            break
        node, scale = left, scale * right if is_call(node, torch.mul) else scale / right
    return node, scale


def constant(module: fx.GraphModule, node: Any) -> Tensor | None:
    """Return the tensor of a `get_attr` node; None for other nodes, and where the graph writes to it."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    info = node_info(node)
    if info is None or info.family in written_in(module.graph):
        return None
    value = attribute(module, node)
    return value if isinstance(value, Tensor) else None


def attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    """Return the attribute of the module that a `get_attr` node reads."""
    return reduce(getattr, str(node.target).split("."), module)


def add_constant(module: fx.GraphModule, before: fx.Node, name: str, value: Tensor) -> fx.Node:
    """Register `value` as a buffer named after `name`, and return a node that reads it, in front of `before`."""
    number = 0
    while hasattr(module, f"_{name}_{number}"):
        number += 1
    module.register_buffer(f"_{name}_{number}", value.detach(), persistent=False)
    with module.graph.inserting_before(before):
        return module.graph.get_attr(f"_{name}_{number}")


class DependencyTracker(TorchDispatchMode):
    """Tracks which tensors are computed from `inputs`, and collects the memory that is written to.

    `written` are the numbers (of `_storage`) of that memory. `on_dynamic_shape` is called with an operator's name when
    the shape of its output depends on values that come from the inputs.
    """

    def __init__(self, inputs: Iterable[Tensor], on_dynamic_shape: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._dependent: Any = WeakIdKeyDictionary(dict.fromkeys(inputs, True))
        self._on_dynamic_shape = on_dynamic_shape
        self.written: set[int] = set()

    def depends(self, value: Any) -> bool:
        """Return whether any tensor in `value` was computed from the inputs."""
        return any(tensor in self._dependent for tensor in tensors_in(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        dependent = self.depends((args, kwargs))
        if dependent and self._on_dynamic_shape and _has_dynamic_shape(func, args):
            self._on_dynamic_shape(str(func.overloadpacket.__name__))
        result = func(*args, **kwargs)
        for tensor in written_tensors(func, args, kwargs):
            self.written.add(_storage(tensor))
            if dependent:
                self._dependent[tensor] = True
        if dependent:
            for tensor in tensors_in(result):
                self._dependent[tensor] = True
        return result


def _has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is torch.ops.aten.index:  # its only dynamic form is a mask
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags


def _storage(tensor: Tensor) -> int:
    """Return a number that two living tensors share if they share memory; 0 for wrappers without memory."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0


def propagate(module: fx.GraphModule, inputs: Mapping[str, Tensor]) -> Any:
    """Run the module once on copies of `inputs`, write the info of every node, and return the output."""
    copies = {name: tensor.clone() for name, tensor in inputs.items()}
    with torch.no_grad():
        return _Propagation(module).run(*(copies[node.target] for node in module.graph.find_nodes(op="placeholder")))


class _Propagation(fx.Interpreter):
    """Runs a graph node by node and writes info, families and writes of each into its meta."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self._lasting: dict[int, int] = {}  # storage → family, of inputs and constants, which live to the end
        self._families = 0

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and write its meta."""
        with DependencyTracker(()) as tracker:
            result = super().run_node(n)
        if n.op == "output":
            return result
        known = self._lasting if n.op in ("placeholder", "get_attr") else self._argument_families(n)
        # Before the result's own storage is known: torch.tensor, for example, writes to memory that it allocates.
        n.meta["written"] = frozenset(known[storage] for storage in tracker.written if storage in known)
        n.meta["families"] = tuple(self._family(tensor, known) for tensor in tensors_in(result))
        n.meta["info"] = _info_of(result, n.meta["families"][0]) if isinstance(result, Tensor) else None
        return result

    def _argument_families(self, n: fx.Node) -> dict[int, int]:
        return {
            _storage(tensor): family
            for argument in n.all_input_nodes
            for tensor, family in zip(tensors_in(self.env[argument]), argument.meta["families"], strict=True)
        }

    def _family(self, tensor: Tensor, known: dict[int, int]) -> int:
        storage = _storage(tensor)
        if storage not in known:
            self._families += 1
            known[storage] = self._families
        return known[storage]


def _info_of(tensor: Tensor, family: int) -> NodeInfo:
    return NodeInfo(
        tuple(tensor.shape), tensor.dtype, tensor.device, tuple(tensor.stride()), int(tensor.storage_offset()), family
    )
