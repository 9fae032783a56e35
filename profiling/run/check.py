"""Looks at calls of a component without timing them: what they read, return and change, and what hinders a variant.

A call runs eagerly, is traced by Dynamo, and on a GPU is captured in a CUDA graph. On a CPU a capture cannot be
tried, and what would prevent it is found by a rehearsal (`profiling.graphs.rehearsal`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiling.components.casting import parameter_dtypes
from profiling.components.component import Component
from profiling.components.effects import is_below
from profiling.components.trees import dotted, keyed_leaves
from profiling.components.user_code import code_at, is_user_code, short_path
from profiling.errors import printable, reason_of
from profiling.graphs import CudaGraphed
from profiling.graphs.capture import Audit, CaptureError, Finding
from profiling.graphs.rehearsal import rehearsing
from profiling.results.check import CheckedCall, Obstacle, StateForm, TensorForm
from profiling.trace.compile_log import graph_break
from profiling.trace.counters import nothing_compiled

#: Most characters of a value that is no tensor.
_VALUE = 60


def check_call(component: Component, nondeterminism: str | None = None) -> CheckedCall:
    """Call the component a few times and return what was seen; its state is as before.

    What its calls change is known already (`trajectory.learn`). `nondeterminism` says how far two eager trajectories
    differed, if they did.
    """
    unknown: list[str] = []
    inputs = tuple(forms(component.inputs))
    outputs, state, findings = _watched_call(component, unknown)
    effects = component.kept.effects
    not_followed = (
        Obstacle(hinders="cuda_graph", reason=f"{reason}: a replay cannot follow it", advice=advice)
        for reason, advice in effects.obstacles()
    )
    findings = (*not_followed, *findings)
    graphs, breaks = _traced(component, unknown)
    captured = None
    if component.device.type == "cuda":
        error = component.refusal() or _captured(component)
        captured = not error
        if captured:  # what the audit found does no harm
            findings = ()
        elif not findings:
            findings = (Obstacle(hinders="cuda_graph", reason=str(error)),)
    differing = () if nondeterminism is None else (Obstacle(hinders="parity", reason=nondeterminism),)
    return CheckedCall(
        inputs=inputs,
        outputs=outputs,
        parameter_bytes=sum(parameter.nbytes for parameter in component.module.parameters()),
        parameter_dtypes=parameter_dtypes(component.module),
        state=state,
        calls=component.place.calls,
        warm_calls=component.kept.warm_calls,
        effects=tuple(effects.lines()),
        captured=captured,
        compiled_graphs=graphs,
        obstacles=(*differing, *findings, *breaks),
        unknown=tuple(unknown),
    )


def forms(tree: Any) -> Iterator[TensorForm]:
    """Yield the form of each tensor and of each other value in `tree`."""
    for keys, leaf in keyed_leaves(tree):
        if isinstance(leaf, Tensor):
            yield TensorForm(
                path=dotted(keys),
                dtype=str(leaf.dtype).removeprefix("torch."),
                shape=tuple(leaf.shape),
                device=str(leaf.device),
            )
        else:
            yield TensorForm(path=dotted(keys), value=f"{type(leaf).__name__} {printable(repr(leaf), _VALUE)}")


def _watched_call(
    component: Component, unknown: list[str]
) -> tuple[tuple[TensorForm, ...], tuple[StateForm, ...], tuple[Obstacle, ...]]:
    """Call once; return the forms of the outputs, the state with what calls change, and what prevents a capture."""
    component.reset()
    changed = {id(tensor) for tensor in component.kept.changed or ()}
    carried = component.kept.effects.assigned
    kept = tuple(
        StateForm(
            path=path,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            bytes=tensor.nbytes,
            changed=id(tensor) in changed or any(is_below(path, each) for each in carried),
        )
        for path, tensor in component.kept.named_tensors()
    )
    findings: list[Obstacle] = []
    component.feed(0)
    try:
        with Audit(None) if component.device.type == "cuda" else rehearsing() as audit:
            output = component.call()
        findings = list(_obstacles(audit.findings, anywhere=component.device.type == "cuda"))
    except Exception as error:  # code that cannot be watched, and runs without: FlexAttention, for example
        unknown.append(f"the operators of a call cannot be watched ({reason_of(error)})")
        component.reset()
        output = component.call()
    outputs = tuple(forms(output))
    component.reset()
    return outputs, kept, tuple(findings)


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
    graphed = CudaGraphed(
        component.module,
        keep_state=component.keep_state,
        generators=component.kept.generators,
        check_state=False,
        priority=component.priority,
    )
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
    with ExitStack() as stack:
        logger = logging.getLogger("torch._dynamo")
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)  # it logs what is reported anyway
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.callback(component.reset)
        stack.callback(torch._dynamo.reset)
        try:
            component.reset()
            explained = torch._dynamo.explain(component.module)(**component.inputs)
            nothing = nothing_compiled()  # before the counters are reset
        except Exception as error:
            unknown.append(f"torch.compile could not trace the call: {reason_of(error)}")
            return None, ()
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
