"""Traces a module with example inputs to a torch.fx graph of the functions it calls, without dynamo.

`torch.fx.symbolic_trace` fails where Python reads a shape, and libraries often take another path when they meet one of
its proxies. A CUDA graph has one shape anyway, so this tracer calls `forward` on real tensors and records each function
of torch. Shapes, dtypes and devices are those of eager mode. Values that come from the inputs may not be read: Python
code that reads one is refused with its line, so that no value of the example gets into the graph.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.fx.node import base_types
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import is_structseq_instance
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.trees import dotted, keyed_tensors, map_tensors, tensors_in
from profiling.components.user_code import running_line
from profiling.errors import InputError
from profiling.fx_passes.canonical import canonical_call, make_out_of_place
from profiling.fx_passes.nodes import DependencyTracker, propagate
from profiling.fx_passes.passes import pruned

#: Functions that read a tensor's form and not its values: allowed also for tensors that depend on the inputs.
_FORM = frozenset(
    {"size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "storage_offset", "type", "get_device"}
    | {"is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "is_same_size", "is_conj"}
    | {"is_neg", "has_names", "result_type", "can_cast", "__len__", "__hash__"}
    | {"__get__"}  # attributes: shape, dtype, device
)


def trace(module: nn.Module, inputs: Mapping[str, Any]) -> fx.GraphModule:
    """Return the module's forward for tensors like those in `inputs` (by argument name) as a graph with info on nodes.

    The result is called with `placeholders(inputs)` and shares the module's parameters and buffers. Shapes, plain
    values among the inputs, and everything that Python decides, are those of this call. The module runs once, on
    copies of the inputs.

    Raises:
        InputError: forward reads the values of a tensor, or does something that a graph cannot express; the message
            names file and line.

    """
    recorder = _Recorder(module, inputs)
    traced = fx.GraphModule(recorder.attributes, recorder.record(module), type(module).__name__)
    propagate(traced, placeholders(inputs))
    if make_out_of_place(traced.graph):
        propagate(traced, placeholders(inputs))
    return pruned(traced)


def placeholders(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors in `inputs` by the names of a traced module's arguments: `x`, or `cache__0__key` if nested."""
    return {re.sub(r"\W", "__", dotted(keys)): tensor for keys, tensor in keyed_tensors(inputs)}


class _Recorder(TorchFunctionMode):
    """Creates a node for each function of torch that is called under it."""

    def __init__(self, module: nn.Module, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self._inputs = map_tensors(torch.clone, dict(inputs))
        self._tracker = DependencyTracker(tensors_in(self._inputs), self._refuse_dynamic_shape)
        self._name = type(module).__name__
        self._paths: Any = WeakIdKeyDictionary()
        for path, tensor in chain(module.named_buffers(), module.named_parameters()):
            self._paths[tensor] = path
        self._nodes: Any = WeakIdKeyDictionary()
        for name, tensor in placeholders(self._inputs).items():
            self._nodes[tensor] = self.graph.placeholder(name)
        self._verb = "passes"  # what the values do that are expressed
        self._autocast = _autocast_state()
        self._constants: set[int] = set()  # ids of the arguments that did not depend on the inputs before the call

    def record(self, module: nn.Module) -> fx.Graph:
        """Call the module and return the graph of the call."""
        with torch.no_grad(), self._tracker, self:
            output = module(**self._inputs)
        self._verb = "returns"
        self.graph.output(self._expressed(output))
        return self.graph

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._tracker.written.clear()
        tensors = tensors_in((args, kwargs))
        self._constants = {id(tensor) for tensor in tensors if not self._tracker.depends(tensor)}
        result = func(*args, **kwargs)
        if any(is_functorch_wrapped_tensor(tensor) for tensor in tensors):
            self._check_functorch(tensors)  # of constants alone the result is a constant outside of the transform
        elif tensors_in(result) or (result is None and self._tracker.written):
            if _autocast_state() != self._autocast:
                self._refuse("runs under an autocast of its own, which the graph would not have")
            op, target, node_args, node_kwargs = canonical_call(func, self._expressed(args), self._expressed(kwargs))
            self._assign_nodes(self.graph.create_node(op, target, node_args, node_kwargs), result)
        elif result is not NotImplemented and self._tracker.depends(tensors) and func.__name__ not in _FORM:
            self._refuse(f"needs the values of a tensor that depends on the inputs ({_readable_name(func)})")
        return result

    def _assign_nodes(self, node: fx.Node, result: Any) -> None:
        """Store the node of each tensor in a call's result."""
        if isinstance(result, Tensor):
            self._nodes[result] = node
        elif isinstance(result, tuple | list):
            for index, item in enumerate(result):
                if tensors_in(item):
                    self._assign_nodes(self.graph.call_function(operator.getitem, (node, index)), item)

    def _expressed(self, value: Any) -> Any:
        """Return `value` with nodes for tensors; dataclasses and mappings of other types are constructed anew."""
        if isinstance(value, Tensor):
            return self._nodes.get(value) or self._constant(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._expressed, value))
        if is_structseq_instance(value):  # torch.return_types.max, for example
            return self.graph.call_function(type(value), (tuple(map(self._expressed, value)),))
        if isinstance(value, tuple | list):
            return (tuple if isinstance(value, tuple) else list)(map(self._expressed, value))
        if isinstance(value, slice):
            return slice(*(self._slice_end(item) for item in (value.start, value.stop, value.step)))
        if value is None or value is Ellipsis or isinstance(value, base_types):
            return value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: self._expressed(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return self.graph.call_function(type(value), (), fields)
        if isinstance(value, Mapping):
            items = {key: self._expressed(item) for key, item in value.items()}
            return items if type(value) is dict else self.graph.call_function(type(value), (items,))
        self._refuse(f"{self._verb} a {type(value).__name__}, which a graph cannot express")

    def _slice_end(self, value: Any) -> Any:
        """Return a number of a slice, which decides a shape and so must not depend on the inputs."""
        if self._tracker.depends(value):
            self._refuse("needs the values of a tensor that depends on the inputs (as the end of a slice)")
        return int(value) if isinstance(value, Tensor) else value

    def _constant(self, tensor: Tensor) -> fx.Node:
        """Return the node of a parameter, a buffer, or a tensor that existed before the call."""
        if self._tracker.depends(tensor) and id(tensor) not in self._constants:
            self._refuse("uses a tensor computed from the inputs by code that the tracer cannot see (an extension)")
        name = self._paths.get(tensor) or f"_constant_{len(self.attributes)}"
        self.attributes[name] = tensor
        self._nodes[tensor] = self.graph.create_node("get_attr", name)
        return self._nodes[tensor]

    def _check_functorch(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            while is_functorch_wrapped_tensor(tensor):
                tensor = get_unwrapped(tensor)
            if self._tracker.depends(tensor):
                self._refuse("transforms a function of the inputs (vmap, grad), which a graph cannot express")

    def _refuse_dynamic_shape(self, operator_name: str) -> None:
        self._refuse(f"has an output whose shape depends on values ({operator_name})", "")

    def _refuse(
        self, reason: str, instead: str = ", or use variant=[cuda_graph], which captures without tracing"
    ) -> NoReturn:
        where = running_line() if self._verb == "passes" else None
        reason = f"{where or 'its forward'} {reason}"
        raise InputError(f"{self._name} cannot be traced: {reason}. Write it without{instead}.")


def _readable_name(func: Any) -> str:
    return func.__self__.__name__ if func.__name__ in ("__get__", "__set__") else func.__name__.strip("_")


def _autocast_state() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
