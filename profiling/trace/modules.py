"""Time by submodule: opens spans around submodules in a trace, and sums their times over the tree of module paths."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import accumulate, takewhile
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
    running: list[tuple[nn.Module, str, Any]] = []  # open spans, outermost first

    def open_span(path: str, part: nn.Module, *_: Any) -> None:
        running.append((part, path, torch.profiler.record_function(f"{MODULE}{path}").__enter__()))

    def close_span(part: nn.Module, *_: Any) -> None:
        ended = None if any(each is part for each, _, _ in running) else part  # none is open where a hook raised
        while ended is not part:
            ended, _path, span = running.pop()
            span.__exit__(None, None, None)

    with ExitStack() as stack:
        for path, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):
                stack.callback(part.register_forward_pre_hook(partial(open_span, path)).remove)
                stack.callback(part.register_forward_hook(close_span, always_call=True).remove)
        if borrowed:
            held = _owners(module.named_parameters), _owners(module.named_buffers)
            stack.enter_context(OperatorSpans(lambda given: _lender(given, held, {path for _, path, _ in running})))
        yield


class OperatorSpans(TorchDispatchMode):
    """Opens a span around each operator for whose arguments `name_of` returns the span's name."""

    supports_higher_order_operators = True

    def __init__(self, name_of: Callable[[Any], str | None]) -> None:
        super().__init__()
        self._name_of = name_of

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run; under other modes torch would call the eager code in its place."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, inside its span."""
        name = self._name_of((args, kwargs))
        with nullcontext() if name is None else torch.profiler.record_function(name):
            return func(*args, **(kwargs or {}))


def _lender(given: Any, held: Sequence[Mapping[int, set[str]]], running: Collection[str]) -> str | None:
    """Return the span's name of the submodule whose weights, or else buffers, an operator is given; None without one.

    None, too, while a submodule that holds them is running. Where they belong to several submodules, their parent has
    lent them. `held` are {address: paths of the submodules that hold it}.
    """
    addresses = [tensor.data_ptr() for tensor in tensors_in(given) if _has_address(tensor)]
    used = next(filter(None, ([owners[each] for each in addresses if each in owners] for owners in held)), [])
    if not used or any(paths & {*running} for paths in used):
        return None
    levels = zip(*(min(paths).split(".") for paths in used), strict=False)
    path = ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))
    return f"{MODULE}{path}" if path and path not in running else None


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


def module_times(
    times: Iterable[tuple[str | None, float]], calls: int, order: Iterable[str]
) -> tuple[tuple[ModuleTime, ...], float]:
    """Return (the time of each module in the order of the tree, the milliseconds per call that belong to no module).

    `times` are pairs of (module, microseconds) over `calls` calls, where module None means unknown. `order` holds the
    module paths in the order in which they ran. The result includes modules that only contain others (a list of
    blocks), and leaves out modules without time.
    """
    places: dict[str, int] = {}
    for path in ("", *order):
        for each in _ancestry(path):
            places.setdefault(each, len(places))
    own: dict[str | None, list[float]] = {}
    for module, microseconds in times:
        own.setdefault(module if module in places else None, []).append(microseconds / 1e3 / calls)
    unattributed_ms, whole_ms = sum(own.pop(None, ())), sum(map(sum, own.values()))
    whole_ms += unattributed_ms
    modules = []
    for path in sorted(places, key=lambda path: [places[each] for each in _ancestry(path)]):
        inside = [
            ms for module, spent in own.items() if module is not None and path in _ancestry(module) for ms in spent
        ]
        if inside:
            ms, self_ms = sum(inside), sum(own.get(path, ()))
            share = ms / whole_ms if whole_ms else 0.0
            modules.append(ModuleTime(path=path, ms=ms, share=share, count=len(inside) / calls, self_ms=self_ms))
    return tuple(modules), unattributed_ms


def paths_in(spans: Iterable[Span]) -> list[str]:
    """Return the module paths of spans, each once, in the order in which they first ran."""
    return list(dict.fromkeys(span.name.removeprefix(MODULE) for span in spans))


def _ancestry(path: str) -> list[str]:
    """Return the component (""), the ancestors of the path and itself, the shortest first."""
    return ["", *accumulate(path.split("."), "{}.{}".format)] if path else [""]
