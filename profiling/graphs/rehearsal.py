"""Finds on a CPU what would prevent the capture of a CUDA graph on a GPU, without a GPU.

A call on a CPU is watched as `profiling.graphs.capture.Audit` watches one on a GPU. Its inputs and weights, and what
is computed from them, count as tensors on the device. What the call itself makes without naming a device counts as a
tensor on the host: it would be one on a GPU, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from profiling.components.trees import tensors_in
from profiling.components.user_code import running_line
from profiling.graphs.capture import Audit, Fault, Finding

#: Functions that make a tensor on the CPU unless they are given a device.
_FACTORIES = frozenset(
    {
        *(torch.tensor, torch.as_tensor, torch.from_numpy, torch.scalar_tensor, torch.zeros, torch.ones, torch.full),
        *(torch.empty, torch.arange, torch.linspace, torch.logspace, torch.eye, torch.rand, torch.randn),
        *(torch.randint, torch.randperm, torch.tril_indices, torch.triu_indices),
    }
)
#: Methods that give the host the values of a tensor; on a CPU some of them call no operator.
_READS = frozenset({Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__array__})


class Rehearsal(Audit):
    """The findings of a call on a CPU, each with the line that causes it; see `rehearsing`."""

    def __init__(self) -> None:
        super().__init__(stream=None)
        self._host: Any = WeakIdKeyDictionary()  # tensor on the host → (what made it, the line that called that)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        given = tensors_in((list(args), kwargs or {}))
        host = [tensor for tensor in given if tensor in self._host]
        if host and len(host) == len(given):
            for tensor in tensors_in(result):
                self._host[tensor] = self._host[host[0]]
        for tensor in host if len(host) < len(given) else ():
            if tensor.ndim:  # a scalar of the host is an argument of the kernel
                self.moved(tensor)
        return result

    def made(self, name: str, result: Any) -> None:
        """Note that the function `name` made a tensor on the host."""
        for tensor in tensors_in(result):
            self._host[tensor] = (name, running_line())

    def moved(self, tensor: Tensor) -> None:
        """Note that a tensor of the host has to be copied to the device; from now on it is there."""
        operator, line = self._host.pop(tensor)
        self.findings.append(Finding(operator, "host tensor", line))

    def note(self, operator: str, fault: Fault) -> None:
        """Note a fault on the line that is running."""
        self.findings.append(Finding(operator, fault, running_line()))

    def is_on_host(self, tensor: Tensor) -> bool:
        """Return whether the call made the tensor, or all that it was computed from, on the host."""
        return tensor in self._host

    def _is_on_device(self, tensor: Tensor) -> bool:
        return tensor not in self._host


class _Functions(TorchFunctionMode):
    """Watches the functions of torch whose meaning depends on the device, and that no operator shows on a CPU."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        super().__init__()
        self._rehearsal = rehearsal

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        subject = args[0] if args and isinstance(args[0], Tensor) else None
        if func in _READS and subject is not None and not self._rehearsal.is_on_host(subject):
            self._rehearsal.note(f"Tensor.{func.__name__}", "sync")
        if func is Tensor.to and subject is not None:
            self._move(subject, args[1:], kwargs)
        result = func(*args, **kwargs)
        if func in _FACTORIES and subject is None and kwargs.get("device") in (None, "cpu"):
            self._rehearsal.made(f"torch.{func.__name__}", result)
        return result

    def _move(self, tensor: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Note a copy to another device, which does nothing on a CPU."""
        target = kwargs.get("device", args[0] if args else None)
        on_host = self._rehearsal.is_on_host(tensor)
        if target == "cpu" and not on_host:
            self._rehearsal.note("Tensor.to", "sync")
        like_host = isinstance(target, Tensor) and self._rehearsal.is_on_host(target)
        if isinstance(target, torch.device | Tensor) and on_host and not like_host:
            self._rehearsal.moved(tensor)


@contextmanager
def rehearsing() -> Iterator[Rehearsal]:
    """Watch the calls on a CPU inside the block; the Rehearsal that it is given has the findings."""
    rehearsal = Rehearsal()
    with _Functions(rehearsal), rehearsal:
        yield rehearsal
