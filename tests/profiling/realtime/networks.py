"""The tiny networks of a shipped pipeline, prepared in this process."""

from functools import cache
from pathlib import Path

import torch

from profiling.cli.app import CONF, compose_config
from profiling.components.build import build
from profiling.components.instantiate import instantiate
from profiling.components.spec import Settings
from profiling.realtime.__main__ import checked
from profiling.realtime.loop import Loop
from profiling.realtime.options import LoopOptions
from profiling.realtime.play import Clock, FrameLoop

TICKS = 200
VARIANTS = "variant=[baseline,compile,cuda_graph,compile+cuda_graph]"


@cache
def composed(*overrides):
    return compose_config("realtime", overrides, [CONF])


def tiny_pipeline(*overrides):
    """Return (graph, specs by stage) of a pipeline at scale tiny."""
    config, graph = checked(composed(*overrides))
    specs = {spec.name: spec.at("tiny") for spec in config.components}
    return graph, {name: specs[stage.component] for name, stage in graph.stages.items()}


def built(specs, settings):
    return {name: build(spec, settings) for name, spec in specs.items()}


def tiny_settings(device="cpu", dtype="float32"):
    return Settings(device=device, dtype=dtype, scale="tiny", checkpoint="random")


def tiny_loop(*overrides, device="cpu", variant="baseline", dtype="float32", **options):
    """Return (pipeline, what it was prepared with, function that closes the steps)."""
    config, _ = checked(composed(VARIANTS))
    settings, chosen = tiny_settings(device, dtype), LoopOptions(**options)
    graph, specs = tiny_pipeline(*overrides)
    loop = Loop(graph, chosen, settings, TICKS)
    prepared = loop.sides(lambda: built(specs, settings))
    with torch.inference_mode():
        by = instantiate(config.variants[variant], "variant")
        steps = {name: by(each, Path("unused")) for name, each in prepared.components.items()}
        runs = {name: step.run for name, step in steps.items()}
        pipeline = loop.pipeline(prepared.components, runs)
        pipeline.reset()
    return pipeline, prepared, lambda: [step.close() for step in reversed(steps.values())]


@torch.inference_mode()
def played(pipeline, frames):
    """Return the delivered tensors [frames, ...] in their order, in host memory."""
    ticks = []

    def collect(tick, _ms):
        ticks.append([tensor.cpu().clone() for tensor in pipeline.delivered(tick).values()])
        return {}

    FrameLoop(pipeline, Clock(), collect, depth=pipeline.depth).run(range(frames), lambda row: None)
    return [torch.stack(each) for each in zip(*ticks, strict=True)]


def delivered(frames, *overrides, **options):
    """Return what a pipeline delivers that is prepared for these frames alone."""
    pipeline, _, close = tiny_loop(*overrides, **options)
    tensors = played(pipeline, frames)
    close()
    return tensors
