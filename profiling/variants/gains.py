"""Measures the gain of a capture, a torch.fx pass or a quantised layer.

Two calls are timed alternately, so that drift affects both alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from profiling.graphs import CudaGraphed
from profiling.graphs.capture import no_autocast_cache
from profiling.results.record import BeforeAfter, Graphs, LayerSensitivity, MemoryKinds, ModuleChoice, Sensitivity
from profiling.trace.counters import CompileCounters
from profiling.trace.device_work import host_launches as launches_of

#: Rounds in which an eager call and a replay are timed: as many as fit into the seconds, within these limits.
_LEAST_WALL_ROUNDS, _WALL_ROUNDS, _WALL_SECONDS = 5, 31, 0.5
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


def graphs_section(
    engines: Sequence[CudaGraphed],
    call: Callable[..., Any],
    inputs: Mapping[str, Any],
    compiled: CompileCounters | None = None,
    rewind: Callable[[], Any] = tuple,
) -> Graphs:
    """Return the record's section `graphs`; the last of `engines` replays what `call(**inputs)` does eagerly.

    Counters are totals over all engines. Host launches (of one call) and wall times (medians of alternating calls) are
    those of the eager call, `before`, and of the replay, `after`; launches are absent where CUPTI counted none.
    `compiled` are the counters of compiling the call. `rewind` is called before each timed call.
    """
    counters = [asdict(engine.counters) for engine in engines]
    totals: dict[str, Any] = {name: sum(each[name] for each in counters) for name in counters[0]}
    captured = engines[-1].newest
    eager, replay = partial(call, **inputs), partial(engines[-1], **inputs)
    with no_autocast_cache():  # as in the capture: a compiled call would otherwise recompile
        eager_ms, replay_ms = _wall_ms(eager, replay, rewind)
        host_launches = BeforeAfter(before=launches_of(eager), after=launches_of(replay))
    return Graphs(
        **totals,
        memory={} if captured is None else {point: MemoryKinds(**kinds) for point, kinds in captured.memory.items()},
        host_launches=host_launches,
        wall_ms=BeforeAfter(before=eager_ms, after=replay_ms),
        speedup=eager_ms / replay_ms,
        compiled_pieces=None if compiled is None else compiled.graphs,
        graph_breaks=None if compiled is None else compiled.graph_breaks,
    )


def _wall_ms(before: Callable[[], Any], after: Callable[[], Any], rewind: Callable[[], Any]) -> tuple[float, float]:
    """Return the median wall times of one call of each, in ms: from an idle device until its work is done."""

    def wall_ms(call: Callable[[], Any]) -> float:
        rewind()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    round_ms = min(wall_ms(before) + wall_ms(after) for _ in range(3))  # the first one is a warm-up
    rounds = min(_WALL_ROUNDS, max(_LEAST_WALL_ROUNDS, round(_WALL_SECONDS * 1e3 / round_ms)))
    return interleaved_medians(partial(wall_ms, before), partial(wall_ms, after), rounds)


def replay_ms(
    before: Callable[..., Any],
    after: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    warmup: int,
    keep_state: Callable[[], Callable[[], None]],
) -> tuple[float, float]:
    """Capture both and return the device time of a replay of each, in ms, the copy of the inputs included.

    `keep_state` takes a snapshot of what a call may change, and returns the function that restores it after capturing.

    Raises:
        CaptureError: one of them cannot be captured.

    """
    graphs = [
        CudaGraphed(module, warmup=warmup, alias_outputs=True, keep_state=keep_state) for module in (before, after)
    ]
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


def sensitivity_section(
    layers: Sequence[tuple[ModuleChoice, int, type[nn.Module], nn.Module]],
    errors: Mapping[str, float | None],
    quantised: int,
    device: torch.device,
) -> Sensitivity:
    """Return the record's section on quantised layers: the error that each causes alone, and the time it saves.

    Times are estimates: a layer alone with random inputs, once for each kind and shape, times its calls. On a GPU it is
    compiled and captured; on a CPU it runs eagerly.

    Args:
        layers: for each measured layer its entry in the record, its products in one call, its class before (a linear
            layer or a convolution), and the quantised layer.
        errors: relative L2 error of the output by the layer's name; None where it is not finite.
        quantised: number of all quantised layers.
        device: of the layers.
    """
    times: dict[Any, tuple[float, float]] = {}
    rows = []
    for choice, calls, was, layer in layers:
        most = (choice.rows or (1, 1))[1]
        kind = (was, tuple(choice.shape), most, _linear_in(layer).bias is None)
        if kind not in times:
            times[kind] = _layer_ms(was, layer, most, device)
        before, after = (calls * each for each in times[kind])
        times_ms = BeforeAfter(before=before, after=after)
        rows.append(LayerSensitivity(name=choice.name, shape=choice.shape, rel_l2=errors[choice.name], ms=times_ms))
    rows.sort(key=lambda row: math.inf if row.rel_l2 is None else row.rel_l2, reverse=True)
    how = "compiled and captured" if device.type == "cuda" else "eager"
    return Sensitivity(layers=tuple(rows), quantised=quantised, timed=f"estimated: the layer alone, {how}")


#: Dimensions of an input behind its channels.
_AXES = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}


def _linear_in(layer: nn.Module) -> nn.Linear:
    """Return the linear layer with the quantised weight: the layer, or that of a convolution in its place."""
    (linear,) = (each for each in layer.modules() if isinstance(each, nn.Linear))
    return linear


def _layer_ms(was: type[nn.Module], layer: nn.Module, rows: int, device: torch.device) -> tuple[float, float]:
    """Return the milliseconds of a call with `rows` rows of a layer of class `was`, and of `layer` in its place."""
    linear = _linear_in(layer)
    options: dict[str, Any] = {"bias": linear.bias is not None, "device": device, "dtype": linear.weight.dtype}
    shape = (rows, linear.in_features)
    if axes := _AXES.get(was):
        options["kernel_size"] = 1
        shape = (1, linear.in_features, rows, *(1,) * (axes - 1))
    other = was(linear.in_features, linear.out_features, **options)
    x = torch.randn(shape, device=device, dtype=linear.weight.dtype)
    if device.type == "cuda":
        compiled = partial(torch.compile, dynamic=False, options={"triton.cudagraphs": False})
        return replay_ms(compiled(other), compiled(layer), {"input": x}, warmup=3, keep_state=lambda: _nothing)

    def wall_ms(call: nn.Module) -> float:
        start = time.perf_counter()
        call(x)
        return (time.perf_counter() - start) * 1e3

    return interleaved_medians(partial(wall_ms, other), partial(wall_ms, layer), _REPLAY_ROUNDS)


def _nothing() -> None:
    pass
