"""What the ready passes share: they rewrite a graph, count what they replaced, and leave nothing unused behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import fx

from profiling.transforms.facts import mutates


@dataclass(frozen=True, kw_only=True)
class Transform(ABC):
    """A pass over a graph that `profiling.transforms.tracer.trace` made.

    Nodes without facts, which an earlier pass made, are left alone until `facts.propagate` has seen them.
    """

    def __call__(self, module: fx.GraphModule) -> fx.GraphModule:
        """Return the rewritten module, `meta["replaced"]` the number of places; `module`'s graph changes with it."""
        with torch.no_grad():
            replaced = self.rewrite(module)
        rewritten = pruned(module)
        rewritten.meta["replaced"] = replaced
        return rewritten

    @abstractmethod
    def rewrite(self, module: fx.GraphModule) -> int:
        """Rewrite the module's graph in place and return how many places were replaced."""


def pruned(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module without nodes that nothing uses and without the tensors that only those used."""
    module.graph.eliminate_dead_code(is_impure_node=lambda node: bool(mutates(node)) or node.is_impure())
    return fx.GraphModule(module, module.graph, module._get_name())
