"""A span around each submodule's forward while a pass runs, and around operators that borrow its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.core.trees import named_tensors
from profiling.inside.timeline import MODULE


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
