"""The tiny networks of the loop, prepared in this process."""

from functools import cache
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from profiling.cli.app import CONF, register_resolvers
from profiling.cli.config import read_config
from profiling.components.instantiate import instantiate
from profiling.components.spec import Settings
from profiling.realtime.__main__ import chosen_stages
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import PRIORITIES, assemble, drawn_actions
from profiling.realtime.play import Clock
from profiling.realtime.prepare import build_stages, load_stages, reference_outputs

TINY = Settings(device="cpu", dtype="float32", scale="tiny", checkpoint="random")


@cache
def composed(*overrides):
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base=None):
        return compose("realtime", list(overrides))


def tiny_specs(*overrides):
    return {role: spec.at("tiny") for role, spec in chosen_stages(read_config(composed(*overrides))).items()}


def tiny_loop(device="cpu", variant="baseline", dtype="float32", **options):
    """Return (pipeline, loaded stages, function that closes the steps)."""
    config = read_config(composed("variant=[baseline,compile,cuda_graph,compile_cuda_graph]"))
    settings = Settings(device=device, dtype=dtype, scale="tiny", checkpoint="random")
    specs, chosen = tiny_specs(), LoopOptions(**options)
    whole = chosen.schedule == "one_graph"
    priorities = PRIORITIES if chosen.schedule == "overlap" else {}
    expected = reference_outputs(build_stages(specs, settings), settings, whole=whole)
    with torch.inference_mode():
        blueprints = build_stages(specs, settings)
        loaded = load_stages(blueprints, expected, settings, whole=whole, priorities=priorities)
        by = instantiate(config.variants[variant], "variant")
        steps = {name: by(c, Path("unused")) for name, c in loaded.components.items()}
        for component in loaded.components.values():
            component.reset()
    pipeline = assemble(loaded.components, steps, chosen, drawn_actions(200, 2, 11, 0), 0, Clock())
    return pipeline, loaded, lambda: [step.close() for step in reversed(steps.values())]


@torch.inference_mode()
def delivered(frames, **options):
    """Return pictures and sounds [frames, ...] as they are delivered, in host memory."""
    pipeline, _, close = tiny_loop(**options)
    pictures, sounds, in_flight = [], [], []
    for frame in range(frames + pipeline.depth - 1):
        if frame < frames:
            pipeline.begin(frame)
            in_flight.append(frame)
        if len(in_flight) == pipeline.depth or frame >= frames:
            oldest = in_flight.pop(0)
            pipeline.wait(oldest)
            picture, sound = pipeline.outputs(oldest)
            pictures.append(picture.cpu().clone())
            sounds.append(sound.cpu().clone())
    close()
    return torch.stack(pictures), torch.stack(sounds)
