"""Looks at one call of a component without timing it: what it reads, returns and changes, and what a variant trips on.

The call runs eagerly, is traced by Dynamo, and on a GPU is captured in a CUDA graph. On a CPU a capture cannot be
tried, and what would prevent it is found by a rehearsal (`profiling.graphs.rehearsal`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiling.components.casting import parameter_dtypes
from profiling.components.component import Component
from profiling.components.trees import dotted, keyed_leaves, stored_parts
from profiling.components.user_code import code_at, is_user_code, short_path
from profiling.errors import printable, reason_of
from profiling.graphs import CudaGraphed
from profiling.graphs.capture import Audit, CaptureError, Finding
from profiling.graphs.engine import REPLACES, layout_of
from profiling.graphs.rehearsal import rehearsing
from profiling.results.record import CheckedCall, Obstacle, StateForm, TensorForm
from profiling.trace.compile_log import graph_break
from profiling.trace.counters import nothing_compiled

#: Most characters of a value that is no tensor.
_VALUE = 60


def check_call(component: Component, nondeterminism: str | None = None) -> CheckedCall:
    """Call the component a few times and return what was seen; its state is as before.

    The component must have been called before: what happens only in the first call (a table that is made once) stands
    in nobody's way. `nondeterminism` says how far equal calls differed, if they did.
    """
    parameters = list(component.module.parameters())
    unknown: list[str] = []
    inputs = tuple(forms(component.inputs))
    outputs, state, findings = _watched_call(component)
    graphs, breaks = _traced(component, unknown)
    captured = None
    if component.device.type == "cuda":
        error = _captured(component)
        captured = error is None
        if error is None:  # what the audit found does no harm
            findings = tuple([_reassignment(component.kept.reassigned)] if component.kept.reassigned else [])
        elif not findings:
            findings = (Obstacle(hinders="cuda_graph", reason=str(error)),)
    differing = () if nondeterminism is None else (Obstacle(hinders="parity", reason=nondeterminism),)
    return CheckedCall(
        inputs=inputs,
        outputs=outputs,
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        parameter_dtypes=parameter_dtypes(component.module),
        state=state,
        captured=captured,
        compiled_graphs=graphs,
        obstacles=(*differing, *findings, *breaks),
        unknown=tuple(unknown),
    )


def forms(tree: Any) -> Iterator[TensorForm]:
    """Yield the form of each tensor and of each other value in `tree`."""
    for keys, leaf in keyed_leaves(tree):
        if isinstance(leaf, Tensor):
            yield TensorForm(path=dotted(keys), dtype=_dtype(leaf), shape=tuple(leaf.shape), device=str(leaf.device))
        else:
            yield TensorForm(path=dotted(keys), value=f"{type(leaf).__name__} {printable(repr(leaf), _VALUE)}")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _watched_call(component: Component) -> tuple[tuple[TensorForm, ...], tuple[StateForm, ...], tuple[Obstacle, ...]]:
    """Call once; return the forms of the outputs, the state with what the call changed, and what prevents a capture."""
    component.reset()
    before = {path: tensor.detach().clone() for path, tensor in component.kept.named_tensors()}
    addresses = layout_of(component.module)
    if component.device.type == "cuda":
        with Audit(None) as audit:
            output = component.call()
    else:
        with rehearsing() as audit:
            output = component.call()
    findings = list(_obstacles(audit.findings, anywhere=component.device.type == "cuda"))
    if component.kept.reassigned:
        findings.append(_reassignment(component.kept.reassigned))
    elif addresses != layout_of(component.module):
        findings.append(Obstacle(hinders="cuda_graph", reason=REPLACES))
    after = dict(component.kept.named_tensors())
    kept = tuple(
        StateForm(
            path=path,
            dtype=_dtype(tensor),
            shape=tuple(tensor.shape),
            bytes=tensor.nbytes,
            changed=path not in before or path not in after or not _same(before[path], after[path].detach()),
        )
        for path, tensor in (after | before).items()
    )
    outputs = tuple(forms(output))
    component.reset()
    return outputs, kept, tuple(findings)


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same values; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    pairs = zip(stored_parts(one), stored_parts(other), strict=True)
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) if a.shape == b.shape else False for a, b in pairs)


def _reassignment(paths: Sequence[str]) -> Obstacle:
    """Return the obstacle of state that each call assigns anew; a capture does not notice it."""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return Obstacle(
        hinders="cuda_graph",
        reason=f"each call assigns another tensor to {paths[0]}{more}: a replay reads the one of the capture, so a "
        "call that needs that of the call before is wrong",
        advice="write to it in place (copy_)",
    )


def _obstacles(findings: Iterable[Finding], *, anywhere: bool) -> Iterator[Obstacle]:
    """Yield the findings, one for each line and reason; those without a line of the user's only if `anywhere`.

    On a CPU an optimizer or the backward pass may run other operators than on a GPU.
    """
    seen = set()
    for finding in findings:
        place = None if finding.line is None else (finding.line.file, finding.line.number)
        if (place, finding.fault) in seen or (place is None and not anywhere):
            continue
        seen.add((place, finding.fault))
        yield Obstacle(
            hinders="cuda_graph",
            reason=finding.reason,
            operator=finding.operator,
            file=short_path(finding.line.file, Path.cwd()) if finding.line else None,
            line=finding.line.number if finding.line else None,
            code=finding.line.code if finding.line else None,
            advice=finding.advice,
        )


def _captured(component: Component) -> CaptureError | None:
    """Try to capture a CUDA graph of the call; return why it cannot be captured, or None.

    Raises:
        torch.OutOfMemoryError: the graph does not fit beside the module.

    """
    graphed = CudaGraphed(component.module, keep_state=component.keep_state, priority=component.priority)
    try:
        graphed(**component.inputs)
    except CaptureError as error:
        return error
    finally:
        graphed.clear()
        component.reset()
    return None


def _traced(component: Component, unknown: list[str]) -> tuple[int | None, tuple[Obstacle, ...]]:
    """Return the number of graphs into which Dynamo splits the call, and the places."""
    with _quiet():
        try:
            component.reset()
            explained = torch._dynamo.explain(component.module)(**component.inputs)
            nothing = nothing_compiled()  # before the counters are reset
        except Exception as error:
            unknown.append(f"torch.compile could not trace the call: {reason_of(error)}")
            return None, ()
        finally:
            torch._dynamo.reset()
            component.reset()
    places: dict[tuple[str | None, int | None], Obstacle] = {}
    for each in explained.break_reasons:
        if each.graph_break:
            place = _break(str(each.reason), each.user_stack)
            places.setdefault((place.file, place.line), place)
    if explained.graph_count == 0 and not places:
        places[None, None] = Obstacle(hinders="compile", reason=nothing)
    return explained.graph_count, tuple(places.values())


def _break(text: str, stack: Sequence[Any]) -> Obstacle:
    parsed = graph_break(text, Path.cwd())
    frame = next((frame for frame in reversed(stack) if is_user_code(frame.filename)), None)
    return Obstacle(
        hinders="compile",
        reason=parsed.reason,
        file=short_path(frame.filename, Path.cwd()) if frame else parsed.file,
        line=frame.lineno if frame else parsed.line,
        code=code_at(frame.filename, frame.lineno) if frame else None,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dynamo from logging what is reported anyway."""
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
