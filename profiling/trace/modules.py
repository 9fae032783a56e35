"""Time by submodule: opens spans around submodules in a trace, and sums their times over the tree of module paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from profiling.components.trees import tensors_in
from profiling.results.record import ModuleTime
from profiling.trace.events import MODULE, Span


@contextmanager
def module_spans(module: nn.Module, *, borrowed: bool = True) -> Iterator[None]:
    """Open a span `module: path` around each forward of `module` ("") and of its submodules; for eager code only.

    With `borrowed`, a span is also opened around an operator that uses a submodule's weights outside of its forward;
    on the host that costs more than many operators do. Spans are opened by hooks and a dispatch mode, which
    are removed at the end; a compiled module would ignore them or be recompiled. A module that is registered at several
    paths has the first one. Scripted modules have no hooks, so they have no spans.
    """
    handles: list[Any] = []
    spans = _OpenSpans()
    try:
        for path, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):
                handles.append(part.register_forward_pre_hook(partial(spans.open, path)))
                handles.append(part.register_forward_hook(spans.close, always_call=True))
        with _BorrowedWeights(module, spans) if borrowed else nullcontext():
            yield
    finally:
        for handle in handles:
            handle.remove()


class _OpenSpans:
    """The open spans with their modules, outermost first."""

    def __init__(self) -> None:
        self._open: list[tuple[nn.Module, str, Any]] = []

    def open(self, path: str, part: nn.Module, *_: Any) -> None:
        """Open the span of a forward."""
        span: Any = torch.profiler.record_function(f"{MODULE}{path}")
        span.__enter__()
        self._open.append((part, path, span))

    def close(self, part: nn.Module, *_: Any) -> None:
        """Close the span of a forward; none is open where an earlier hook raised."""
        if not any(each is part for each, _, _ in self._open):
            return
        ended = None
        while ended is not part:
            ended, _path, span = self._open.pop()
            span.__exit__(None, None, None)

    def paths(self) -> set[str]:
        """Return the paths of the open spans."""
        return {path for _, path, _ in self._open}


class _BorrowedWeights(TorchDispatchMode):
    """Opens a submodule's span around an operator that uses its weights, or else its buffers, outside of its forward.

    Where these belong to several submodules, the span is that of their common parent.
    """

    supports_higher_order_operators = True

    def __init__(self, module: nn.Module, spans: _OpenSpans) -> None:
        super().__init__()
        self._spans = spans
        self._weights, self._buffers = _owners(module.named_parameters), _owners(module.named_buffers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, inside a span where it uses a submodule's tensors."""
        path = self._owner(args, kwargs or {})
        if path is None:
            return func(*args, **(kwargs or {}))
        with torch.profiler.record_function(f"{MODULE}{path}"):
            return func(*args, **(kwargs or {}))

    def _owner(self, args: Any, kwargs: Any) -> str | None:
        """Return the path of the submodule whose tensors are used; None if there is none, or while its forward runs."""
        addresses = [tensor.data_ptr() for tensor in tensors_in((args, kwargs)) if _has_address(tensor)]
        for owners in (self._weights, self._buffers):
            used = [owners[address] for address in addresses if address in owners]
            if used:
                running = self._spans.paths()
                if any(paths & running for paths in used):
                    return None
                levels = zip(*(min(paths).split(".") for paths in used), strict=False)
                path = ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))
                return path if path and path not in running else None
        return None


def _owners(named: Any) -> dict[int, set[str]]:
    """Return {address of a tensor: paths of the modules that hold it}; several modules may share a tensor."""
    owners: dict[int, set[str]] = {}
    for name, tensor in named(remove_duplicate=False):
        if tensor.numel() and _has_address(tensor):
            owners.setdefault(tensor.data_ptr(), set()).add(name.rpartition(".")[0])
    return owners


def _has_address(tensor: torch.Tensor) -> bool:
    wraps = is_traceable_wrapper_subclass(tensor)  # a quantised weight, for example: its parts have addresses
    return tensor.layout is torch.strided and tensor.device.type != "meta" and not wraps


@dataclass
class _Total:
    ms: float = 0.0
    self_ms: float = 0.0
    count: int = 0


def module_times(
    times: Iterable[tuple[str | None, float]], calls: int, order: Iterable[str]
) -> tuple[tuple[ModuleTime, ...], float]:
    """Return (the time of each module in the order of the tree, the milliseconds per call that belong to no module).

    `times` are pairs of (module, microseconds) over `calls` calls, where module None means unknown. `order` holds the
    module paths in the order in which they ran. The result includes modules that only contain others (a list of
    blocks), and leaves out modules without time.
    """
    totals = {path: _Total() for path in _tree(order)}
    unattributed_ms = whole_ms = 0.0
    for module, microseconds in times:
        ms = microseconds / 1e3 / calls
        whole_ms += ms
        if module is None or module not in totals:
            unattributed_ms += ms
            continue
        totals[module].self_ms += ms
        for path in ("", *_ancestry(module)):
            totals[path].ms += ms
            totals[path].count += 1
    modules = (
        ModuleTime(
            path=path,
            ms=total.ms,
            share=total.ms / whole_ms if whole_ms else 0.0,
            count=total.count / calls,
            self_ms=total.self_ms,
        )
        for path, total in totals.items()
        if total.count
    )
    return tuple(modules), unattributed_ms


def self_times(spans: Iterable[Span]) -> list[tuple[str | None, float]]:
    """Return (module, microseconds) for each span of a submodule, without the time of the spans inside it."""
    times: list[tuple[str | None, float]] = []
    open_spans: list[tuple[Span, int]] = []
    for span in spans:
        while open_spans and open_spans[-1][0].end < span.begin:
            open_spans.pop()
        length = span.end - span.begin
        if open_spans:
            parent = open_spans[-1][1]
            times[parent] = (times[parent][0], times[parent][1] - length)
        open_spans.append((span, len(times)))
        times.append((span.name.removeprefix(MODULE), length))
    return times


def paths_in(spans: Iterable[Span]) -> list[str]:
    """Return the module paths of spans, each once, in the order in which they first ran."""
    return list(dict.fromkeys(span.name.removeprefix(MODULE) for span in spans))


def _ancestry(path: str) -> list[str]:
    """Return the ancestors of the path and itself, the shortest first, without the component ("")."""
    names = path.split(".") if path else []
    return [".".join(names[:depth]) for depth in range(1, len(names) + 1)]


def _tree(order: Iterable[str]) -> list[str]:
    """Return all paths with their ancestors, parents before children, siblings in the order in which they ran."""
    children: dict[str, dict[str, None]] = {"": {}}
    for path in order:
        parent = ""
        for each in _ancestry(path):
            children.setdefault(parent, {})[each] = None
            children.setdefault(each, {})
            parent = each
    return list(_descend("", children))


def _descend(path: str, children: Mapping[str, Iterable[str]]) -> Iterator[str]:
    yield path
    for child in children[path]:
        yield from _descend(child, children)
