"""Time by submodule: opens spans around submodules in a trace, and sums their times over the tree of module paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import accumulate, takewhile
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from profiling.components.trees import tensors_in
from profiling.results.explanations import ModuleTime
from profiling.trace.events import MODULE, Span


@contextmanager
def module_spans(module: nn.Module, *, borrowed: bool = True) -> Iterator[None]:
    """Open a span `module: path` around each forward of `module` ("") and of its submodules; for eager code only.

    With `borrowed`, a span is also opened around an operator that uses a submodule's weights outside of its forward;
    on the host that costs more than many operators do. Spans are opened by hooks for all modules and a dispatch mode,
    which are removed at the end; a compiled module would ignore them or be recompiled. A module that is registered at
    several paths has the first one.
    """
    paths = {part: path for path, part in module.named_modules()}
    running: list[tuple[nn.Module, Any]] = []  # open spans, outermost first

    def open_span(part: nn.Module, *_: Any) -> None:
        if part in paths:
            running.append((part, torch.profiler.record_function(f"{MODULE}{paths[part]}").__enter__()))

    def close_span(part: nn.Module, *_: Any) -> None:
        if running and running[-1][0] is part:
            running.pop()[1].__exit__(None, None, None)

    with ExitStack() as stack:
        stack.callback(register_module_forward_pre_hook(open_span).remove)
        stack.callback(register_module_forward_hook(close_span, always_call=True).remove)
        if borrowed:
            held = _owners(module.named_parameters), _owners(module.named_buffers)
            stack.enter_context(OperatorSpans(lambda given: _lender(given, held, {paths[part] for part, _ in running})))
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
    own: dict[str | None, float] = defaultdict(float)
    inside: dict[str, list[float]] = defaultdict(list)
    for module, microseconds in times:
        path, ms = module if module in places else None, microseconds / 1e3 / calls
        own[path] += ms
        for each in () if path is None else _ancestry(path):
            inside[each].append(ms)
    whole_ms = sum(own.values())
    tree = sorted(inside.items(), key=lambda item: [places[each] for each in _ancestry(item[0])])
    modules = []
    for path, spent in tree:
        ms, count = sum(spent), len(spent) / calls
        share = ms / whole_ms if whole_ms else 0.0
        modules.append(ModuleTime(path=path, ms=ms, share=share, count=count, self_ms=own.get(path, 0.0)))
    return tuple(modules), own.get(None, 0.0)


def paths_in(spans: Iterable[Span]) -> list[str]:
    """Return the module paths of spans, each once, in the order in which they first ran."""
    return list(dict.fromkeys(span.name.removeprefix(MODULE) for span in spans))


def _ancestry(path: str) -> list[str]:
    """Return the component (""), the ancestors of the path and itself, the shortest first."""
    return ["", *accumulate(path.split("."), "{}.{}".format)] if path else [""]
