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
from profiling.realtime.play import WallClock
from profiling.realtime.prepare import blueprints_of, expected_of, parts_of, stage_variant


@cache
def composed(*overrides):
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base=None):
        return read_config(compose("realtime", list(overrides)))


def tiny_loop(device="cpu", variant="baseline", dtype="float32", **options):
    """Return (pipeline, components, references, what closes it)."""
    config = composed("variant=[baseline,compile,cuda_graph,compile_cuda_graph]")
    settings = Settings(device=device, dtype=dtype, scale="tiny", checkpoint="random")
    specs = {role: spec.at("tiny") for role, spec in chosen_stages(config).items()}
    chosen = LoopOptions(**options)
    whole = chosen.schedule == "one_graph"
    expected = expected_of(blueprints_of(specs, settings), settings, whole=whole)
    with torch.inference_mode():
        parts = parts_of(
            blueprints_of(specs, settings),
            expected,
            settings,
            whole=whole,
            priorities=PRIORITIES if chosen.schedule == "overlap" else {},
        )
        made = instantiate(config.variants[variant], "variant")
        steps = {name: stage_variant(made, name)(c, Path("unused")) for name, c in parts.components.items()}
        for component in parts.components.values():
            component.reset()
    pipeline = assemble(parts.components, steps, chosen, drawn_actions(200, 2, 11, 0), 0, WallClock())
    return pipeline, parts, lambda: [step.close() for step in reversed(steps.values())]


@torch.inference_mode()
def played(frames, **how):
    """Return the pictures and sounds of so many frames as the player gets them, in host memory."""
    pipeline, _, close = tiny_loop(**how)
    pictures, sounds, waiting = [], [], []
    depth = pipeline.depth

    def settle():
        ticket = waiting.pop(0)
        pipeline.wait(ticket)
        picture, sound = pipeline.delivered(ticket)
        pictures.append(picture.cpu().clone())
        sounds.append(sound.cpu().clone())

    for frame in range(frames):
        waiting.append(pipeline.begin(frame))
        while len(waiting) >= depth:
            settle()
    while waiting:
        settle()
    close()
    return torch.stack(pictures), torch.stack(sounds)
