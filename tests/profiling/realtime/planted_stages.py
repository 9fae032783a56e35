"""Pipelines of tiny stages whose every output is known by hand."""

from dataclasses import replace

import torch
from playing import component_of
from torch import nn

from profiling.components.spec import Settings
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import parse_graph
from profiling.realtime.plan import LoopOptions, Plan
from profiling.realtime.play import Clock, FrameLoop

SHAPE = (1, 2)


class Affine(nn.Module):
    """Returns `factor` times the sum of its inputs, plus one, and counts its calls."""

    def __init__(self, inputs, factor=1.0, split=False, sleep_ms=0):
        super().__init__()
        self.names, self.factor, self.split, self.sleep_ms, self.calls = inputs, factor, split, sleep_ms, 0

    def forward(self, **inputs):
        self.calls += 1
        if self.sleep_ms:  # on a GPU: whoever reads too early reads what was there before
            torch.cuda._sleep(int(self.sleep_ms * 1_500_000))
        total = self.factor * sum(inputs[name] for name in self.names) + 1
        return {"half": total / 2, "whole": total} if self.split else total


def planted(stages, sources=None, deliver=None, device="cpu", memory="cpu"):
    """Return (graph, components): each stage is an Affine with the inputs that its node names.

    With `device` cuda, stages overlap; their tensors are in `memory`, which needs no GPU if it is cpu.
    """
    nodes = {name: {"component": "affine", **node} for name, node in stages.items()}
    options = {name: node.pop("affine", {}) for name, node in nodes.items()}
    node = {"stages": nodes, "sources": sources or {}, "deliver": deliver or list(stages)[-1:]}
    graph = parse_graph(node, ["affine"])

    def component(name, inputs):
        def make(generator):
            drawn = (torch.randn(SHAPE, generator=generator, device=generator.device) for _ in inputs)
            return {each: tensor.to(memory) for each, tensor in zip(inputs, drawn, strict=True)}

        module = Affine(list(inputs), **options[name]).eval()
        return replace(component_of(module, make), name=name, device=torch.device(device))

    return graph, {name: component(name, stage.inputs) for name, stage in graph.stages.items()}


def pipeline_of(graph, components, **options):
    calls = {name: each.call for name, each in components.items()}
    return assemble(Plan(graph, LoopOptions(**options), Settings(dtype="float32"), 64), components, calls)


def delivered(pipeline, ticks, rows=None):
    """Return what is delivered in each of `ticks` (a range), by name: the first number of each tensor."""
    values = []

    def collect(tick, _ms):
        values.append({name: float(tensor.flatten()[0]) for name, tensor in pipeline.delivered(tick).items()})
        return {}

    record = (lambda row: None) if rows is None else rows.append
    with torch.inference_mode():
        FrameLoop(pipeline, Clock(), collect).run(ticks, record)
    return values
