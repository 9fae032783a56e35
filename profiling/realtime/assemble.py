"""Assembles a pipeline from a graph and prepared steps: who writes each input, on which stream, after which stage."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import KeyPath, key_get

from profiling.components.component import Component
from profiling.components.sides import Start
from profiling.components.trees import named_tensors
from profiling.errors import InputError, did_you_mean
from profiling.realtime.graph import DELIVER, DRAWN, Draw, Edge, Fixed, Read, Stage
from profiling.realtime.pipeline import Delivered, Outputs, StagedPipeline, StageRun, Write, keys_of
from profiling.realtime.plan import LoopOptions, Plan
from profiling.realtime.sources import Arrays, DrawFeed, Feed, examples_of, source_arrays

#: How stages are played eagerly: in turn, and left on the device.
EAGER = LoopOptions(deliver="device")


def assemble(
    plan: Plan,
    components: Mapping[str, Component],
    steps: Mapping[str, Callable[[], Any]] | None = None,
    starts: Mapping[str, Start] | None = None,
) -> StagedPipeline:
    """Return the pipeline of a plan, whose stages call `steps`; None: eagerly, in turn, and left on the device.

    Values are drawn and read in the run's dtype, also by a float32 reference. A session begins with S0 of every
    component, that of `starts` where it is given.

    Raises:
        InputError: an edge does not fit the inputs of its stage. What an output does not fit is said in the first tick.

    """
    graph, options = plan.graph, EAGER if steps is None else plan.options
    calls = {name: component.call for name, component in components.items()} if steps is None else steps
    device = next(iter(components.values())).device
    overlapping = options.schedule == "overlap" and device.type == "cuda"  # a CPU runs the stages in turn
    depth = 2 if overlapping else 1
    assembler = _Assembler(plan, components, depth)
    runs: dict[str, StageRun] = {}
    for number, (name, stage) in enumerate(graph.stages.items()):
        # The first stage stays on the stream of the loop, as it does where stages run in turn.
        stream = torch.cuda.Stream(device, priority=stage.priority) if overlapping and number else None
        first, again = assembler.writes(name)
        runs[name] = StageRun(
            name, calls[name], assembler.outputs[name], first, again, stage.every, stage.repeat, stream
        )
    for name, stage in graph.stages.items():
        others = dict.fromkeys((edge.name, edge.before) for edge in stage.reads() if edge.name in runs)
        stream = runs[name].stream
        runs[name].waits = [(runs[other], before) for other, before in others if runs[other].stream is not stream]
    delivered = Delivered(graph, assembler.outputs, depth, on_host=options.deliver == "host")
    sequence = list(runs.values())
    if graph.deliver and options.deliver == "host":
        last = list(dict.fromkeys(edge.name for edge in graph.deliver))
        nothing = Outputs(DELIVER, [], [], keep=1)
        deliver = StageRun(DELIVER, lambda: None, nothing, [delivered.copy], stream=runs[last[0]].stream)
        deliver.waits = [(runs[name], False) for name in last if runs[name].stream is not deliver.stream]
        sequence.append(deliver)
    resets = [partial(_reset, each, None if starts is None else starts[name]) for name, each in components.items()]
    return StagedPipeline(sequence, [*resets, *assembler.resets], delivered, device=device, depth=depth)


def _reset(component: Component, start: Start | None) -> None:
    """Put S0 back, that of `start` where it is given."""
    component.reset()
    if start is not None and component.policy == "reset":  # which has computed it anew
        start.load(component)


class _Assembler:
    """Makes the functions that write each stage's inputs, and the stored outputs that they read."""

    def __init__(self, plan: Plan, components: Mapping[str, Component], depth: int) -> None:
        self._graph = graph = plan.graph
        self._seed, self._narrow = plan.settings.seed, getattr(torch, plan.settings.dtype)
        self._components, self._depth = components, depth
        self._targets = {name: dict(named_tensors(components[name].inputs)) for name in graph.stages}
        self.outputs = {name: self._outputs_of(name) for name in graph.stages}
        self.resets: list[Callable[[], object]] = [outputs.reset for outputs in self.outputs.values()]
        for name, stage in graph.stages.items():
            check_inputs(name, stage, components[name].inputs)
        self._arrays = {name: self._arrays_of(name, plan.ticks) for name in graph.sources}

    def _arrays_of(self, source: str, ticks: int) -> Arrays:
        """Return the values of a source, in the shapes of the inputs that read it.

        Raises:
            InputError: the source cannot give what is read.

        """
        readers = {
            edge.path: (name, key)
            for name, stage in self._graph.stages.items()
            for _, key, edge in stage.edges()
            if isinstance(edge, Read) and edge.name == source
        }
        shapes = {path: tuple(self._targets[name][key].shape) for path, (name, key) in readers.items()}

        def examples(path: str) -> Tensor:
            stage, key = readers[path]
            return examples_of(self._components[stage], key, self._seed)

        return source_arrays(source, self._graph.sources[source], shapes, ticks, self._seed, examples)

    def _outputs_of(self, name: str) -> Outputs:
        edges = [edge for stage in self._graph.stages.values() for edge in stage.reads() if edge.name == name]
        keep = self._depth + any(edge.before for edge in edges)
        return Outputs(name, edges, [edge for edge in self._graph.deliver if edge.name == name], keep)

    def writes(self, name: str) -> tuple[list[Write], list[Write]]:
        """Return the functions that write a stage's inputs: before its first call in a tick, before the others."""
        stage = self._graph.stages[name]
        first = {
            key: self._write(name, "inputs", key, edge, changes=key in stage.again)
            for key, edge in stage.inputs.items()
        }
        again = {key: self._write(name, "again", key, edge, changes=True) for key, edge in stage.again.items()}
        lists = [key for key, edge in stage.inputs.items() if isinstance(edge, Fixed) and len(edge.values) > 1]
        further = [*again.values(), *(first[key] for key in lists)]
        return [write for write in first.values() if write], [write for write in further if write]

    def _write(self, name: str, part: str, key: str, edge: Edge, *, changes: bool) -> Write | None:
        """Return what writes an input; `changes`: other edges write it too. None: nothing has to be written."""
        where, target = f"pipeline.stages.{name}.{part}.{key}={edge}", self._targets[name][key]
        if isinstance(edge, Draw) and edge.distribution == DRAWN:
            rows = examples_of(self._components[name], key, self._seed)
            return lambda tick, output: target.copy_(rows[tick % len(rows)])
        if isinstance(edge, Draw):
            place = f"{name}.{key}" if part == "inputs" else f"{name}.again.{key}"
            write = DrawFeed(where, edge, target, self._narrow, self._seed ^ zlib.crc32(place.encode()))
        elif isinstance(edge, Fixed):
            return self._fixed(edge, target, changes=changes)
        elif isinstance(edge, Read) and edge.name in self._graph.sources:
            values, period = self._arrays[edge.name][edge.path], self._graph.sources[edge.name].period
            write = Feed(where, values, period, target, self._narrow, self._depth, once=not changes)
        else:
            assert isinstance(edge, Read)
            return _Handover(where, edge, target, None if edge.own else self.outputs[edge.name])
        self.resets.append(write.reset)
        return write

    def _fixed(self, edge: Fixed, target: Tensor, *, changes: bool) -> Write | None:
        if not edge.values:
            kept = target.clone()
            return (lambda tick, output: target.copy_(kept)) if changes else None
        value, *others = edge.values
        if changes or others:
            values = cycle(edge.values)  # a run of the stage takes all of them
            return lambda tick, output: target.fill_(next(values))
        self.resets.append(partial(target.fill_, value))
        target.fill_(value)
        return None


def check_inputs(name: str, stage: Stage, inputs: Mapping[str, Any]) -> None:
    """Check that every tensor in the inputs of a component has an edge, and every edge such a tensor.

    Raises:
        InputError: one of the two is missing.

    """
    where = f"pipeline.stages.{name}.inputs"
    targets = dict(named_tensors(inputs))
    with_tensors = {path.partition(".")[0] for path in targets}
    for key in stage.inputs:
        if key not in targets:
            if (argument := key.partition(".")[0]) in inputs and argument not in with_tensors:
                raise InputError(
                    f"{where}.{key}: an edge writes to a tensor, and {argument} holds none: it stays as the YAML of "
                    f"{stage.component} says. Remove the edge."
                )
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


class _Handover:
    """Copies a tensor of another stage into an input, zeros while that stage has not run.

    `outputs` are those of the other stage; None: the tensor is one of the stage's own call before.

    Raises:
        InputError: in the first call: an output does not fit the input.

    """

    def __init__(self, where: str, edge: Read, target: Tensor, outputs: Outputs | None) -> None:
        self._where, self._edge, self._target, self._outputs = where, edge, target, outputs
        self._keys: KeyPath | None = None  # of the stage's own output
        self._checked = False

    def __call__(self, _tick: int, output: Any) -> None:
        if self._outputs is not None:
            tensor = self._outputs.get(self._edge.path, before=self._edge.before)
        else:
            self._keys = keys_of(self._edge, output) if self._keys is None else self._keys
            tensor = key_get(output, self._keys)
        if tensor is None:
            self._target.zero_()
            return
        if not self._checked:
            self._check(tensor)
            self._checked = True
        self._target.copy_(tensor)

    def _check(self, tensor: Tensor) -> None:
        """Refuse what does not fit: copying would broadcast some shapes, and cast any dtype, silently."""
        target = self._target
        same_kind = tensor.dtype == target.dtype or (tensor.is_floating_point() and target.is_floating_point())
        if tensor.shape != target.shape or tensor.device != target.device or not same_kind:
            taken, given = (
                f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)} on {each.device}"
                for each in (target, tensor)
            )
            raise InputError(
                f"{self._where}: the input takes {taken}, but gets {given}. Name an output or a component that fits."
            )
