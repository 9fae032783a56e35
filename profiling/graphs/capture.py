"""Capture a call in a CUDA graph: audit, warm-up on a side stream, capture into a pool; put all back if it fails.

The order is the one that CUDA asks for, see the CUDA graphs section of PyTorch's CUDA semantics notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch

from profiling.components.user_code import SourceLine, raising_line
from profiling.graphs.audit import Audit, CapturingOnly, Finding, NotCapturedError, audited
from profiling.machine.gc_policy import no_garbage_collection

_WHY = {
    "sync": (
        "it waits for the GPU to read a value back, or copies from memory that is not pinned",
        "keep the value on the device (torch.where, a mask), make constants once as buffers, read results after it",
    ),
    "pageable copy": (
        "it copies from pageable host memory, whose address a replay would read again whatever stands there by then",
        "make the tensor on the device, or once as a buffer (register_buffer)",
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
_ELSE = (
    "do it once before the call (in __init__ or as a buffer), on the device and without waiting; what is initialised "
    "at first use needs more warm-up calls (warmup=N)"
)
_UNCAPTURED = "variant=[baseline] runs it uncaptured."


class CaptureError(RuntimeError):
    """A call that cannot be captured in a CUDA graph; device, random numbers and allocator are as before."""


def refused(finding: Finding) -> CaptureError:
    """Return the error for a finding of the audit."""
    why, advice = _WHY[finding.kind]
    return _made(finding.operator, finding.place, why, advice)


def explained(error: BaseException, findings: Sequence[Finding]) -> CaptureError:
    """Return the error for a capture that CUDA broke off, `findings` being what the audit saw in the same call.

    The finding on the line that raised explains it; an error at the capture's end has no such line, and then the first
    finding does.
    """
    place = raising_line(error.__traceback__)
    same = [f for f in findings if place and f.place and (f.place.file, f.place.number) == (place.file, place.number)]
    left = [finding for finding in findings if place is None or finding.place is None]
    if chosen := [*same, *left]:
        return refused(chosen[0])
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip().rstrip(".")
    advice = _WHY["pageable copy"][1] if "between CPU and CUDA" in said else _ELSE
    return _made(place.code if place else "an operator", place, said, advice)


def _made(operator: str, place: SourceLine | None, why: str, advice: str) -> CaptureError:
    where = f"at {place}" if place else "in the backward pass, or without a line of its own,"
    operator = "" if place and place.code == operator else f"{operator} "
    return CaptureError(f"{operator}{where} cannot be captured in a CUDA graph: {why}. To do: {advice}. {_UNCAPTURED}")


def audit_and_warm_up(
    call: Callable[[], Any], rewind: Callable[[], None], *, warmup: int, stream: torch.cuda.Stream
) -> Audit:
    """Call `call` once under the audit and `warmup` times as it is, on the side stream, each after `rewind`.

    Raises:
        CaptureError: the call does what a capture would record without an error and replay wrong.

    """
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            audit = Audit(stream)
            rewind()
            with suppress(Exception), audited(audit):
                call()  # failing because it is watched is no reason to stop; what fails anyway does so below
            for _ in range(warmup):
                rewind()
                call()
    finally:
        current.wait_stream(stream)
    torch.cuda.synchronize()
    silent = [finding for finding in audit.findings if finding.silent]
    if silent:
        raise refused(silent[0])
    return audit


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
        # thread_local: what other threads do, a DataLoader's pinning for one, is no fault of this call.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            # A stream that never waited for this one is not in the capture, and CUDA says nothing about it.
            with CapturingOnly() if any(f.kind == "other stream" for f in audit.findings) else nullcontext():
                output = call()
        except NotCapturedError as error:
            _abandon(graph, pool, stream)
            raise refused(error.finding) from None
        except Exception as error:
            _abandon(graph, pool, stream)
            if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
                raise  # no fault of the capture
            raise explained(error, audit.findings) from error
        try:
            graph.capture_end()
        except RuntimeError as error:
            _put_back(pool, stream)
            raise explained(error, audit.findings) from error
    return graph, output


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> None:
    """End a capture that failed inside."""
    try:
        graph.capture_end()
    except RuntimeError:
        _put_back(pool, stream)


def _put_back(pool: Any, stream: torch.cuda.Stream) -> None:
    """Do what torch leaves undone where ending the capture fails.

    `CUDAGraph.capture_end` stops at CUDA's error, before it tells the allocator and the random number generators that
    the capture is over: allocations would still be looked at for the pool, and every later random number would fail.
    The allocator of pinned host memory cannot be told from Python; it refuses another capture into the same pool.
    """
    device = torch.cuda.current_device()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)
    with suppress(RuntimeError):
        torch._C._cuda_releasePool(device, pool)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    scratch = torch.zeros(1, device=stream.device)
    stream.wait_stream(torch.cuda.default_stream())
    graph.capture_begin(capture_error_mode="thread_local")  # a whole capture of one node resets the generators
    scratch.zero_()
    graph.capture_end()
    del graph


@contextmanager
def casts_inside() -> Iterator[None]:
    """Keep autocast from reusing casts of weights: made outside the capture, they are gone when it is replayed."""
    enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextmanager
def left_alone(
    tensors: Sequence[torch.Tensor], generators: Sequence[torch.Generator], device: torch.device
) -> Iterator[Callable[[], None]]:
    """Put `tensors`, `generators` and the default ones back to what they were, after the block and when it asks."""
    host, cuda = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    states = [generator.get_state() for generator in generators]
    saved = [tensor.detach().clone() for tensor in tensors]

    def put_back() -> None:
        torch.set_rng_state(host)
        torch.cuda.set_rng_state(cuda, device)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        with torch.inference_mode():  # the one mode that may write to every tensor
            for tensor, before in zip(tensors, saved, strict=True):
                tensor.copy_(before)

    try:
        yield put_back
    finally:
        put_back()
