"""A list of passes, applied one after the other, each looked at on its own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from profiling.core.distance import relative_l2
from profiling.errors import InputError
from profiling.transforms.transform import pruned

Pass = Callable[[fx.GraphModule], fx.GraphModule]
#: Runs a module on the component's inputs, writes its facts and returns its output.
Propagate = Callable[[fx.GraphModule], Any]


@dataclass(frozen=True)
class Stage:
    """What one pass did. `replaced` is what it counted (None: it does not count), `rel_l2` how far the output moved."""

    name: str
    before: fx.GraphModule
    after: fx.GraphModule
    replaced: int | None
    rel_l2: float


def stages(traced: fx.GraphModule, passes: Sequence[Pass], propagate: Propagate) -> Iterator[Stage]:
    """Apply each pass to a copy of what the one before it left; weights that stay are shared.

    Raises:
        InputError: a pass returns no GraphModule.

    """
    before, output = traced, propagate(traced)
    for each in passes:
        after = each(fx.GraphModule(before, copy.deepcopy(before.graph), before._get_name()))
        if not isinstance(after, fx.GraphModule):
            raise InputError(f"pass {pass_name(each)} returned {type(after).__name__}. Return a torch.fx.GraphModule.")
        replaced = after.meta.get("replaced")
        new_output = propagate(after)
        after = pruned(after)
        yield Stage(pass_name(each), before, after, replaced, relative_l2(new_output, output))
        before, output = after, new_output


def pass_name(each: Pass) -> str:
    """Return the name of a pass: a function's or a class's."""
    function = each.func if isinstance(each, functools.partial) else each
    return getattr(function, "__name__", type(function).__name__)
