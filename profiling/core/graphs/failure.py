"""One error for everything that cannot be captured: the operator, the line of user code, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.core.graphs.audit import Finding
from profiling.core.graphs.places import Place, place_of

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
    place = place_of(error.__traceback__)
    same = [f for f in findings if place and f.place and (f.place.file, f.place.line) == (place.file, place.line)]
    left = [finding for finding in findings if place is None or finding.place is None]
    if chosen := [*same, *left]:
        return refused(chosen[0])
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip().rstrip(".")
    advice = _WHY["pageable copy"][1] if "between CPU and CUDA" in said else _ELSE
    return _made(place.code if place else "an operator", place, said, advice)


def _made(operator: str, place: Place | None, why: str, advice: str) -> CaptureError:
    where = f"at {place}" if place else "in the backward pass, or without a line of its own,"
    operator = "" if place and place.code == operator else f"{operator} "
    return CaptureError(f"{operator}{where} cannot be captured in a CUDA graph: {why}. To do: {advice}. {_UNCAPTURED}")
