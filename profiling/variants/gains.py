"""Measures how much time a torch.fx pass or a quantised layer saves.

Two calls are timed alternately, so that drift affects both alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from profiling.components.component import Component
from profiling.components.outputs import Outputs, difference, to_host
from profiling.graphs import CudaGraphed
from profiling.results.explanations import BeforeAfter, LayerSensitivity, ModuleChoice, Sensitivity
from profiling.variants.replaced_layers import input_of

#: Calls in a row that are observed: a module may use some layers in every second call only.
CALLS_IN_A_ROW = 2
#: Rounds in which two calls are timed.
_REPLAY_ROUNDS = 11
#: Milliseconds of one timed series of replays: long compared with the resolution of events and the first launch.
_SERIES_MS = 20.0


def interleaved_medians(before: Callable[[], float], after: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Return the medians of two measurements, each taken once a round, in an order that alternates between rounds."""
    values: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            values[index].append((before, after)[index]())
    return statistics.median(values[0]), statistics.median(values[1])


def replay_ms(
    before: Callable[..., Any],
    after: Callable[..., Any],
    inputs: Mapping[str, Any],
    keep_state: Callable[[], Callable[[], None]],
) -> tuple[float, float]:
    """Capture both and return the device time of a replay of each, in ms, the copy of the inputs included.

    `keep_state` takes a snapshot of what a call may change, and returns the function that restores it after capturing.

    Raises:
        CaptureError: one of them cannot be captured.

    """
    graphs = [CudaGraphed(module, alias_outputs=True, keep_state=keep_state) for module in (before, after)]
    try:
        series = [_replay_series(graph, inputs) for graph in graphs]
        return interleaved_medians(series[0], series[1], _REPLAY_ROUNDS)
    finally:
        for graph in graphs:
            graph.clear()


def _replay_series(graph: Callable[..., Any], inputs: Mapping[str, Any]) -> Callable[[], float]:
    """Capture, and return a function that times a series of replays: the mean in ms."""

    def mean_ms(calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            graph(**inputs)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls

    graph(**inputs)  # captures
    calls = max(1, round(_SERIES_MS / max(mean_ms(3), 1e-3)))
    return lambda: mean_ms(calls)


@dataclass(frozen=True)
class Swap:
    """A layer whose quantised weight is ready: its entry in the record and its products in one call of the module.

    `put` gives it the quantised weight, and returns the function that undoes this.
    """

    choice: ModuleChoice
    calls: int
    layer: nn.Module
    put: Callable[[], Callable[[], None]]


def sensitivity(
    module: nn.Module, component: Component, layers: Sequence[Swap], seconds: float
) -> Callable[[], Mapping[str, Any]]:
    """Quantise each layer alone, the largest first, for so many seconds, and measure the error that it causes.

    Returns:
        A function that times the layers, all quantised by then, and returns the section `sensitivity` of the record.
        Times are estimates: a layer alone with random inputs, once for each kind and shape, times its calls. On a GPU
        it is compiled and captured; on a CPU it runs eagerly.

    """
    deadline, expected = time.perf_counter() + seconds, _outputs(module, component)
    measured: list[tuple[Swap, type[nn.Module], float | None]] = []
    for each in sorted(layers, key=lambda each: math.prod(each.choice.shape), reverse=True):
        if measured and time.perf_counter() > deadline:
            break
        before, undo = type(each.layer), each.put()
        error = difference(_outputs(module, component), expected).error
        undo()
        measured.append((each, before, error if math.isfinite(error) else None))
    measured.sort(key=lambda row: math.inf if row[2] is None else row[2], reverse=True)
    how = "compiled and captured" if component.device.type == "cuda" else "eager"

    def section() -> Mapping[str, Any]:
        times: dict[Any, tuple[float, float]] = {}
        rows = []
        for each, before, error in measured:
            choice = each.choice
            kind = (before, choice.shape, choice.rows, each.layer.bias is None)
            if kind not in times:
                times[kind] = _layer_ms(before, each.layer, choice, component.device)
            ms = BeforeAfter(before=each.calls * times[kind][0], after=each.calls * times[kind][1])
            rows.append(LayerSensitivity(name=choice.name, shape=choice.shape, rel_l2=error, ms=ms))
        timed = f"estimated: the layer alone, {how}"
        return {"sensitivity": Sensitivity(layers=tuple(rows), quantised=len(layers), timed=timed)}

    return section


def _outputs(module: nn.Module, component: Component) -> Outputs:
    """Return the outputs of calls in a row."""
    with ExitStack() as stack:
        stack.callback(component.keep_state())
        calls = [to_host(**{f"call_{call}": module(**component.inputs)}) for call in range(CALLS_IN_A_ROW)]
    return {path: leaf for outputs in calls for path, leaf in outputs.items()}


def _layer_ms(
    was: type[nn.Module], layer: nn.Module, choice: ModuleChoice, device: torch.device
) -> tuple[float, float]:
    """Return the milliseconds of a call of a layer of class `was` with the most rows, and of `layer` in its place."""
    (outputs, inputs), (_, rows) = choice.shape, choice.rows or (1, 1)
    options: dict[str, Any] = {"bias": layer.bias is not None, "device": device, "dtype": layer.weight.dtype}
    if not issubclass(was, nn.Linear):
        options["kernel_size"] = 1
    other = was(inputs, outputs, **options)
    x = input_of(other, rows, inputs, device, options["dtype"])
    if device.type == "cuda":
        compiled = partial(torch.compile, dynamic=False, options={"triton.cudagraphs": False})
        return replay_ms(compiled(other), compiled(layer), {"input": x}, lambda: lambda: None)

    def wall_ms(call: nn.Module) -> float:
        start = time.perf_counter()
        call(x)
        return (time.perf_counter() - start) * 1e3

    return interleaved_medians(partial(wall_ms, other), partial(wall_ms, layer), _REPLAY_ROUNDS)
