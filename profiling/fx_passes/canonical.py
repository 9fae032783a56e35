"""One spelling for what PyTorch spells in many ways, so that a pass has one pattern to look for.

`x @ y`, `x.matmul(y)` and `torch.bmm(x, y)` all become `torch.matmul(x, y)`. `view` becomes `reshape`, which does the
same where a view is possible and copies where a pass has changed the layout so that it is not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

Call = tuple[str, Any, tuple[Any, ...], dict[str, Any]]  # what an fx node is made of

#: Methods and functions whose arguments are those of the torch function they are written as.
SAME = {
    torch.mul: ("mul", "multiply"),
    torch.div: ("div", "divide", "true_divide"),
    torch.add: ("add",),
    torch.sub: ("sub", "subtract"),
    torch.sigmoid: ("sigmoid",),
    torch.relu: ("relu",),
    torch.transpose: ("transpose", "swapaxes", "swapdims"),
    torch.masked_fill: ("masked_fill",),
    torch.matmul: ("matmul", "bmm"),
    torch.baddbmm: ("baddbmm",),
    torch.clone: ("clone",),
}
SPELLED: dict[Any, Any] = {
    getattr(owner, name): target for target, names in SAME.items() for name in names for owner in (Tensor, torch)
}
SPELLED |= {F.sigmoid: torch.sigmoid, Tensor.__getitem__: operator.getitem, Tensor.__setitem__: operator.setitem}


def spelled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return the node for a call of `func`, a function or method of torch; tensors in the arguments are nodes already.

    Raises:
        TypeError: `func` is nothing that a node can call.

    """
    if not args and "input" in kwargs:  # by name: passes look for it in the first place
        args, kwargs = (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}
    rewritten = _RESPELL.get(func, lambda *_: None)(args, kwargs)
    if rewritten is not None:
        return ("call_function", *rewritten)
    if func in SPELLED:
        return "call_function", SPELLED[func], args, {_RENAMED.get(name, name): value for name, value in kwargs.items()}
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return _attribute(func.__self__.__name__, args)
    if getattr(Tensor, name, None) is func or getattr(func, "__module__", "") == "torch._tensor":
        return "call_method", name, args, kwargs  # the latter: an operator in a wrapper, `x ** 2`
    if not callable(func):
        raise TypeError(f"{func} is no function")
    return "call_function", func, args, kwargs


def _attribute(name: str, args: tuple[Any, ...]) -> Call:
    if name == "mT":
        return "call_function", torch.transpose, (args[0], -2, -1), {}
    if name == "data":
        return "call_method", "detach", args[:1], {}
    return "call_function", getattr, (args[0], name), {}


#: Keywords of what is spelled otherwise, as the chosen spelling calls them.
_RENAMED = {"mat2": "other", "axis0": "dim0", "axis1": "dim1"}
Respelled = tuple[Any, tuple[Any, ...], dict[str, Any]] | None


def _softmax(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Respelled:
    named = dict(zip(("input", "dim", "dtype"), args, strict=False)) | kwargs
    return F.softmax, (named["input"],), {"dim": named["dim"], "dtype": named.get("dtype")}


def _functional_softmax(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Respelled:
    named = dict(zip(("input", "dim", "_stacklevel", "dtype"), args, strict=False)) | kwargs
    if named.get("dim") is None:
        return None
    return F.softmax, (named["input"],), {"dim": named["dim"], "dtype": named.get("dtype")}


def _reshape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Respelled:
    sizes = args[1:] or tuple(kwargs.values())
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    if not all(isinstance(size, int) for size in sizes):
        return None  # view(dtype)
    return torch.reshape, (args[0], tuple(sizes)), {}


def _permute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Respelled:
    dims = args[1:] or tuple(kwargs.values())
    return torch.permute, (args[0], tuple(dims[0]) if isinstance(dims[0], tuple | list) else dims), {}


def _functional_relu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Respelled:
    named = dict(zip(("input", "inplace"), args, strict=False)) | kwargs
    return torch.relu_ if named.get("inplace") else torch.relu, (named["input"],), {}


_RESPELL: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Respelled]] = {
    F.softmax: _functional_softmax,
    torch.softmax: _softmax,
    Tensor.softmax: _softmax,
    F.relu: _functional_relu,
    Tensor.view: _reshape,
    Tensor.reshape: _reshape,
    torch.reshape: _reshape,
    Tensor.permute: _permute,
    torch.permute: _permute,
}


def arguments(node: fx.Node, *names: str) -> dict[str, Any]:
    """Return the node's arguments by `names`, the first of the function's in their order; None where not given."""
    return dict.fromkeys(names) | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def positional(node: fx.Node) -> tuple[Any, ...]:
    """Return the node's positional arguments."""
    return node.args


def is_call(node: Any, *targets: Any) -> bool:
    """Say whether `node` calls one of `targets`: functions, or methods by their name."""
    return isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets
