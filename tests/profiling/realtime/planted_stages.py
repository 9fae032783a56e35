"""Pipelines of tiny stages whose every output is known by hand, and a detector of races between streams."""

from contextlib import contextmanager

import torch
from torch import nn

from profiling.components.component import Component
from profiling.realtime.assemble import assemble
from profiling.realtime.graph import parse_graph
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import Outputs, StageRun
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


class Accumulates(nn.Module):
    """Adds a third to its state in each call, in the dtype of its weight, and returns the state and the input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("state", torch.zeros(1, 1))

    def forward(self, x):
        self.state += (torch.ones_like(self.state) / 3).to(self.layer.weight.dtype)
        return self.state + 0 * x


class AccumulatesAnew(Accumulates):
    """As above, with a method that begins anew."""

    def reset(self):
        self.state.zero_()


def component(name, module, shape=SHAPE, device="cpu", memory="cpu"):
    inputs = {each: torch.zeros(shape, device=memory) for each in module.names}
    return Component(
        name=name,
        module=module.eval(),
        inputs=inputs,
        make_inputs=lambda generator: {
            each: torch.randn(shape, generator=generator, device=memory) for each in module.names
        },
        device=torch.device(device),
        dtype=torch.float32,
        frames_per_call=1,
        weights="random",
    )


def planted(stages, sources=None, deliver=None, device="cpu", memory="cpu", **keys):
    """Return (graph, components): each stage is an Affine with the inputs that its node names.

    With `device` cuda, stages overlap; their tensors are in `memory`, which needs no GPU if it is cpu.
    """
    options = {name: node.get("affine", {}) for name, node in stages.items()}
    nodes = {
        name: {"component": "affine", **{key: value for key, value in node.items() if key != "affine"}}
        for name, node in stages.items()
    }
    graph = parse_graph(
        {"stages": nodes, "sources": sources or {}, "deliver": deliver or list(stages)[-1:], **keys}, ["affine"]
    )
    components = {
        name: component(name, Affine(list(stage.inputs), **options[name]), device=device, memory=memory)
        for name, stage in graph.stages.items()
    }
    return graph, components


def pipeline_of(graph, components, **options):
    return assemble(
        graph,
        components,
        {name: each.call for name, each in components.items()},
        LoopOptions(**options),
        ticks=64,
        seed=0,
        narrow=torch.float32,
    )


def delivered(pipeline, ticks):
    """Return what is delivered in each of `ticks` (a range), by name: the first number of each tensor."""
    values = []

    def collect(tick, _ms):
        values.append({name: float(tensor.flatten()[0]) for name, tensor in pipeline.delivered(tick).items()})
        return {}

    with torch.inference_mode():
        FrameLoop(pipeline, Clock(), collect, depth=pipeline.depth).run(ticks, lambda row: None)
    return values


class Races:
    """Streams and events without a device: records what is ordered before what, and finds unordered accesses.

    An operation is ordered after all earlier ones of its stream, after those before an event that its stream waits for,
    and after those that the host has synchronized with.
    """

    def __init__(self):
        self.host, self.stream = set(), self.Stream(self)
        self.main, self.ops, self.accesses, self.found = self.stream, 0, {}, []
        self.op = None

    class Stream:
        def __init__(self, races=None, **_options):
            self.before = set()

    def make_stream(self, _device, priority=0):
        return self.Stream()

    @contextmanager
    def on(self, stream):
        outer, self.stream = self.stream, stream
        yield
        self.stream = outer

    def make_event(self, enable_timing=False):
        races = self

        class Event:
            before = frozenset()

            def record(self):
                self.before = frozenset(races.stream.before | races.host)

            def wait(self):
                races.stream.before |= self.before

            def synchronize(self):
                races.host |= self.before

            def query(self):
                return True

            def elapsed_time(self, end):
                assert end.before <= races.host, "the device may not have passed the event"
                return 1.0

        return Event()

    def access(self, where, kind):
        for other, other_kind in self.accesses.get(where, []):
            if "write" in (kind, other_kind) and other[0] not in self.op_before and other != self.op:
                self.found.append(f"{self.op} {kind}s {where} beside the {other_kind} of {other}")
        self.accesses.setdefault(where, []).append((self.op, kind))

    def install(self, monkeypatch):
        """Replace streams and events of torch, and watch every access to the outputs of stages."""
        run, store, get = StageRun.run, Outputs.store, Outputs.get

        def watched_run(stage, tick):
            self.ops += 1
            self.op, self.op_before = (self.ops, stage.name, tick), self.stream.before | self.host
            run(stage, tick)
            self.stream.before |= {self.ops} | self.host

        def watched_store(outputs, output):
            store(outputs, output)
            self.access((outputs._stage, (outputs.runs - 1) % outputs._keep), "write")

        def watched_get(outputs, path, *, before=False):
            runs = outputs._before if before else outputs.runs
            if runs and self.op is not None:
                self.access((outputs._stage, (runs - 1) % outputs._keep), "read")
            return get(outputs, path, before=before)

        monkeypatch.setattr(torch.cuda, "Event", self.make_event)
        monkeypatch.setattr(torch.cuda, "Stream", self.make_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(StageRun, "run", watched_run)
        monkeypatch.setattr(Outputs, "store", watched_store)
        monkeypatch.setattr(Outputs, "get", watched_get)


def counting(shapes, ticks, seed):
    """Return a source whose value is the number of its tick."""
    return {key: torch.arange(64.0).reshape(64, 1, 1).expand(64, *shape) for key, shape in shapes.items()}
