"""The transform that traces a module with torch.fx and rewrites the graph by passes, without dynamo."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import msgspec
from torch import Tensor, fx, nn
from torch._library.triton import set_wrap_triton_enabled
from torch._subclasses.fake_tensor import FakeTensorMode

from profiling.components.component import Component
from profiling.components.trees import keyed_tensors
from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.passes import AppliedPass, Pass, apply_passes, check_callables
from profiling.fx_passes.tracer import placeholders, trace
from profiling.graphs import CaptureError
from profiling.results.explanations import BeforeAfter, FxPass
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.gains import replay_ms
from profiling.variants.recipe import Outcome, Transform


@dataclass(frozen=True, kw_only=True)
class Rewrite(Transform):
    """Trace the module with torch.fx for the shapes of its inputs, and apply `passes` in their order.

    A pass is any callable `GraphModule → GraphModule`: a class of `profiling.fx_passes`, or a user's own. Unchanged
    weights stay shared with the module.

    Raises:
        InputError: a pass that cannot be called.

    """

    runs_no_python: ClassVar[bool] = True
    passes: Sequence[Pass] = ()

    def __post_init__(self) -> None:
        check_callables("passes", self.passes)

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Return a module with a rewritten graph for each shape of the inputs, and the number of places replaced.

        The number is None if nothing was replaced and a pass does not count, or there is no pass.

        Raises:
            InputError: the module cannot be traced (names file and line), or a pass returns no module.

        """
        graphs, counts, notes = [], list[int | None](), list[str]()
        for inputs in (*component.extra_inputs, component.inputs):
            graph, applied = self._applied(module, component, inputs)
            for each in applied:
                graph = each.after
                counts.append(each.replaced)
                notes += [f"{each.name} left {count} in place ({reason})" for reason, count in each.left.items()]
            graphs.append((inputs, graph))
        changed: int | None = sum(each or 0 for each in counts)
        if not changed and (not counts or None in counts):
            changed = None
        return Outcome(
            Rewritten(graphs),
            changed,
            notes=tuple(notes or [f"no graph pass matches anything in {type(module).__name__}"][: changed == 0]),
            explain=lambda: {"passes": self.explained(module, component)},
        )

    def explained(self, module: nn.Module, component: Component) -> tuple[FxPass, ...]:
        """Return for each pass its number of replacements, the error of its output, and its gain on the device.

        The passes run again for this, so that intermediate modules hold no memory while metrics measure.
        """
        return tuple(_section(component, each) for each in self._applied(module, component, component.inputs)[1])

    def _applied(
        self, module: nn.Module, component: Component, inputs: Mapping[str, Any]
    ) -> tuple[fx.GraphModule, Iterator[AppliedPass]]:
        """Return the traced module, and each pass as it is applied."""
        traced, tensors = _unchanged(component, trace, module, inputs), placeholders(inputs)

        def run(graph: fx.GraphModule) -> Any:
            if graph is not traced:
                compile_kernels(graph, tensors)
            return _unchanged(component, propagate, graph, tensors)

        return traced, apply_passes(traced, self.passes, run)


def compile_kernels(graph: fx.GraphModule, inputs: Mapping[str, Tensor]) -> None:
    """Compile the Triton kernels that a call of `graph` launches, side by side: a call compiles one after the other.

    The graph is called on fake tensors, where a launch only compiles. What that cannot reach (an operator without a
    fake form, a kernel that is tuned or does not compile, a Triton without this mode) is left to the first real call,
    as all would be without this.
    """
    if not any(each.is_cuda for each in inputs.values()):
        return
    try:
        from triton.runtime._async_compile import AsyncCompileMode  # pyright: ignore[reportMissingImports]
        from triton.runtime.autotuner import Autotuner  # pyright: ignore[reportMissingImports]
        from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingImports]
    except ImportError:
        return

    launch = JITFunction.run

    def compiled(kernel: Any, *given: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if warmup:
            return launch(kernel, *given, grid=grid, warmup=True, **options)
        # A dtype stands for a tensor that is aligned as those of torch's allocator are.
        forms = (each.dtype if isinstance(each, Tensor) else each for each in given)
        return kernel.warmup(*forms, grid=grid, **options)

    with (
        suppress(Exception),
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
        AsyncCompileMode(threads, ignore_errors=True),
        set_wrap_triton_enabled(False),
        patch.object(JITFunction, "run", compiled),
        patch.object(Autotuner, "run", lambda *_, **__: None),
        FakeTensorMode(allow_non_fake_inputs=True) as fake,
    ):
        given = (fake.from_tensor(inputs[node.target]) for node in graph.graph.find_nodes(op="placeholder"))
        fx.Interpreter(graph).run(*given)


class Rewritten(nn.Module):
    """Traced graphs of a module, called with its arguments: the one that was traced for inputs of their shapes."""

    def __init__(self, graphs: Sequence[tuple[Mapping[str, Any], fx.GraphModule]]) -> None:
        super().__init__()
        self.traced = nn.ModuleList(graph for _, graph in graphs)
        inputs = graphs[-1][0]
        # Looked up by key, which a compiler can trace.
        self._keys = dict(zip(placeholders(inputs), (keys for keys, _ in keyed_tensors(inputs)), strict=True))
        self._shapes = [[tuple(tensor.shape) for tensor in placeholders(inputs).values()] for inputs, _ in graphs]

    def forward(self, /, **inputs: Any) -> Any:
        """Call the graph that was traced for these shapes; values that are no tensors are those of the trace."""
        tensors: dict[str, Any] = dict.fromkeys(self._keys, inputs)
        for name, keys in self._keys.items():
            for key in keys:
                tensors[name] = key.get(tensors[name])
        several = len(self._shapes) > 1
        graph = self._shapes.index([tensor.shape for tensor in tensors.values()]) if several else 0
        return self.traced[graph](**tensors)


def _section(component: Component, applied: AppliedPass) -> FxPass:
    rel_l2 = applied.rel_l2 if math.isfinite(applied.rel_l2) else None
    section = FxPass(name=applied.name, replaced=applied.replaced, rel_l2=rel_l2)
    if applied.replaced == 0:
        return section
    inputs = placeholders(component.inputs)
    if (reason := CudaGraph().unavailable(component.device)) is not None:
        return msgspec.structs.replace(section, unmeasured=reason)
    try:
        before, after = replay_ms(applied.before, applied.after, inputs, component.keep_state)
    except CaptureError as error:  # before a pass the module may not be capturable, and then has no time
        return msgspec.structs.replace(section, unmeasured=str(error).splitlines()[0])
    return msgspec.structs.replace(section, replay_ms=BeforeAfter(before=before, after=after))


def _unchanged(component: Component, run: Callable[[Any, Any], Any], module: nn.Module, inputs: Any) -> Any:
    """Return `run(module, inputs)`; the component's state is then as before."""
    restore = component.keep_state()
    try:
        return run(module, inputs)
    finally:
        restore()
