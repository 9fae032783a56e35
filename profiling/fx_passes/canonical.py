"""Gives calls that PyTorch can write in many ways one form, so that a pass has one pattern to look for.

`x @ y`, `x.matmul(y)` and `torch.bmm(x, y)` all become `torch.matmul(x, y)`. `view` becomes `reshape`, which does the
same where a view is possible and copies where a pass has changed the layout so that it is not. Calls that write in
place become calls that return a value, where nothing else reads the memory.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.nn import functional as F

from profiling.fx_passes.nodes import families, info_of, node_info, written_by

#: What an fx node is created from: op, target, arguments, keyword arguments.
Call = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
#: A function with its arguments, None where a call is not rewritten.
_Rewritten = tuple[Any, tuple[Any, ...], dict[str, Any]] | None

#: Functions of torch whose method of the same name takes the same arguments.
_METHODS = ("mul", "div", "add", "sub", "sigmoid", "relu", "transpose", "masked_fill", "matmul", "baddbmm", "clone")
_CANONICAL: dict[Any, Any] = {
    getattr(owner, name): getattr(torch, name) for name in _METHODS for owner in (Tensor, torch)
}
_CANONICAL |= {F.sigmoid: torch.sigmoid, Tensor.__getitem__: operator.getitem, Tensor.__setitem__: operator.setitem}


def canonical_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return what to create a node from for a call of `func`, a function or method of torch.

    Tensors in the arguments are nodes already.

    Raises:
        TypeError: a node cannot call `func`.

    """
    if not args and "input" in kwargs and (func in _CANONICAL or func in _REWRITES):  # these have it in the first place
        args, kwargs = (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}
    rewritten = _REWRITES.get(func, lambda *_: None)(args, kwargs)
    if rewritten is not None:
        return ("call_function", *rewritten)
    if func in _CANONICAL:
        return "call_function", _CANONICAL[func], args, kwargs
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return _attribute_call(func.__self__.__name__, args)
    if getattr(Tensor, name, None) is func or getattr(func, "__module__", "") == "torch._tensor":
        return "call_method", name, args, kwargs  # the latter: an operator in a wrapper, `x ** 2`
    if not callable(func):
        raise TypeError(f"{func} is not callable")
    return "call_function", func, args, kwargs


def _attribute_call(name: str, args: tuple[Any, ...]) -> Call:
    if name == "mT":
        return "call_function", torch.transpose, (args[0], -2, -1), {}
    if name == "data":
        return "call_method", "detach", args[:1], {}
    return "call_function", getattr, (args[0], name), {}


def _softmax(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Rewritten:
    named = dict(zip(names, args, strict=False)) | kwargs
    if named.get("dim") is None or "out" in named:
        return None
    return F.softmax, (named["input"],), {"dim": named["dim"], "dtype": named.get("dtype")}


def _functional_relu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Rewritten:
    named = dict(zip(("input", "inplace"), args, strict=False)) | kwargs
    return torch.relu_ if named.get("inplace") else torch.relu, (named["input"],), {}


def _reshape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Rewritten:
    sizes = args[1:] or tuple(kwargs.values())
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    if not all(isinstance(size, int) for size in sizes):
        return None  # view(dtype)
    return torch.reshape, (args[0], tuple(sizes)), {}


def _bmm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Rewritten:
    factors = (*args, *kwargs.values())
    return (torch.matmul, factors, {}) if len(factors) == 2 and kwargs.keys() <= {"mat2"} else None


def _permute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Rewritten:
    dims = args[1:] or tuple(kwargs.values())
    return torch.permute, (args[0], tuple(dims[0]) if isinstance(dims[0], tuple | list) else dims), {}


_REWRITES: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], _Rewritten]] = {
    F.softmax: partial(_softmax, ("input", "dim", "_stacklevel", "dtype")),
    torch.softmax: partial(_softmax, ("input", "dim", "dtype")),
    Tensor.softmax: partial(_softmax, ("input", "dim", "dtype")),
    F.relu: _functional_relu,
    Tensor.view: _reshape,
    Tensor.reshape: _reshape,
    torch.reshape: _reshape,
    Tensor.bmm: _bmm,
    torch.bmm: _bmm,
    Tensor.permute: _permute,
    torch.permute: _permute,
}


def make_out_of_place(graph: fx.Graph) -> int:
    """Rewrite in-place calls whose memory nothing else reads; return their number. Their info is then out of date."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    members: dict[int, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        for family in families(node):
            members[family].append(node)
    rewritten = 0
    for node in graph.nodes:
        written = written_by(node)
        if len(written) != 1 or not _is_private(node, members[next(iter(written))], order):
            continue
        if (call := _out_of_place(node)) is not None and _has_same_form(node, call):
            node.op, node.target, node.args, node.kwargs = call
            rewritten += 1
    return rewritten


def _is_private(node: fx.Node, members: list[fx.Node], order: dict[fx.Node, int]) -> bool:
    """Return whether after `node` the memory that it writes to is read through its own result only."""
    earlier = [member for member in members if order[member] < order[node]]
    return all(
        member.op not in ("placeholder", "get_attr") and all(order[user] <= order[node] for user in member.users)
        for member in earlier
    )


def _out_of_place(node: fx.Node) -> Call | None:
    """Return the out-of-place call of the same name, if torch has one."""
    target: Any = node.target
    if node.meta["random"]:  # the functions without the underscore do something else
        return None
    name = str(getattr(target, "__name__", target))
    if node.kwargs.get("inplace") and getattr(F, name, None) is target:
        return canonical_call(target, node.args, {**node.kwargs, "inplace": False})
    is_of_torch = node.op == "call_method" or getattr(torch, name, None) is target
    if not is_of_torch or not name.endswith("_") or name.endswith("__"):
        return None
    function = getattr(Tensor, name[:-1], None) or getattr(torch, name[:-1], None)
    return None if function is None else canonical_call(function, node.args, node.kwargs)


def _has_same_form(node: fx.Node, call: Call) -> bool:
    """Return whether the result of `call` has the form of the node's: `h.gt_(0)` keeps the dtype, `h > 0` does not."""
    op, target, args, kwargs = call
    info = node_info(node)
    try:
        args, kwargs = map_arg((args, kwargs), lambda argument: argument.meta["info"].zeros("meta"))
        result = target(*args, **kwargs) if op == "call_function" else getattr(args[0], target)(*args[1:], **kwargs)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False  # it takes other arguments, or cannot tell its form
    if info is None or not isinstance(result, Tensor):
        return False
    return replace(info, device=result.device) == info_of(result, info.family)
