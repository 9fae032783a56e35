"""A pipeline of prepared stages: runs them in each tick on their streams, keeps their outputs, delivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter  # bound here: a network may replace the one in `time`
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import KeyPath, key_get

from profiling.components.trees import dotted, keyed_tensors
from profiling.errors import InputError, did_you_mean
from profiling.realtime.graph import Graph, Read

#: Writes an input for (tick, output of the stage's call before in the same tick).
Write = Callable[[int, Any], Any]


class Outputs:
    """The tensors of a stage's last `keep` runs that others read. They are copies: a CUDA graph overwrites its own.

    `edges` are those that read the stage, `delivered` those of the pipeline's `deliver`.
    """

    def __init__(self, stage: str, edges: Sequence[Read], delivered: Sequence[Read], keep: int) -> None:
        self._stage, self._edges, self._delivered, self._keep = stage, edges, delivered, keep
        self._tensors: list[dict[str, Tensor]] = []
        self._keys: dict[str, KeyPath] = {}
        self.delivered: dict[str, str] = {}  # path of each delivered tensor by its name
        self.reset()

    def reset(self) -> None:
        """Forget all runs."""
        self.runs = self._before = 0

    def begin_tick(self) -> None:
        """Remember which run was the last one of the tick before."""
        self._before = self.runs

    def store(self, output: Any) -> None:
        """Copy the tensors of `output` that others read.

        Raises:
            InputError: it lacks one of them, or one has another shape than in earlier runs.

        """
        if not self._tensors:
            self._resolve(output)
            read = {path: key_get(output, keys) for path, keys in self._keys.items()}
            self._tensors = [{path: tensor.clone() for path, tensor in read.items()} for _ in range(self._keep)]
        number = self.runs % self._keep
        self.runs += 1
        for path, kept in self._tensors[number].items():
            tensor = key_get(output, self._keys[path])
            if tensor.shape != kept.shape:
                raise InputError(
                    f"pipeline.stages.{self._stage}: its output {path} was {list(kept.shape)} and is now "
                    f"{list(tensor.shape)}. The stages of a loop must keep their shapes."
                )
            kept.copy_(tensor)

    def get(self, path: str, *, before: bool = False) -> Tensor | None:
        """Return a tensor of the last run, or of the last one in an earlier tick; None if there was none."""
        runs = self._before if before else self.runs
        return self._tensors[(runs - 1) % self._keep][path] if runs else None

    def _resolve(self, output: Any) -> None:
        """Find the paths of the tensors that are read."""
        for edge in self._edges:
            self._keys[edge.path] = keys_of(edge, output)
        for edge in self._delivered:
            prefix = f"{edge.path}." if edge.path else ""
            named = {dotted(keys): keys for keys, _ in keyed_tensors(output)}
            paths = [path for path in named if path == edge.path or path.startswith(prefix)]
            if not paths:
                keys_of(edge, output)  # raises
            for path in paths:
                name = self._stage if len(paths) == 1 and not edge.path else f"{self._stage}.{path}"
                self.delivered[name] = path
                self._keys[path] = named[path]


def keys_of(edge: Read, output: Any) -> KeyPath:
    """Return the keys that lead from `output` to the tensor that an edge reads; none if it is that tensor.

    Raises:
        InputError: there is no such tensor, or there are several and the edge names none.

    """
    named = {dotted(keys): keys for keys, _ in keyed_tensors(output)}
    if edge.path in named:
        return named[edge.path]
    if not edge.path and len(named) == 1:
        return next(iter(named.values()))
    paths = [path for path in named if path]
    names = ", ".join(f"{edge.name}.{path}" for path in paths) or "one tensor"
    raise InputError(
        f"pipeline: {edge}: the stage {edge.name} returns {names}.{did_you_mean(edge.path, paths)} Read "
        f"{'one of these' if paths else f'it as {edge.name}'}."
    )


@dataclass
class StageRun:
    """A stage in its pipeline: `first` and `again` write its inputs before its first and before its further calls.

    `waits` are the stages on other streams that it reads; with `before`, their run of the tick before.
    """

    name: str
    call: Callable[[], Any]
    outputs: Outputs
    first: Sequence[Write] = ()
    again: Sequence[Write] = ()
    every: int = 1
    repeat: int = 1
    stream: torch.cuda.Stream | None = None
    waits: list[tuple[StageRun, bool]] = field(default_factory=list)

    def due(self, tick: int) -> bool:
        """Return whether the stage runs in this tick: in every n-th, and in the first of all."""
        return tick % self.every == 0 or self.outputs.runs == 0

    def run(self, tick: int) -> None:
        """Write the inputs, call, and keep the output."""
        for write in self.first:
            write(tick, None)
        output = self.call()
        for _ in range(1, self.repeat):
            for write in self.again:
                write(tick, output)
            output = self.call()
        self.outputs.store(output)


class StagedPipeline:
    """Runs the stages in order, with up to `depth` ticks in flight. A tick is a frame of the loop, by its number.

    On CUDA, events before and after each stage time it, and order it after stages on other streams. A tick is complete
    when the device has passed the last event of each stream.
    """

    def __init__(
        self,
        runs: Sequence[StageRun],
        resets: Sequence[Callable[[], object]],
        delivered: Delivered,
        *,
        device: torch.device,
        depth: int,
    ) -> None:
        self.stages = tuple(run.name for run in runs)
        self.depth, self._delivered = depth, delivered
        self._runs, self._resets = runs, resets
        self._ran: list[dict[str, float]] = [{} for _ in range(depth)]  # by tick: host ms of the stages that ran
        event = partial(torch.cuda.Event, enable_timing=True)
        timed = range(depth if device.type == "cuda" else 0)
        self._events = [{name: (event(), event()) for name in self.stages} for _ in timed]  # by tick: begin and end

    def reset(self) -> None:
        """Begin a new session from S0: no stage has run, sources and noise start again. No tick may be in flight."""
        for reset in self._resets:
            reset()
        self._ran = [{} for _ in self._ran]

    def begin(self, frame: int) -> Mapping[str, float]:
        """Enqueue every stage that is due (on a CPU: run it); return the host time in ms of each."""
        self._ran[frame % self.depth] = host_ms = {}
        for run in self._runs:
            run.outputs.begin_tick()
        for run in self._runs:
            if not run.due(frame):
                continue
            started = perf_counter()
            with nullcontext() if run.stream is None else torch.cuda.stream(run.stream):
                self._run(run, frame)
            host_ms[run.name] = 1e3 * (perf_counter() - started)
        self._delivered.keep(frame)
        return host_ms

    def delivered(self, frame: int) -> Mapping[str, Tensor]:
        """Return the tensors of a delivered tick, by stage (`STAGE.path` for one of several)."""
        return self._delivered.ticks[frame % self.depth]

    def _run(self, run: StageRun, frame: int) -> None:
        if not self._events:
            run.run(frame)
            return
        self._wait_for(run, frame)
        start, end = self._events[frame % self.depth][run.name]
        start.record()
        run.run(frame)
        end.record()

    def _wait_for(self, run: StageRun, frame: int) -> None:
        """Let the stream wait for the runs on other streams that the stage reads."""
        for other, before in run.waits:
            for tick in range(frame - before, frame - self.depth, -1):  # earlier ticks are complete
                if other.name in self._ran[tick % self.depth]:
                    self._events[tick % self.depth][other.name][1].wait()
                    break

    def _last_events(self, frame: int) -> list[torch.cuda.Event]:
        """Return the last event of each stream in a tick, none on a CPU."""
        if not self._events:
            return []
        events, ran = self._events[frame % self.depth], self._ran[frame % self.depth]
        return list({run.stream: events[run.name][1] for run in self._runs if run.name in ran}.values())

    def finished(self, frame: int) -> bool:
        """Return whether the device has passed the last events of a tick that has begun: it is delivered."""
        return all(end.query() for end in self._last_events(frame))

    def wait(self, frame: int) -> None:
        """Wait until a tick that has begun is delivered."""
        for end in self._last_events(frame):
            end.synchronize()

    def device_ms(self, frame: int) -> Mapping[str, float]:
        """Return the time in ms between the two events of each stage that ran; empty on a CPU."""
        if not self._events:
            return {}
        events = self._events[frame % self.depth]
        return {name: events[name][0].elapsed_time(events[name][1]) for name in self._ran[frame % self.depth]}


class Delivered:
    """The delivered tensors of the last `depth` ticks by name; on the host in pinned memory: a playout buffer."""

    def __init__(self, graph: Graph, outputs: Mapping[str, Outputs], depth: int, *, on_host: bool) -> None:
        self._outputs = [outputs[name] for name in dict.fromkeys(edge.name for edge in graph.deliver)]
        self._on_host = on_host
        self.ticks: list[dict[str, Tensor]] = [{} for _ in range(depth)]

    def _newest(self) -> dict[str, Tensor]:
        tensors = {name: outputs.get(path) for outputs in self._outputs for name, path in outputs.delivered.items()}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def keep(self, tick: int) -> None:
        """Keep the tensors on the device as those of a tick, unless they are copied to the host."""
        if not self._on_host:
            self.ticks[tick % len(self.ticks)] = self._newest()

    def copy(self, tick: int, _output: Any) -> None:
        """Copy to the host; from a GPU this only enqueues it."""
        buffers = self.ticks[tick % len(self.ticks)]
        for name, tensor in self._newest().items():
            if name not in buffers:
                buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            buffers[name].copy_(tensor, non_blocking=True)
