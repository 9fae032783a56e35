"""One tick of a pipeline as one network, so that one compilation or one capture covers all of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from profiling.components.component import Component
from profiling.components.state import State
from profiling.components.trees import children, dotted, map_tensors, named_tensors, tensors_in
from profiling.errors import InputError
from profiling.realtime.assemble import check_handover, check_inputs
from profiling.realtime.graph import WHOLE, Edge, Fixed, Graph, Read, Stage
from profiling.realtime.pipeline import Keys, keys_of, tensor_at


def as_one_stage(graph: Graph, components: Mapping[str, Component]) -> tuple[Graph, Component]:
    """Return the graph whose one stage, `whole`, is a tick of `graph`, and the component of that stage.

    Its inputs are those that sources and noise write, as `STAGE__INPUT`, and its outputs those that are delivered.

    Raises:
        InputError: the graph does not compute the same in every tick, or an edge does not fit.

    """
    for name, stage in graph.stages.items():
        check_inputs(name, stage, components[name].inputs)
        if stage.every > 1:
            raise InputError(
                f"loop.schedule=one_graph: the stage {name} has every={stage.every}, and one graph of all stages "
                "cannot skip one. Use loop.schedule=sequential or overlap, or run the stage in each tick: "
                f"pipeline.stages.{name}.every=1."
            )
        if components[name].warmup_inputs:
            raise InputError(
                f"loop.schedule=one_graph: the component of the stage {name} has warmup_inputs, which one graph of all "
                "stages cannot run alone. Use loop.schedule=sequential or overlap."
            )
    module = WholeTick(graph, components).eval()
    inputs: dict[str, Edge] = {}
    for name, stage in graph.stages.items():
        for outer, (key, call, edge) in module.outside(name, stage).items():
            place = f"{name}.{key}" + f"__{call}" * (call > 0)  # as the draw of a stage of its own, but for its calls
            inputs[outer] = edge if isinstance(edge, Read | Fixed) else replace(edge, key=place)
    first = next(iter(components.values()))
    whole = replace(
        first,
        name=WHOLE,
        module=module,
        inputs=module.gathered({name: component.inputs for name, component in components.items()}),
        # Each component draws from the same seed, as it does where it is a stage of its own.
        make_inputs=lambda generator: module.gathered(
            {
                name: component.make_inputs(torch.Generator(generator.device).manual_seed(generator.initial_seed()))
                for name, component in components.items()
            }
        ),
        extra_inputs=(),
        priority=0,
        kind=None,
        policy="reset",  # each stage by its own
        warm_calls=0,  # the stages have made theirs
        advances={},
        kept=State(module, {}, "none"),  # replaced: of another policy
    )
    stage = Stage(component=WHOLE, inputs=inputs, again={})
    delivered = (Read(WHOLE),)
    return replace(graph, stages={WHOLE: stage}, deliver=delivered), whole


class WholeTick(nn.Module):
    """All stages of a tick as one module, so that one compilation or capture covers them.

    Eagerly on a GPU, stages that do not read each other run on streams of their own, in parallel.

    The output of the tick before is kept in buffers, which are zeros after a reset.
    """

    def __init__(self, graph: Graph, components: Mapping[str, Component]) -> None:
        super().__init__()
        self._graph = graph
        self._inputs = {name: dict(component.inputs) for name, component in components.items()}
        self._targets = {name: dict(named_tensors(inputs)) for name, inputs in self._inputs.items()}
        # By stage and argument: the paths of the tensors in it, in their order.
        self._paths = {
            name: {key: tuple(path for path, _ in named_tensors({key: each})) for key, each in inputs.items()}
            for name, inputs in self._inputs.items()
        }
        self._modules_by_stage: dict[str, Any] = {name: component.module for name, component in components.items()}
        self.components = dict(components)
        self._keys: dict[Read, Keys] = {}
        self._delivered_keys: dict[Read, Keys] = {}
        self._lanes = _lanes(graph)
        self._cuda = next(iter(components.values())).device.type == "cuda"
        for name, stage in graph.stages.items():
            self.add_module(name, components[name].module)
            for part, edges in (("inputs", stage.inputs), ("again", stage.again)):
                for key, edge in edges.items():
                    target = self._targets[name][key]
                    if isinstance(edge, Fixed) and edge.values:
                        values = torch.stack([torch.full_like(target, value) for value in edge.values])
                        self.register_buffer(_name_of(part, name, key), values, persistent=False)
                    elif isinstance(edge, Read) and edge.before:
                        self.register_buffer(_name_of(part, name, key), torch.zeros_like(target), persistent=False)

    def outside(self, name: str, stage: Stage) -> dict[str, tuple[str, int, Edge]]:
        """Return (path of the input, call in the tick, edge), by name, of the edges that are inputs of the whole."""
        edges = {_name_of(name, key): (key, 0, edge) for key, edge in stage.inputs.items() if self._is_outside(edge)}
        for key, edge in stage.again.items():
            if self._is_outside(edge):
                edges |= {_name_of(name, key, str(call)): (key, call, edge) for call in range(1, stage.repeat)}
        return edges

    def gathered(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the inputs of the whole out of those of the stages."""
        tensors = {name: dict(named_tensors(each)) for name, each in inputs.items()}
        return {
            outer: tensors[name][key].clone()
            for name, stage in self._graph.stages.items()
            for outer, (key, _, _) in self.outside(name, stage).items()
        }

    def _is_outside(self, edge: Edge) -> bool:
        if isinstance(edge, Read):
            return edge.name in self._graph.sources
        return not (isinstance(edge, Fixed) and edge.values)

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that a call changes in place: those of the stages, and the outputs of the tick before."""
        tensors = self.tick_before()
        for module in self._modules_by_stage.values():
            tensors += module.state_tensors() if hasattr(module, "state_tensors") else module.buffers()
        return tuple(tensors)

    def tick_before(self) -> list[Tensor]:
        """Return the buffers that keep the output of the tick before."""
        return [tensor for _, _, _, tensor in self._before()]

    def reset(self) -> None:
        """Reset the stages that have state, in place, and forget the tick before."""
        for tensor in self.tick_before():
            tensor.zero_()
        for component in self.components.values():
            component.reset()

    def _before(self) -> list[tuple[str, str, Read, Tensor]]:
        """Return (stage, input, edge, buffer) of the edges that read the tick before."""
        return [
            (name, key, edge, self.get_buffer(_name_of(part, name, key)))
            for name, stage in self._graph.stages.items()
            for part, edges in (("inputs", stage.inputs), ("again", stage.again))
            for key, edge in edges.items()
            if isinstance(edge, Read) and edge.before
        ]

    def forward(self, **inputs: Any) -> dict[str, Any]:
        """Return the delivered outputs by stage; `inputs` are those of `outside`."""
        outputs: dict[str, Any] = {}
        if self._cuda and not torch.compiler.is_compiling() and any(self._lanes.values()):
            self._in_parallel(inputs, outputs)
        else:
            for name in self._graph.stages:
                outputs[name] = self._call(name, inputs, outputs)
        for name, key, edge, buffer in self._before():
            buffer.copy_(self._read(f"pipeline.stages.{name}.inputs.{key}={edge}", edge, outputs[edge.name], buffer))
        return {str(edge).replace(".", "_"): self._delivered(edge, outputs[edge.name]) for edge in self._graph.deliver}

    def _delivered(self, edge: Read, output: Any) -> Any:
        """Return what an edge delivers: the whole output, one of its tensors, or a part that holds several."""
        if edge not in self._delivered_keys:  # in the first, eager call
            self._delivered_keys[edge] = _part_keys(edge, output)
        return tensor_at(output, self._delivered_keys[edge])

    def _call(self, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        stage, module = self._graph.stages[name], self._modules_by_stage[name]
        values: dict[str, Tensor] = {}
        output = None
        for call in range(stage.repeat):
            for part, edges in (("inputs", stage.inputs),) if call == 0 else (("again", stage.again),):
                for key, edge in edges.items():
                    values[key] = self._value(name, part, key, edge, call, inputs, outputs, output)
            for key, edge in stage.inputs.items():
                if call and isinstance(edge, Fixed) and len(edge.values) > 1:
                    values[key] = self.get_buffer(_name_of("inputs", name, key))[call]
            output = module(**self._arguments(name, values))
        return output

    def _arguments(self, name: str, values: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the arguments of a stage with these tensors, by path, in the place of its own."""
        arguments = dict(self._inputs[name])
        for key, paths in self._paths[name].items():
            if paths == (key,):
                arguments[key] = values[key]
            elif paths:
                fresh = [values[path] for path in paths][::-1]
                arguments[key] = map_tensors(lambda _, fresh=fresh: fresh.pop(), arguments[key])
        return arguments

    def _value(
        self,
        name: str,
        part: str,
        key: str,
        edge: Edge,
        call: int,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        own: Any,
    ) -> Tensor:
        if self._is_outside(edge):
            return inputs[_name_of(name, key) if part == "inputs" else _name_of(name, key, str(call))]
        if isinstance(edge, Fixed):
            return self.get_buffer(_name_of(part, name, key))[0]
        assert isinstance(edge, Read)
        if edge.before:
            return self.get_buffer(_name_of(part, name, key))
        output = own if edge.name == name else outputs[edge.name]
        return self._read(f"pipeline.stages.{name}.{part}.{key}={edge}", edge, output, self._targets[name][key])

    def _read(self, where: str, edge: Read, output: Any, target: Tensor) -> Tensor:
        if edge not in self._keys:  # in the first, eager call
            keys = keys_of(edge, output)
            check_handover(where, tensor_at(output, keys), target)
            self._keys[edge] = keys
        return tensor_at(output, self._keys[edge]).to(target.dtype)

    def _in_parallel(self, inputs: Mapping[str, Any], outputs: dict[str, Any]) -> None:
        """Run each stage on the stream of its lane; lane 0 is the current stream."""
        current = torch.cuda.current_stream()
        priorities = {lane: self._graph.stages[name].priority for name, lane in reversed(self._lanes.items())}
        streams = {
            lane: _side_stream(current.device, lane, priority) if lane else current
            for lane, priority in priorities.items()
        }
        for lane, stream in streams.items():
            if lane:
                stream.wait_stream(current)
        ends: dict[str, Any] = {}
        for name, stage in self._graph.stages.items():
            stream = streams[self._lanes[name]]
            with torch.cuda.stream(stream):
                for edge in stage.reads():
                    if edge.name in ends and not edge.before and self._lanes[edge.name] != self._lanes[name]:
                        stream.wait_event(ends[edge.name])
                        for tensor in tensors_in(outputs[edge.name]):
                            tensor.record_stream(stream)
                outputs[name] = self._call(name, inputs, outputs)
                ends[name] = stream.record_event()
        for lane, stream in streams.items():
            if lane:
                current.wait_stream(stream)
        for name, lane in self._lanes.items():
            if lane:
                for tensor in tensors_in(outputs[name]):
                    tensor.record_stream(current)


def _name_of(*parts: str) -> str:
    """Return the name of an input or a buffer of the whole, which may have no dot."""
    return "__".join(parts).replace(".", "__")


def _part_keys(edge: Read, output: Any) -> Keys:
    """Return the keys that lead from `output` to the part of it that an edge delivers.

    Raises:
        InputError: there is no such part.

    """
    keys: Keys = ()
    part = output
    for name in edge.path.split(".") if edge.path else ():
        entries: dict[str, Any] = {dotted((key,)): (key, value) for key, value in children(part) or ()}
        if name not in entries:
            return keys_of(edge, output)  # raises
        key, part = entries[name]
        keys = (*keys, key)
    return keys


def _lanes(graph: Graph) -> dict[str, int]:
    """Return the lane of each stage: that of a stage that it reads and none follows yet, else a new one."""
    lanes: dict[str, int] = {}
    followed: set[str] = set()
    for name, stage in graph.stages.items():
        read = [edge.name for edge in stage.reads() if edge.name in lanes and not edge.before]
        free = next((other for other in read if other not in followed), None)
        lanes[name] = len(set(lanes.values())) if free is None else lanes[free]
        followed |= {free} if free is not None else set()
    return lanes


@cache
def _side_stream(device: torch.device, lane: int, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)
