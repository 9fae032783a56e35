"""Defines a pass, and applies passes in order."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from profiling.errors import InputError
from profiling.fx_passes.nodes import written_by

Pass = Callable[[fx.GraphModule], fx.GraphModule]


@dataclass(frozen=True, kw_only=True)
class RewritePass:
    """A pass over a graph of `profiling.fx_passes.tracer.trace` that counts what it replaces.

    One of your own defines `replacement`, or `rewrite` where it looks at several places together. Nodes without info,
    which an earlier pass created, are left alone until `nodes.propagate` has run.
    """

    def __call__(self, module: fx.GraphModule) -> fx.GraphModule:
        """Return the rewritten module; changes `module`.

        Its `meta` has the count of replaced places (`replaced`), and the places left by reason (`left`) where the
        pass wrote them into the meta of `module`.
        """
        with torch.no_grad():
            replaced = self.rewrite(module)
        rewritten = pruned(module)
        rewritten.meta.update(replaced=replaced, left=module.meta.pop("left", {}))
        return rewritten

    def rewrite(self, module: fx.GraphModule) -> int:
        """Rewrite the module's graph in place and return the number of places that were replaced."""
        replaced = 0
        for node in list(module.graph.nodes):
            with module.graph.inserting_before(node):
                new = self.replacement(module, node)
            if new is not None:
                node.replace_all_uses_with(new)
                replaced += 1
        return replaced

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Return the node that the users of `node` read in its place, or None. New nodes are inserted before it.

        A pass defines this, or `rewrite` in its place.
        """
        raise TypeError(f"{type(self).__name__} defines neither replacement(module, node) nor rewrite(module)")


def drop_dead_code(graph: fx.Graph) -> None:
    """Erase nodes that nothing uses and that write to no memory."""
    graph.eliminate_dead_code(is_impure_node=lambda node: bool(written_by(node)) or node.is_impure())


def pruned(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module without nodes that nothing uses, and without the tensors that only those used."""
    drop_dead_code(module.graph)
    return fx.GraphModule(module, module.graph, module._get_name())


@dataclass(frozen=True)
class AppliedPass:
    """A pass with the module before and after it.

    `replaced` is the number of places that it counted (None: it does not count), `left` the number of those that it
    knows and left, by reason.
    """

    name: str
    before: fx.GraphModule
    after: fx.GraphModule
    replaced: int | None
    left: Mapping[str, int]


def apply_passes(
    traced: fx.GraphModule, passes: Sequence[Pass], propagate: Callable[[fx.GraphModule], Any]
) -> Iterator[AppliedPass]:
    """Apply each pass to a copy of the graph that the one before it returned; unchanged weights stay shared.

    The nodes of `traced` have info; `propagate` writes that of a module's nodes.

    Raises:
        InputError: a pass returns no GraphModule.

    """
    before = traced
    for each in passes:
        after = each(fx.GraphModule(before, copy.deepcopy(before.graph), before._get_name()))
        if not isinstance(after, fx.GraphModule):
            raise InputError(f"pass {name_of(each)} returned {type(after).__name__}. Return a torch.fx.GraphModule.")
        replaced, left = after.meta.get("replaced"), after.meta.get("left", {})
        propagate(after)
        after = pruned(after)
        yield AppliedPass(name_of(each), before, after, replaced, left)
        before = after


def check_callables(option: str, parts: Any, *, or_of: tuple[type, ...] = ()) -> None:
    """Check that the option holds functions, callable objects, or objects of the classes `or_of`.

    Raises:
        InputError: it is no list, or one of its entries is something else, such as a class.

    """
    if not isinstance(parts, list | tuple):
        raise InputError(f"{option}={parts!r} is no list. Write [] for none.")
    for number, each in enumerate(parts):
        if not isinstance(each, or_of) and (isinstance(each, type) or not callable(each)):
            raise InputError(
                f"{option}.{number}={each!r} is no function and no callable object. Write MyClass(), in a YAML "
                "{_target_: package.module.MyClass}, or a function's path with _partial_: true."
            )


def name_of(each: object) -> str:
    """Return the name of a pass or a transform: that of the function or class."""
    function = each.func if isinstance(each, functools.partial) else each
    return getattr(function, "__name__", type(function).__name__)


def function_of(given: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a config gives with `_partial_: true`: a node calls it by its name."""
    return given.func if isinstance(given, functools.partial) else given
