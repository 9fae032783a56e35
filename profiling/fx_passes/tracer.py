"""From a module and example inputs to a torch.fx graph of the functions it calls, without dynamo.

`torch.fx.symbolic_trace` gives up where Python reads a shape, and a library that meets one of its proxies often takes a
path of its own for it. A CUDA graph is for one shape anyway, so this tracer calls `forward` on real tensors and writes
down each function of torch on the way. Shapes, dtypes and devices answer as in eager mode; values that come from the
inputs do not: Python that asks for one is refused at its line, so that no value of the example gets into the graph.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.fx.node import base_types
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.user_code import running_line
from profiling.errors import InputError
from profiling.fx_passes.canonical import SPELLED, spelled
from profiling.fx_passes.graph_facts import Watch, facts, family, leaves, mutates, propagate
from profiling.fx_passes.passes import pruned

#: Fill a tensor with random numbers; without the underscore these are functions that mean something else.
_RANDOM = ("bernoulli_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_")


def out_of_place(graph: fx.Graph) -> int:
    """Rewrite what can be, and return how many calls that were; the facts of the rewritten nodes are out of date."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    kin: dict[int, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        for number in family(node):
            kin[number].append(node)
    rewritten = 0
    for node in graph.nodes:
        if len(mutates(node)) != 1 or not _is_private(node, kin[next(iter(mutates(node)))], order):
            continue
        if (call := _twin(node)) is not None:
            node.op, node.target, node.kwargs = call
            rewritten += 1
    return rewritten


def _is_private(node: fx.Node, family: list[fx.Node], order: dict[fx.Node, int]) -> bool:
    """Say whether only `node`, and what is made from its result, still reads the memory that it writes to."""
    before = [member for member in family if order[member] < order[node]]
    return all(
        member.op not in ("placeholder", "get_attr") and all(order[user] <= order[node] for user in member.users)
        for member in before
    )


def _twin(node: fx.Node) -> tuple[str, Any, Any] | None:
    """Return op, target and keyword arguments of the same call out of place, if there is one with the same result."""
    dtypes = {known.dtype for argument in node.all_input_nodes if (known := facts(argument))}
    if len(dtypes) != 1 or node.args[:1] != tuple(node.all_input_nodes[:1]):
        return None  # out of place, the result could be of another dtype
    if node.kwargs.get("inplace"):
        return node.op, node.target, {**node.kwargs, "inplace": False}
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if not name.endswith("_") or name.endswith("__") or name in _RANDOM:
        return None
    if hasattr(torch, name[:-1]):
        return "call_function", SPELLED.get(getattr(Tensor, name[:-1], None), getattr(torch, name[:-1])), node.kwargs
    return ("call_method", name[:-1], node.kwargs) if hasattr(Tensor, name[:-1]) else None


#: What may be asked of a tensor that depends on the inputs although the answer is no tensor: its form, not its values.
FORM = frozenset(
    {"size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "storage_offset", "type", "get_device"}
    | {"is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "is_same_size", "is_conj"}
    | {"is_neg", "has_names", "result_type", "can_cast", "__len__", "__hash__"}
)


def trace(module: nn.Module, inputs: Mapping[str, Tensor]) -> fx.GraphModule:
    """Return the module's forward for tensors like `inputs` (by argument name) as a graph with facts on its nodes.

    The result is called like the module and shares its parameters and buffers; shapes, and whatever else Python
    decides on the way, are those of this call. The module runs twice, on copies of the inputs.

    Raises:
        InputError: forward needs the values of a tensor, or does what a graph cannot hold; names file and line.

    """
    recorder = _Recorder(module, inputs)
    traced = fx.GraphModule(recorder.attributes, recorder.record(module), type(module).__name__)
    propagate(traced, inputs)
    if out_of_place(traced.graph):
        propagate(traced, inputs)
    return pruned(traced)


class _Recorder(TorchFunctionMode):
    """Writes a node for each function of torch that is called under it."""

    def __init__(self, module: nn.Module, inputs: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self._inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        self._watch = Watch(self._inputs.values(), self._dynamic_shape)
        self._name = type(module).__name__
        self._owned: Any = WeakIdKeyDictionary()
        for path, tensor in chain(module.named_buffers(), module.named_parameters()):
            self._owned[tensor] = path
        self._nodes: Any = WeakIdKeyDictionary()
        for name, tensor in self._inputs.items():
            self._nodes[tensor] = self.graph.placeholder(name)
        self._autocast = _autocast()

    def record(self, module: nn.Module) -> fx.Graph:
        """Call the module and return the graph of that."""
        with torch.no_grad(), self._watch, self:
            output = module(**self._inputs)
        self.graph.output(self._output(output))
        return self.graph

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._watch.written.clear()
        result = func(*args, **kwargs)
        given = leaves((args, kwargs))
        if any(is_functorch_wrapped_tensor(tensor) for tensor in given):
            self._inside_functorch(given)  # one that is made of constants alone is one when it comes out of there
        elif leaves(result) or (result is None and self._watch.written):
            if _autocast() != self._autocast:
                self._refuse("runs under an autocast of forward's own, which the graph would not")
            op, target, node_args, node_kwargs = spelled(func, self._argument(args), self._argument(kwargs))
            self._name_results(self.graph.create_node(op, target, node_args, node_kwargs), result)
        elif self._watch.reached(given) and not _asks_for_form(func):
            self._refuse(f"needs the values of a tensor that depends on the inputs ({_readable(func)})")
        return result

    def _name_results(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, Tensor):
            self._nodes[result] = node
        elif isinstance(result, tuple | list):
            for index, item in enumerate(result):
                if leaves(item):
                    self._name_results(self.graph.call_function(operator.getitem, (node, index)), item)

    def _argument(self, value: Any) -> Any:
        """Return `value` with its tensors replaced by their nodes."""
        if isinstance(value, Tensor):
            return self._nodes.get(value) or self._constant(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._argument(item) for item in value))
        if isinstance(value, tuple | list):
            return (tuple if isinstance(value, tuple) else list)(self._argument(item) for item in value)
        if isinstance(value, dict):
            return {key: self._argument(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._bound(item) for item in (value.start, value.stop, value.step)))
        if value is None or value is Ellipsis or isinstance(value, base_types):
            return value
        self._refuse(f"passes a {type(value).__name__}, which a graph cannot hold")

    def _bound(self, value: Any) -> Any:
        """Return an end of a slice, which decides a shape."""
        if self._watch.reached(value):
            self._refuse("needs the values of a tensor that depends on the inputs (as the end of a slice)")
        return int(value) if isinstance(value, Tensor) else value

    def _constant(self, tensor: Tensor) -> fx.Node:
        """Return the node of a parameter, a buffer, or a tensor that was there before."""
        if self._watch.reached(tensor):
            self._refuse("uses a tensor made from the inputs by code that cannot be seen (an extension)")
        name = self._owned.get(tensor) or f"_constant_{len(self.attributes)}"
        self.attributes[name] = tensor
        self._nodes[tensor] = self.graph.create_node("get_attr", name)
        return self._nodes[tensor]

    def _output(self, value: Any) -> Any:
        """Return the output with nodes for tensors; dataclasses and mappings of a type of their own are made anew."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._output(item) for item in value))
        if isinstance(value, tuple | list):
            return (tuple if isinstance(value, tuple) else list)(self._output(item) for item in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            held = {item.name: self._output(getattr(value, item.name)) for item in dataclasses.fields(value)}
            return self.graph.call_function(type(value), (), held)
        if isinstance(value, Mapping):
            held = {key: self._output(item) for key, item in value.items()}
            return held if type(value) is dict else self.graph.call_function(type(value), (held,))
        return self._argument(value)

    def _inside_functorch(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            while is_functorch_wrapped_tensor(tensor):
                tensor = get_unwrapped(tensor)
            if self._watch.reached(tensor):
                self._refuse("transforms a function of the inputs (vmap, grad), which a graph cannot hold")

    def _dynamic_shape(self, name: str) -> None:
        self._refuse(f"has an output whose shape depends on values ({name})")

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(
            f"{self._name} cannot be traced: {running_line() or 'its forward'} {why}. Write it without, or use "
            "variant=[cuda_graph], which captures without tracing."
        )


def _asks_for_form(func: Any) -> bool:
    return func.__name__ in FORM or func.__name__ == "__get__"


def _readable(func: Any) -> str:
    return func.__self__.__name__ if func.__name__ in ("__get__", "__set__") else func.__name__.strip("_")


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
