"""Capture a call in a CUDA graph: audit, warm-up, capture, and clean-up if the capture fails.

The order follows the CUDA graphs section of PyTorch's CUDA semantics notes. The audit comes first: it runs the call
once and checks each operator for faults that a capture does not allow, because CUDA reports only that something was not
permitted, and one fault not at all: a non-blocking copy from pageable host memory is captured with its source address,
and each replay copies whatever is at that address by then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.components.effects import Watch
from profiling.components.instantiate import is_out_of_memory
from profiling.components.trees import tensors_in
from profiling.components.user_code import SourceLine, raising_line, running_line
from profiling.errors import SkippedError
from profiling.machine.gc_policy import no_garbage_collection

Fault = Literal["sync", "pageable copy", "host tensor", "data-dependent shape", "other stream"]

#: Why each fault prevents a capture, and what to change.
_ADVICE: dict[Fault, tuple[str, str]] = {
    "sync": (
        "it waits for the GPU to read a value back, or copies from memory that is not pinned",
        "keep the value on the device (torch.where, a mask), make constants once as buffers, read results after it",
    ),
    "pageable copy": (
        "it copies from pageable host memory, and each replay would copy whatever is at that address by then",
        "make the tensor on the device, or once as a buffer (register_buffer)",
    ),
    "host tensor": (
        "it makes a tensor on the CPU, which each call on a GPU would have to copy there",
        "make the tensor on the device (device=x.device), or once as a buffer (register_buffer)",
    ),
    "data-dependent shape": (
        "the shape of its result depends on the values, and a graph has fixed shapes",
        "use a form of fixed size (torch.where, topk, a mask kept as a mask)",
    ),
    "other stream": (
        "it runs on another stream than the capture's, which was not joined",
        "let the other stream wait for the current one first, and the current one for it before forward returns "
        "(wait_stream)",
    ),
}
_GENERAL_ADVICE = (
    "do it once before the call (in __init__ or as a buffer), on the device and without waiting; what is initialised "
    "at first use needs more warm-up calls (warmup=N)"
)

#: Operators of `x[i]` and `x[i] = y`; their second argument is the list of indices.
_INDEXING = ("aten::index.", "aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index")


class CaptureError(SkippedError, RuntimeError):
    """A call that cannot be captured in a CUDA graph; device, random numbers and allocator are as before the attempt.

    The message is one line: the operator, the user's line that calls it, the reason, and what to change.
    """


@dataclass(frozen=True)
class Finding:
    """An operator that prevents the capture, and the line that calls it."""

    operator: str  # aten::nonzero
    fault: Fault
    line: SourceLine | None  # None outside the user's code: a thread without Python, as the backward pass has
    silent: bool = False  # a capture would record it without an error, and replay it wrong

    @property
    def reason(self) -> str:
        """Why it prevents a capture."""
        return _ADVICE[self.fault][0]

    @property
    def advice(self) -> str:
        """What to change."""
        return _ADVICE[self.fault][1]


class Audit(Watch):
    """Watches the operators of a call: `findings`, and `written`, the addresses of memory it writes to."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.findings: list[Finding] = []
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note its writes and its fault, if any."""
        if isinstance(func, torch._ops.OpOverload):
            with self:  # in inference mode an operator that calls others arrives whole: watch those that it calls
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(func, torch._ops.OpOverload):
            self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        fault = self._fault(func, args, kwargs, result)
        if fault is not None:
            silent = fault == "pageable copy" and _is_non_blocking(func, args, kwargs)
            self.findings.append(Finding(_operator_name(func), fault, running_line(), silent))

    def _fault(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Fault | None:
        tensors = tensors_in((list(args), kwargs))
        if not any(map(self._is_on_device, (*tensors, *tensors_in(result)))):
            return None
        if torch.Tag.data_dependent_output in func.tags:
            return "sync"
        if func.name().startswith(_INDEXING):  # its tag says that the shape may depend on values: it does for masks
            if _selects_by_mask(args):
                return "data-dependent shape"
        elif torch.Tag.dynamic_output_shape in func.tags and kwargs.get("output_size") is None:
            return "data-dependent shape"
        if func.name().startswith(("aten::_to_copy", "aten::copy_", "aten::copy", "aten::_copy_from")):
            return _copy_fault(tensors[-1], result)  # the source: copy_'s last tensor, and _to_copy's only one
        if self._stream is not None and torch.cuda.current_stream() != self._stream:
            return "other stream"
        return None

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda


def _selects_by_mask(args: Sequence[Any]) -> bool:
    """Return whether an indexing operator counts the true elements of a mask; `args` are its positional arguments.

    Positions of integers give a fixed shape. So does one mask with one value, as in `x[mask] = 0`: `masked_fill`.
    """
    _, indices, *values = args
    masks = [t for t in tensors_in(indices) if t.dtype in (torch.bool, torch.uint8)]
    is_fill = (
        len(masks) == len(tensors_in(indices)) == 1 and bool(values) and values[0].ndim == 0 and not values[0].is_cuda
    )
    return bool(masks) and not is_fill


def _operator_name(func: Any) -> str:
    return func.name().partition(".")[0]


def _copy_fault(source: torch.Tensor, result: torch.Tensor) -> Fault | None:
    if source.is_cuda and not result.is_cuda:
        return "sync"
    return "pageable copy" if not source.is_cuda and result.is_cuda and not source.is_pinned() else None


def _is_non_blocking(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    position = names.index("non_blocking") if "non_blocking" in names else len(args)
    return bool(kwargs.get("non_blocking", args[position] if position < len(args) else False))


def audit_and_warm_up(
    call: Callable[[], Any], rewind: Callable[[], None], *, warmup: int, stream: torch.cuda.Stream
) -> Audit:
    """Call `call` once under the audit and then `warmup` times, on the side stream, each time after `rewind`.

    Raises:
        CaptureError: a capture would record the call without an error and replay it wrong.

    """
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            audit = Audit(stream)
            rewind()
            with suppress(Exception), _eager(), audit:
                call()  # an error because of the audit does not count; any other one is raised again below
            for _ in range(warmup):
                rewind()
                call()
    finally:
        current.wait_stream(stream)
    torch.cuda.synchronize()
    silent = [finding for finding in audit.findings if finding.silent]
    if silent:
        raise _finding_error(silent[0])
    return audit


def _eager() -> AbstractContextManager[Any]:
    """Run compiled functions eagerly, so that the audit sees their operators."""
    # Nothing is compiled unless the compiler was imported, and importing it takes seconds.
    stance: Callable[[str], AbstractContextManager[Any]] = torch.compiler.set_stance
    return stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def capture(
    call: Callable[[], Any],
    *,
    stream: torch.cuda.Stream,
    pool: Any,
    audit: Audit,
    generators: Iterable[torch.Generator] = (),
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture one call and return (graph, its static output).

    Raises:
        CaptureError: the call does something that cannot be captured; the device can be used as before.
        torch.OutOfMemoryError: the pool does not fit.

    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    torch.cuda.synchronize()
    with no_garbage_collection(), torch.cuda.stream(stream):
        torch.cuda.empty_cache()
        try:
            # thread_local: other threads may use CUDA meanwhile (a DataLoader that pins memory, for example).
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        except RuntimeError as error:  # after it has told the random number generators of the capture
            _reset_generators(stream)
            raise _cuda_error(error, audit.findings) from error
        try:
            # A stream that never waited for this one is not in the capture, and CUDA raises no error for it.
            other_stream = any(finding.fault == "other stream" for finding in audit.findings)
            with _RequireCapture() if other_stream else nullcontext():
                output = call()
        except BaseException as error:  # also SystemExit: an open capture would break whatever runs next
            try:
                graph.capture_end()
            except RuntimeError:
                _finish_capture_end(pool, stream)
            if isinstance(error, CaptureError) or is_out_of_memory(error) or not isinstance(error, RuntimeError):
                raise  # explained already, or not caused by the capture
            raise _cuda_error(error, audit.findings) from error
        try:
            graph.capture_end()
        except RuntimeError as error:
            _finish_capture_end(pool, stream)
            raise _cuda_error(error, audit.findings) from error
    return graph, output


class _RequireCapture(TorchDispatchMode):
    """Raises CaptureError at an operator outside the capture, which would run once now and in no replay."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(t.is_cuda for t in tensors_in(result)) and not torch.cuda.is_current_stream_capturing():
            raise _finding_error(Finding(_operator_name(func), "other stream", running_line()))
        return result


def _finding_error(finding: Finding) -> CaptureError:
    """Return the error for a finding of the audit."""
    return _error(finding.operator, finding.line, finding.reason, finding.advice)


def _cuda_error(error: BaseException, findings: Sequence[Finding]) -> CaptureError:
    """Return the error for a capture that CUDA broke off; `findings` are those of the audit of the same call.

    A finding on the line that raised explains it best, then one outside the user's code. An error at the end of the
    capture has no line, so any finding may explain it.
    """
    line = raising_line(error.__traceback__)
    outside = [finding for finding in findings if finding.line is None]
    with_line = [finding for finding in findings if finding.line is not None]
    if line is None:
        likely = [*outside, *with_line]
    else:
        likely = [f for f in with_line if f.line and (f.line.file, f.line.number) == (line.file, line.number)] + outside
    if likely:
        return _finding_error(likely[0])
    reason = next((text for text in str(error).splitlines() if text.strip()), type(error).__name__).strip().rstrip(".")
    advice = _ADVICE["pageable copy"][1] if "between CPU and CUDA" in reason else _GENERAL_ADVICE
    return _error(line.code if line else "an operator", line, reason, advice)


def _error(operator: str, line: SourceLine | None, reason: str, advice: str) -> CaptureError:
    if line is None:
        subject = f"{operator} outside the module's own lines (in the backward pass, for example)"
    else:
        subject = str(line) if line.code == operator else f"{operator} at {line}"
    return CaptureError(
        f"{subject} cannot be captured in a CUDA graph: {reason}. To do: {advice}. "
        "variant=[baseline] runs without a graph."
    )


def _finish_capture_end(pool: Any, stream: torch.cuda.Stream) -> None:
    """Complete a `CUDAGraph.capture_end` that raised.

    It raises before it ends the capture in the allocator and in the random number generators. Without this function
    the pool would serve later allocations, and every later random number would fail. The allocator of pinned host
    memory cannot be reset from Python, so it refuses another capture into the same pool.
    """
    device = torch.cuda.current_device()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)
    with suppress(RuntimeError):
        torch._C._cuda_releasePool(device, pool)
    torch.cuda.synchronize()
    _reset_generators(stream)


def _reset_generators(stream: torch.cuda.Stream) -> None:
    """Let the random number generators of the device work again after a capture that has not begun or not ended."""
    if stream == torch.cuda.default_stream(stream.device):
        stream = torch.cuda.Stream(stream.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        scratch = torch.zeros(1, device=stream.device)
        stream.wait_stream(torch.cuda.default_stream())
        graph.capture_begin(capture_error_mode="thread_local")  # a whole capture of one node resets the generators
        scratch.zero_()
        graph.capture_end()
    del graph


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Keep autocast from reusing casts of weights: those made outside a capture are gone when it is replayed."""
    enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextmanager
def preserved_generators(generators: Sequence[torch.Generator], device: torch.device) -> Iterator[Callable[[], None]]:
    """Restore `generators` and the default generators after the block.

    The block is given the function that restores them, to call it in between.
    """
    host, cuda = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    states = [generator.get_state() for generator in generators]

    def restore() -> None:
        torch.set_rng_state(host)
        torch.cuda.set_rng_state(cuda, device)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

    try:
        yield restore
    finally:
        restore()
