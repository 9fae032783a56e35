"""The time of each submodule: its own, and with all below it, along the tree of module paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.components.trees import named_tensors
from profiling.trace.events import MODULE, Stretch


@contextmanager
def module_spans(module: nn.Module, *, borrowed: bool = True) -> Iterator[None]:
    """Open a span `module: path` around every forward of `module` and of what is in it; "" is `module` itself.

    A network that hands a submodule's weights to an operator of its own, and never calls its forward, has the span
    around that operator, where `borrowed` asks for it: on the host that costs more than many an operator. By hooks and
    a dispatch mode, which are taken off at the end. For code that runs eagerly: a compiled module would run without
    them, or be compiled again. A module that stands at several paths has the first; scripted ones take no hooks.
    """
    handles: list[Any] = []
    spans = _Spans()
    try:
        for path, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):
                handles.append(part.register_forward_pre_hook(partial(spans.open, path)))
                handles.append(part.register_forward_hook(spans.close, always_call=True))
        with _Borrowed(module, spans) if borrowed else nullcontext():
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Spans:
    """The spans that are open, each with its module, outermost first."""

    def __init__(self) -> None:
        self._open: list[tuple[nn.Module, str, Any]] = []

    def open(self, path: str, part: nn.Module, *_: Any) -> None:
        """Open the span of a forward that begins."""
        span: Any = torch.profiler.record_function(f"{MODULE}{path}")
        span.__enter__()
        self._open.append((part, path, span))

    def close(self, part: nn.Module, *_: Any) -> None:
        """Close the span of a forward that ended; none is open where a hook before ours raised."""
        if not any(each is part for each, _, _ in self._open):
            return
        ended = None
        while ended is not part:
            ended, _path, span = self._open.pop()
            span.__exit__(None, None, None)

    def paths(self) -> set[str]:
        """Return the paths of the open ones."""
        return {path for _, path, _ in self._open}


class _Borrowed(TorchDispatchMode):
    """Opens the span of the submodule whose weights (else: buffers) an operator takes while its forward is not running.

    Of several such submodules, that of what they have in common.
    """

    def __init__(self, module: nn.Module, spans: _Spans) -> None:
        super().__init__()
        self._spans = spans
        self._weights, self._buffers = _owners(module.named_parameters), _owners(module.named_buffers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator."""
        path = self._lender(args, kwargs or {})
        if path is None:
            return func(*args, **(kwargs or {}))
        with torch.profiler.record_function(f"{MODULE}{path}"):
            return func(*args, **(kwargs or {}))

    def _lender(self, args: Any, kwargs: Any) -> str | None:
        """Return the path of the submodule to name, None where there is none, or where it runs already."""
        given = [tensor.data_ptr() for _, tensor in named_tensors((args, kwargs)) if _has_address(tensor)]
        for owners in (self._weights, self._buffers):
            found = [owners[address] for address in given if address in owners]
            if found:
                running = self._spans.paths()
                if any(paths & running for paths in found):
                    return None
                levels = zip(*(min(paths).split(".") for paths in found), strict=False)
                path = ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))
                return path if path and path not in running else None
        return None


def _owners(named: Any) -> dict[int, set[str]]:
    """Return by address the paths of the modules that hold a tensor there; one may be registered in several."""
    found: dict[int, set[str]] = {}
    for name, tensor in named(remove_duplicate=False):
        if tensor.numel() and _has_address(tensor):
            found.setdefault(tensor.data_ptr(), set()).add(name.rpartition(".")[0])
    return found


def _has_address(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta"


@dataclass
class _Sum:
    ms: float = 0.0
    own_ms: float = 0.0
    pieces: int = 0


def module_rows(
    pieces: Iterable[tuple[str | None, float]], calls: int, order: Iterable[str]
) -> tuple[list[dict[str, Any]], float]:
    """Return a row a module path, in the tree's order, and the milliseconds a call that belong to none for certain.

    `pieces` are (module, microseconds) of `calls` calls, None where the module is not known; `order` are paths in the
    order in which they ran. Of a row, `ms` and `count` (of pieces) are of the module and all below it, `own_ms` of
    itself. Modules that only hold others (a list of blocks) have a row too, those without a piece have none.
    """
    sums = {path: _Sum() for path in _tree(order)}
    unattributed = whole = 0.0
    for module, microseconds in pieces:
        length = microseconds / 1e3 / calls
        whole += length
        if module is None or module not in sums:
            unattributed += length
            continue
        sums[module].own_ms += length
        for path in ("", *_above(module)):
            sums[path].ms += length
            sums[path].pieces += 1
    rows = [
        {
            "path": path,
            "ms": found.ms,
            "share": found.ms / whole if whole else 0.0,
            "count": found.pieces / calls,
            "own_ms": found.own_ms,
        }
        for path, found in sums.items()
        if found.pieces
    ]
    return rows, unattributed


def own_times(spans: Iterable[Stretch]) -> list[tuple[str | None, float]]:
    """Return (module, microseconds of its own) for each span of a submodule, what ran inside it taken off."""
    found: list[tuple[str | None, float]] = []
    open_spans: list[tuple[Stretch, int]] = []
    for span in spans:
        while open_spans and open_spans[-1][0].end < span.begin:
            open_spans.pop()
        length = span.end - span.begin
        if open_spans:
            place = open_spans[-1][1]
            found[place] = (found[place][0], found[place][1] - length)
        open_spans.append((span, len(found)))
        found.append((span.name.removeprefix(MODULE), length))
    return found


def paths_in(spans: Iterable[Stretch]) -> list[str]:
    """Return the module paths of spans, each once, in the order in which they first ran."""
    return list(dict.fromkeys(span.name.removeprefix(MODULE) for span in spans))


def _above(path: str) -> list[str]:
    """Return the path and those above it, without the whole component, the shortest first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _tree(order: Iterable[str]) -> list[str]:
    """Return all paths, and those above them, parents before children and siblings in the order in which they ran."""
    children: dict[str, dict[str, None]] = {"": {}}
    for path in order:
        parent = ""
        for each in _above(path):
            children.setdefault(parent, {})[each] = None
            children.setdefault(each, {})
            parent = each
    found: list[str] = []
    _walk("", children, found)
    return found


def _walk(path: str, children: Mapping[str, Iterable[str]], found: list[str]) -> None:
    found.append(path)
    for child in children[path]:
        _walk(child, children, found)
