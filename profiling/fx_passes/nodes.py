"""Reads a graph's nodes for the passes: tensor forms, shared memory, constants, calls and their arguments.

`propagate` runs a graph once, where it can without its kernels, and writes this into `node.meta`. A family is a number
for a piece of memory: nodes of one family share it, as views and in-place results do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.trees import tensors_in, written_tensors

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeInfo:
    """Form and memory of a node's tensor in the last run; strides and offset in elements."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...]
    offset: int
    lazy: tuple[bool, bool]  # whether values are conjugated and negated when they are read
    family: int

    def zeros(self, device: torch.device | str | None = None) -> Tensor:
        """Return a tensor of this form, on another device if one is given."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device or self.device).zero_()


def info_of(tensor: Tensor, family: int) -> NodeInfo | None:
    """Return the info of a tensor; None for one without strides (sparse or nested)."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return None
    lazy = (tensor.is_conj(), tensor.is_neg())
    offset = int(tensor.storage_offset())
    return NodeInfo(tuple(tensor.shape), tensor.dtype, tensor.device, tuple(tensor.stride()), offset, lazy, family)


def node_info(node: Any) -> NodeInfo | None:
    """Return the info of a node that holds one tensor; None for anything else, and for a node that never ran."""
    return node.meta.get("info") if isinstance(node, fx.Node) else None


def families(node: fx.Node) -> frozenset[int]:
    """Return the families of the node's tensors: one for a tensor, any number for a tuple of them."""
    return frozenset(node.meta.get("families", ()))


def written_by(node: fx.Node) -> frozenset[int]:
    """Return the families that the node writes to."""
    return node.meta.get("written", frozenset())


def is_written(node: fx.Node) -> bool:
    """Return whether any node writes to this node's memory, or reads it by its strides: its calls stay as they are."""
    return node.meta.get("is_written", False)


def is_call(node: Any, *targets: Any) -> bool:
    """Return whether `node` calls one of `targets` (a function, or a method's name), and nothing writes to its result.

    A pass that matches calls by this function and reads no memory at another time than they do is safe beside writes.
    """
    is_one = isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets
    return is_one and not is_written(node)


def is_read_once(node: Any) -> bool:
    """Return whether exactly one node reads `node`."""
    return isinstance(node, fx.Node) and len(node.users) == 1


def returns_its_input(node: fx.Node) -> bool:
    """Return whether the result of a call is its first tensor: the same memory in the same form, and not written to."""
    if node.op not in ("call_function", "call_method") or not node.all_input_nodes or written_by(node):
        return False
    return (result := node_info(node)) is not None and result == node_info(node.all_input_nodes[0])


def arguments(node: fx.Node, *names: str) -> dict[str, Any]:
    """Return the node's arguments by name, `names` being the function's first ones in order; None where absent."""
    return dict.fromkeys(names) | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def operands(node: Any, function: Any) -> tuple[tuple[Any, Any], ...]:
    """Return both orders of the two operands of a call of a commutative `function`; nothing for another call."""
    if not is_call(node, function) or len(node.args) != 2 or node.kwargs:
        return ()
    return node.args, node.args[::-1]


def unscaled(node: Any) -> tuple[Any, float]:
    """Return the node below multiplications and divisions by numbers that keep its dtype, and their product.

    A factor of 0, or one that is not finite, is no scale.
    """
    scale = 1.0
    while is_call(node, torch.mul, torch.div) and len(node.args) == 2 and not node.kwargs:
        below, factor = node.args
        if is_call(node, torch.mul) and isinstance(below, int | float):
            below, factor = factor, below
        before, after = node_info(below), node_info(node)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor == 0 or not math.isfinite(factor):
            break
        if before is None or after is None or before.dtype != after.dtype:
            break
        node, scale = below, scale * factor if is_call(node, torch.mul) else scale / factor
    return node, scale


def constant(module: fx.GraphModule, node: Any) -> Tensor | None:
    """Return the tensor of a `get_attr` node; None for other nodes, and where the graph writes to it."""
    if node_info(node) is None or node.op != "get_attr" or is_written(node):
        return None
    value = reduce(getattr, str(node.target).split("."), module)
    return value if isinstance(value, Tensor) else None


def constants(module: fx.GraphModule, *nodes: Any) -> list[Any] | None:
    """Return the constants of several arguments, None for one that is absent; None if any is no constant."""
    values = [constant(module, node) for node in nodes]
    return None if any(x is None and node is not None for x, node in zip(values, nodes, strict=True)) else values


def add_constant(module: fx.GraphModule, name: str, value: Tensor) -> fx.Node:
    """Register `value` as a buffer named after `name`, and return a node that reads it, at the graph's insert point."""
    number = 0
    while hasattr(module, f"_{name}_{number}"):
        number += 1
    module.register_buffer(f"_{name}_{number}", value.detach(), persistent=False)
    return module.graph.get_attr(f"_{name}_{number}")


def propagate(module: fx.GraphModule, inputs: Mapping[str, Tensor]) -> None:
    """Write the info of every node, from one run on tensors like `inputs`.

    The run is on fake tensors, which have a form and no values: kernels are neither compiled nor launched. Where an
    operator has no such form, or the form of its output depends on values, it is on copies of `inputs`.
    """
    given = [inputs[node.target] for node in module.graph.find_nodes(op="placeholder")]
    with torch.no_grad():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as fake:
                _Propagation(module, fake.from_tensor).run(*(fake.from_tensor(each).clone() for each in given))
        except Exception as error:  # of any kind, raised by any operator: below it is raised again, or does not occur
            _LOG.debug("the graph runs on real tensors: %s", error)
            _Propagation(module).run(*(each.clone() for each in given))


class _Propagation(fx.Interpreter):
    """Runs a graph node by node and writes into the meta of each: info, families, written, is_written, random."""

    def __init__(self, module: fx.GraphModule, of_constant: Callable[[Tensor], Tensor] = lambda each: each) -> None:
        super().__init__(module)
        self._of_constant = of_constant
        self._constants: list[Tensor] = []  # kept, so that another view of the same memory is of the same family
        self._memory: dict[int, Any] = {0: None}  # by family; while it is referred to, no other memory gets its id

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the node stands for, as the run reads it."""
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, Tensor):
            value = self._of_constant(value)
            self._constants.append(value)
        return value

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph, and note which memory any node writes to."""
        output = super().run(*args, **options)
        nodes = list(cast(fx.Graph, self.graph).nodes)
        strided = (families(node) for node in nodes if node.target in (torch.as_strided, "as_strided"))
        written = frozenset[int]().union(*map(written_by, nodes), *strided)
        for node in nodes:
            node.meta["is_written"] = bool(families(node) & written)
        return output

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and write its meta."""
        with DependencyTracker() as tracker:
            result = super().run_node(n)
        # Before the result's own memory is known: torch.tensor, for example, writes to memory that it allocates.
        n.meta["written"] = frozenset(tracker.written & self._memory.keys())
        n.meta["families"] = tuple(map(self._family, tensors_in(result)))
        n.meta["info"] = info_of(result, n.meta["families"][0]) if isinstance(result, Tensor) else None
        n.meta["random"] = tracker.random
        return result

    def _family(self, tensor: Tensor) -> int:
        family = storage_id(tensor)
        if family not in self._memory:
            self._memory[family] = StorageWeakRef(tensor.untyped_storage())
        return family


def storage_id(tensor: Tensor) -> int:
    """Return the id of the memory that a tensor is a view of, also of an empty one; 0 for a sparse tensor."""
    return 0 if tensor.layout != torch.strided else tensor.untyped_storage()._cdata


class DependencyTracker(TorchDispatchMode):
    """Follows the operators of a block.

    `written` are the ids of memory that was written to, `random` says whether an operator draws random numbers.
    `on_dynamic_shape` is called with an operator's name when the shape of its output depends on values that come from
    `inputs`.
    """

    def __init__(self, inputs: Iterable[Tensor] = (), on_dynamic_shape: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._dependent: Any = WeakIdKeyDictionary(dict.fromkeys(inputs, True))
        self._on_dynamic_shape = on_dynamic_shape
        self.written: set[int] = set()
        self.random = False

    def depends(self, value: Any) -> bool:
        """Return whether any tensor in `value` was computed from the inputs."""
        return any(tensor in self._dependent for tensor in tensors_in(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # the device of a fake tensor, for example: no operator
            return func(*args, **kwargs)
        with self:  # in inference mode an operator that calls others arrives whole: dropout, a norm with statistics
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        is_dependent = self.depends((args, kwargs))
        if is_dependent and self._on_dynamic_shape and _has_dynamic_shape(func, args):
            self._on_dynamic_shape(str(func.overloadpacket.__name__))
        result = func(*args, **kwargs)
        written = list(written_tensors(func, args, kwargs))
        self.written.update(map(storage_id, written))
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        if is_dependent:
            self._dependent.update(dict.fromkeys([*written, *tensors_in(result)], True))
        return result


def _has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is torch.ops.aten.index:  # its only dynamic form is a mask
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags
