"""How far the sound of a short window of latents is from that of the whole one, and which of them the loop decodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from models.playback import SoundStage
from profiling.components.component import Component
from profiling.errors import InputError
from profiling.realtime.options import LoopOptions

#: Shares of the window that are tried beside the one asked for, and frames that each is tried on.
SHARES, TRIALS = (0.125, 0.25, 0.5, 0.75), 8


def latents_of(world: Component, frames: int, seed: int) -> Tensor:
    """Let the world model make frames from its start, eagerly; return their audio latents, [1, latent_channels, n]."""
    generator = torch.Generator(world.device).manual_seed(seed)
    world.reset()
    made = []
    for _ in range(frames):
        for name, fresh in world.make_inputs(generator).items():
            world.inputs[name].copy_(fresh)
        made.append(world.call()[1].clone())
    world.reset()
    return torch.stack(made, dim=-1)


def windows_snr(stage: SoundStage, latents: Tensor, lengths: Sequence[int]) -> dict[int, float]:
    """Return, for windows of so many latents, the signal-to-noise ratio in dB against the whole window.

    Over the newest frame's sound, of as many neighbouring windows as `latents` [1, channels, n] has room for.
    """
    window = stage.latents.shape[-1]
    signal, noise = 0.0, dict.fromkeys(lengths, 0.0)
    for end in range(window, latents.shape[-1] + 1):
        whole = latents[..., end - window : end]
        exact = stage.newest(whole).double()
        signal += float(exact.square().sum())
        for length in lengths:
            noise[length] += float((stage.newest(whole[..., -length:]).double() - exact).square().sum())
    return {length: 10 * math.log10(signal / n) for length, n in noise.items() if n > 0 and signal > 0}


def choose_window(stage: Any, world: Component, options: LoopOptions, seed: int) -> dict[str, Any]:
    """Measure short windows on the world model's own latents, tell the stage which to decode, and return the facts.

    Raises:
        InputError: a short window is asked for of a stage that has none, or one that is longer than the window.

    """
    if not isinstance(stage, SoundStage):
        if options.sound != "exact":
            raise InputError(f"loop.sound={options.sound}: {type(stage).__name__} has no window. Use loop.sound=exact.")
        return {"window": "exact"}
    stage = cast(SoundStage, stage)
    window, asked = stage.latents.shape[-1], options.sound_latents
    if asked > window and options.sound != "exact":
        raise InputError(f"loop.sound_latents={asked}: the window holds {window}. Use fewer, or loop.sound=exact.")
    lengths = sorted({min(asked, window), *(max(1, round(share * window)) for share in SHARES)} - {window})
    found = windows_snr(stage, latents_of(world, window + TRIALS - 1, seed), lengths)
    good = found.get(asked, math.inf) >= options.sound_snr_db
    short = asked < window and (options.sound == "windowed" or (options.sound == "auto" and good))
    stage.decoded = asked if short else window
    return {
        "window": "windowed" if short else "exact",
        "decoded": stage.decoded,
        "of": window,
        "snr_db": {str(length): db for length, db in found.items()},
        "snr_bar_db": options.sound_snr_db,
        "samples": stage.params.samples_per_latent,
    }
