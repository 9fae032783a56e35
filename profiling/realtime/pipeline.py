"""A pipeline of prepared stages: writes their inputs, runs them on their streams, keeps their outputs, delivers."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from profiling.components.component import Component
from profiling.components.trees import dotted, keyed_tensors, named_tensors
from profiling.errors import InputError, did_you_mean
from profiling.realtime.graph import DELIVER, DRAWN, Draw, Edge, Fixed, Graph, Read, Stage
from profiling.realtime.options import LoopOptions
from profiling.realtime.play import Clock, Pipeline
from profiling.realtime.sources import DrawFeed, Feed, examples_of, shapes_of, source_arrays

#: Writes an input for (tick, output of the stage's call before in the same tick).
Write = Callable[[int, Any], Any]
#: Keys that lead to a tensor inside an output, as `profiling.components.trees` has them.
Keys = tuple[Any, ...]


class Outputs:
    """The tensors of a stage's last `keep` runs that others read. They are copies: a CUDA graph overwrites its own.

    `edges` are those that read the stage, `delivered` those of the pipeline's `deliver`.
    """

    def __init__(self, stage: str, edges: Sequence[Read], delivered: Sequence[Read], keep: int) -> None:
        self._stage, self._edges, self._delivered, self._keep = stage, edges, delivered, keep
        self._tensors: list[dict[str, Tensor]] = []
        self._keys: dict[str, Keys] = {}
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
            read = {path: tensor_at(output, keys) for path, keys in self._keys.items()}
            self._tensors = [{path: tensor.clone() for path, tensor in read.items()} for _ in range(self._keep)]
        number = self.runs % self._keep
        self.runs += 1
        for path, kept in self._tensors[number].items():
            tensor = tensor_at(output, self._keys[path])
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


def keys_of(edge: Read, output: Any) -> Keys:
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


def tensor_at(output: Any, keys: Keys) -> Tensor:
    """Return the tensor that the keys lead to."""
    for key in keys:
        output = key.get(output)
    return output


class _Mark(NamedTuple):
    """The end of a stage's run in a tick, on its stream."""

    tick: int
    end: torch.cuda.Event


@dataclass
class StageRun:
    """A stage in its pipeline: `first` and `again` write its inputs before its first and before its further calls.

    `waits` are the stages on other streams that it reads; with `before`, their run of the tick before. `run` overrides
    what is called, for the stage that delivers.
    """

    name: str
    call: Callable[[], Any]
    outputs: Outputs | None
    first: Sequence[Write] = ()
    again: Sequence[Write] = ()
    every: int = 1
    repeat: int = 1
    stream: torch.cuda.Stream | None = None
    waits: list[tuple[StageRun, bool]] = field(default_factory=list)
    marks: deque[_Mark] = field(default_factory=lambda: deque(maxlen=2))

    def due(self, tick: int) -> bool:
        """Return whether the stage runs in this tick: in every n-th, and in the first of all."""
        return tick % self.every == 0 or (self.outputs is not None and self.outputs.runs == 0)

    def run(self, tick: int) -> None:
        """Write the inputs, call, and keep the output."""
        for write in self.first:
            write(tick, None)
        output = self.call()
        for _ in range(1, self.repeat):
            for write in self.again:
                write(tick, output)
            output = self.call()
        if self.outputs is not None:
            self.outputs.store(output)


class StagedPipeline(Pipeline):
    """Runs the stages in order, with up to `depth` ticks in flight; `ends` are those that complete a tick.

    On CUDA, events before and after each stage time it, and order it after stages on other streams.
    """

    def __init__(
        self,
        runs: Sequence[StageRun],
        ends: Sequence[str],
        resets: Sequence[Callable[[], None]],
        delivered: _Delivered,
        *,
        device: torch.device,
        clock: Clock,
        depth: int,
    ) -> None:
        self.stages = tuple(run.name for run in runs)
        self.depth, self._delivered = depth, delivered
        self._runs, self._ends, self._resets, self._clock = runs, frozenset(ends), resets, clock
        self._ran: list[list[str]] = [[] for _ in range(depth)]
        self._events: list[dict[str, tuple[torch.cuda.Event, torch.cuda.Event]]] = []
        if device.type == "cuda":
            self._events = [
                {
                    name: (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                    for name in self.stages
                }
                for _ in range(depth)
            ]

    def reset(self) -> None:
        """Begin a new session: no stage has run, and sources and noise start again. No tick may be in flight."""
        for reset in self._resets:
            reset()
        for run in self._runs:
            run.marks.clear()

    def begin(self, frame: int) -> Mapping[str, float]:
        """Enqueue every stage that is due (on a CPU: run it)."""
        host_ms: dict[str, float] = {}
        for run in self._runs:
            if run.outputs is not None:
                run.outputs.begin_tick()
        for run in self._runs:
            if not run.due(frame):
                continue
            started = self._clock.now()
            if run.stream is None:
                self._run(run, frame)
            else:
                with torch.cuda.stream(run.stream):
                    self._run(run, frame)
            host_ms[run.name] = 1e3 * (self._clock.now() - started)
        self._ran[frame % self.depth] = list(host_ms)
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
        run.marks.append(_Mark(frame, end))

    def _wait_for(self, run: StageRun, frame: int) -> None:
        """Let the stream wait for the runs on other streams that the stage reads."""
        for other, before in run.waits:
            mark = next((mark for mark in reversed(other.marks) if mark.tick < frame or not before), None)
            if mark is not None and mark.tick > frame - self.depth:  # earlier ticks are complete
                mark.end.wait()

    def _last_events(self, frame: int) -> list[torch.cuda.Event]:
        """Return the events that complete a tick, none on a CPU."""
        if not self._events:
            return []
        number = frame % self.depth
        return [self._events[number][name][1] for name in self._ran[number] if name in self._ends]

    def finished(self, frame: int) -> bool:
        """Query the events of the last stages."""
        return all(end.query() for end in self._last_events(frame))

    def wait(self, frame: int) -> None:
        """Synchronize with the last stages."""
        for end in self._last_events(frame):
            end.synchronize()

    def device_ms(self, frame: int) -> Mapping[str, float]:
        """Return the time in ms between the two events of each stage that ran; empty on a CPU."""
        if not self._events:
            return {}
        events = self._events[frame % self.depth]
        return {name: events[name][0].elapsed_time(events[name][1]) for name in self._ran[frame % self.depth]}


def assemble(
    graph: Graph,
    components: Mapping[str, Component],
    steps: Mapping[str, Callable[[], Any]],
    options: LoopOptions,
    *,
    ticks: int,
    seed: int,
    narrow: torch.dtype,
    clock: Clock | None = None,
) -> StagedPipeline:
    """Return the pipeline of `graph`, whose stages call `steps`.

    `ticks` is the length of a session, for sources that are made; `narrow` is the run's dtype, in which values are
    drawn and read, also by a float32 reference.

    Raises:
        InputError: an edge does not fit the inputs of its stage. What an output does not fit is said in the first tick.

    """
    device = next(iter(components.values())).device
    depth = options.depth(device.type)
    assembler = _Assembler(graph, components, depth, ticks, seed, narrow)
    overlapping = depth > 1
    runs: dict[str, StageRun] = {}
    for number, (name, stage) in enumerate(graph.stages.items()):
        # The first stage stays on the stream of the loop, as it does where stages run in turn.
        stream = torch.cuda.Stream(device, priority=stage.priority) if overlapping and number else None
        first, again = assembler.writes(name)
        runs[name] = StageRun(
            name, steps[name], assembler.outputs[name], first, again, stage.every, stage.repeat, stream
        )
    for name, stage in graph.stages.items():
        others = dict.fromkeys((edge.name, edge.before) for edge in stage.reads() if edge.name in runs)
        stream = runs[name].stream
        runs[name].waits = [(runs[other], before) for other, before in others if runs[other].stream is not stream]
    delivered = _Delivered(graph, assembler.outputs, depth, on_host=options.deliver == "host")
    ends: Sequence[str] = graph.ends
    sequence = list(runs.values())
    if graph.deliver and options.deliver == "host":
        last = list(dict.fromkeys(edge.name for edge in graph.deliver))
        deliver = StageRun(DELIVER, _nothing, None, [delivered.copy], stream=runs[last[0]].stream)
        deliver.waits = [(runs[name], False) for name in last if runs[name].stream is not deliver.stream]
        sequence.append(deliver)
        ends = (*(name for name in ends if name not in last), DELIVER)
    return StagedPipeline(
        sequence, ends, assembler.resets, delivered, device=device, clock=clock or Clock(), depth=depth
    )


def _nothing() -> None:
    """Stand for the call of a stage that only copies."""


class _Delivered:
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


class _Assembler:
    """Makes the writes of each stage's inputs, and the outputs that they read."""

    def __init__(
        self,
        graph: Graph,
        components: Mapping[str, Component],
        depth: int,
        ticks: int,
        seed: int,
        narrow: torch.dtype,
    ) -> None:
        self._graph, self._depth, self._seed, self._narrow = graph, depth, seed, narrow
        self._components = components
        self._targets = {name: dict(named_tensors(components[name].inputs)) for name in graph.stages}
        self.outputs = {name: self._outputs_of(name) for name in graph.stages}
        self.resets: list[Callable[[], None]] = [outputs.reset for outputs in self.outputs.values()]
        for name, stage in graph.stages.items():
            check_inputs(name, stage, self._targets[name])
        reads = {
            f"pipeline.stages.{name}.{part}.{key}": (edge, self._targets[name][key], name, key)
            for name, stage in graph.stages.items()
            for part, edges in (("inputs", stage.inputs), ("again", stage.again))
            for key, edge in edges.items()
            if isinstance(edge, Read) and edge.name in graph.sources
        }
        readers = {(edge.name, edge.path): (stage, key) for edge, _, stage, key in reads.values()}
        shapes = {where: (edge, target) for where, (edge, target, _, _) in reads.items()}
        self._arrays = {
            name: source_arrays(
                name,
                source,
                shapes_of(name, shapes),
                ticks,
                seed,
                lambda path, name=name: examples_of(components[readers[name, path][0]], readers[name, path][1], seed),
            )
            for name, source in graph.sources.items()
        }

    def _outputs_of(self, name: str) -> Outputs:
        own = self._graph.stages[name].again.values()
        edges = [
            edge
            for other, stage in self._graph.stages.items()
            for edge in stage.reads()
            if edge.name == name and (edge.before or other != name or edge not in own)
        ]
        keep = self._depth + any(edge.before for edge in edges)
        return Outputs(name, edges, [edge for edge in self._graph.deliver if edge.name == name], keep)

    def writes(self, name: str) -> tuple[list[Write], list[Write]]:
        """Return what writes the inputs of a stage before its first and before its further calls in a tick."""
        stage = self._graph.stages[name]
        first = {
            key: self._write(name, "inputs", key, edge, changes=key in stage.again)
            for key, edge in stage.inputs.items()
        }
        again = {key: self._write(name, "again", key, edge, changes=True) for key, edge in stage.again.items()}
        lists = [key for key, edge in stage.inputs.items() if isinstance(edge, Fixed) and len(edge.values) > 1]
        further = [*again.values(), *(first[key] for key in lists if key not in again)]
        return [write for write in first.values() if write], [write for write in further if write]

    def _write(self, name: str, part: str, key: str, edge: Edge, *, changes: bool) -> Write | None:
        """Return what writes an input; `changes`: other edges write it too. None: nothing has to be written."""
        where, target = f"pipeline.stages.{name}.{part}.{key}={edge}", self._targets[name][key]
        if isinstance(edge, Draw) and edge.distribution == DRAWN:
            rows = examples_of(self._components[name], key, self._seed)
            return lambda tick, output: target.copy_(rows[tick % len(rows)])
        if isinstance(edge, Draw):
            place = edge.key or (f"{name}.{key}" if part == "inputs" else f"{name}.again.{key}")
            seed = self._seed ^ zlib.crc32(place.encode())
            draw = DrawFeed(where, edge, target, self._narrow, seed)
            self.resets.append(draw.reset)
            return lambda tick, output: draw()
        if isinstance(edge, Fixed):
            if not edge.values:
                kept = target.clone()
                restore: Write = lambda tick, output: target.copy_(kept)  # noqa: E731 - one of three kinds of write
                return restore if changes else None
            constant = _Values(edge.values, target, once=not changes and len(edge.values) == 1)
            self.resets.append(constant.reset)
            return constant
        if edge.name in self._graph.sources:
            values, period = self._arrays[edge.name][edge.path], self._graph.sources[edge.name].period
            feed = Feed(where, values, period, target, self._narrow, self._depth, once=not changes)
            self.resets.append(feed.reset)
            return lambda tick, output: feed(tick)
        if part == "again" and edge.name == name and not edge.before:
            return _Own(where, edge, target)
        return _Handover(where, edge, target, self.outputs[edge.name])


def check_inputs(name: str, stage: Stage, targets: Mapping[str, Tensor]) -> None:
    """Check that every input of a component has an edge, and every edge an input.

    Raises:
        InputError: one of the two is missing.

    """
    where = f"pipeline.stages.{name}.inputs"
    for key in stage.inputs:
        if key not in targets:
            raise InputError(
                f"{where}.{key}: {stage.component} has no such input, only {', '.join(targets)}."
                f"{did_you_mean(key, targets)}"
            )
    for key in targets:
        if key not in stage.inputs:
            raise InputError(
                f"{where}: {stage.component} also takes {key}. Give it an edge; {key}: fixed keeps what the "
                "component's YAML draws."
            )


class _Values:
    """Writes constant values, one for each call in turn; `once`: only in the first call after a reset."""

    def __init__(self, values: Sequence[float], target: Tensor, *, once: bool) -> None:
        self._values, self._target, self._once = values, target, once
        self.reset()

    def reset(self) -> None:
        """Begin with the first value."""
        self._number = 0

    def __call__(self, _tick: int, _output: Any) -> None:
        """Write the next value."""
        if not self._once or not self._number:
            self._target.fill_(self._values[self._number % len(self._values)])
        self._number += 1


class _Handover:
    """Copies a tensor of another stage into an input, zeros while that stage has not run."""

    def __init__(self, where: str, edge: Read, target: Tensor, outputs: Outputs) -> None:
        self._where, self._edge, self._target, self._outputs = where, edge, target, outputs
        self._checked = False

    def __call__(self, _tick: int, _output: Any) -> None:
        """Copy."""
        tensor = self._outputs.get(self._edge.path, before=self._edge.before)
        if tensor is None:
            self._target.zero_()
            return
        if not self._checked:
            check_handover(self._where, tensor, self._target)
            self._checked = True
        self._target.copy_(tensor)


class _Own:
    """Copies a tensor of the stage's own call before into an input."""

    def __init__(self, where: str, edge: Read, target: Tensor) -> None:
        self._where, self._edge, self._target = where, edge, target
        self._keys: Keys | None = None

    def __call__(self, _tick: int, output: Any) -> None:
        """Copy."""
        if self._keys is None:
            keys = keys_of(self._edge, output)
            check_handover(self._where, tensor_at(output, keys), self._target)
            self._keys = keys
        self._target.copy_(tensor_at(output, self._keys))


def check_handover(where: str, tensor: Tensor, target: Tensor) -> None:
    """Check that an output fits an input: copying would broadcast some shapes, and cast any dtype, silently.

    Raises:
        InputError: shapes, devices, or the kinds of dtype differ.

    """
    same_kind = tensor.dtype == target.dtype or (tensor.is_floating_point() and target.is_floating_point())
    if tensor.shape != target.shape or tensor.device != target.device or not same_kind:
        taken, given = (
            f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)} on {each.device}" for each in (target, tensor)
        )
        raise InputError(
            f"{where}: the input takes {taken}, but gets {given}. Name an output or a component that fits."
        )
