"""Look at a call's operators one by one for what a capture cannot hold, before it is tried.

CUDA says only that something was not permitted, and for one fault nothing at all: a copy from pageable host memory that
does not wait is recorded with the address it read from, and replays read whatever stands there by then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.components.trees import named_tensors, written_tensors
from profiling.components.user_code import SourceLine, running_line

Kind = Literal["sync", "pageable copy", "data-dependent shape", "other stream"]

_COPIES = ("aten::_to_copy", "aten::copy_", "aten::copy", "aten::_copy_from")


@dataclass(frozen=True)
class Finding:
    """An operator that stands in the way, and the line that calls it."""

    operator: str  # aten::nonzero
    kind: Kind
    place: SourceLine | None  # None where it runs in a thread without Python, as backward does
    silent: bool = False  # a capture would record it without an error, and replay it wrong


class Audit(TorchDispatchMode):
    """Watches the operators of a call: `findings`, and the storages that it `wrote` to."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.findings: list[Finding] = []
        self.wrote: set[int] = set()
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note what it did."""
        kwargs = kwargs or {}
        self.wrote |= {tensor.untyped_storage().data_ptr() for tensor in written_tensors(func, args, kwargs)}
        result = func(*args, **kwargs)
        kind = self._kind(func, args, kwargs, result)
        if kind is not None:
            silent = kind == "pageable copy" and _waits_not(func, args, kwargs)
            self.findings.append(Finding(func.name().partition(".")[0], kind, running_line(), silent))
        return result

    def _kind(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Kind | None:
        given = [tensor for _, tensor in named_tensors((list(args), kwargs))]
        if not any(t.is_cuda for t in given) and not any(t.is_cuda for _, t in named_tensors(result)):
            return None
        if torch.Tag.data_dependent_output in func.tags:
            return "sync"
        if torch.Tag.dynamic_output_shape in func.tags and kwargs.get("output_size") is None:
            return "data-dependent shape"
        if func.name().startswith("aten::index") and any(t.dtype in (torch.bool, torch.uint8) for t in given[1:]):
            return "data-dependent shape"
        if func.name().startswith(_COPIES):
            return _copy_kind(given, result)
        if self._stream is not None and torch.cuda.current_stream() != self._stream:
            return "other stream"
        return None


class CapturingOnly(TorchDispatchMode):
    """Fails at an operator whose stream is not part of the capture: it runs now, once, and no replay runs it again."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator if it is captured.

        Raises:
            NotCapturedError: it is not.

        """
        result = func(*args, **(kwargs or {}))
        if any(t.is_cuda for _, t in named_tensors(result)) and not torch.cuda.is_current_stream_capturing():
            raise NotCapturedError(Finding(func.name().partition(".")[0], "other stream", running_line()))
        return result


class NotCapturedError(RuntimeError):
    """An operator ran outside the capture."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.operator} ran on a stream that is not captured")
        self.finding = finding


def _copy_kind(given: Sequence[torch.Tensor], result: torch.Tensor) -> Kind | None:
    """Say what a copy does: `given` ends with its source where it is copy_, and is its source where it is _to_copy."""
    source = given[-1]
    if source.is_cuda and not result.is_cuda:
        return "sync"
    return "pageable copy" if not source.is_cuda and result.is_cuda and not source.is_pinned() else None


def _waits_not(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    positional = [argument.name for argument in func._schema.arguments]
    place = positional.index("non_blocking") if "non_blocking" in positional else len(args)
    return bool(kwargs.get("non_blocking", args[place] if place < len(args) else False))


@contextmanager
def audited(audit: Audit) -> Iterator[None]:
    """Let `audit` watch the block; what is compiled runs eagerly in it, where its operators can be seen."""
    with _eagerly(), audit:
        yield


def _eagerly() -> AbstractContextManager[Any]:
    # Without an import of the compiler nothing is compiled, and importing it takes seconds.
    stance: Callable[[str], AbstractContextManager[Any]] = torch.compiler.set_stance
    return stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
