"""Chooses the audio decoder's window: measures the quality that fewer latents cost, and sets how many are decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from models.playback import SoundStage
from profiling.components.component import Component
from profiling.errors import InputError
from profiling.realtime.options import LoopOptions
from profiling.results.record import SoundWindow

#: Shares of the window that are measured in addition to the requested length, and frames that each is measured on.
SHARES, TRIALS = (0.125, 0.25, 0.5, 0.75), 8


def choose_window(stage: Any, world: Component, options: LoopOptions, seed: int) -> SoundWindow:
    """Measure shorter windows on the world model's own latents and set how many latents `stage` decodes.

    Raises:
        InputError: a shorter window is requested of a stage without one, or one longer than the whole window.

    """
    if not isinstance(stage, SoundStage):
        if options.sound != "exact":
            raise InputError(f"loop.sound={options.sound}: {type(stage).__name__} has no window. Use loop.sound=exact.")
        return SoundWindow(window="exact")
    window, requested = stage.latents.shape[-1], options.sound_latents
    if requested > window and options.sound != "exact":
        raise InputError(f"loop.sound_latents={requested}: the window holds {window}. Use fewer, or loop.sound=exact.")
    lengths = sorted({min(requested, window), *(max(1, round(share * window)) for share in SHARES)} - {window})
    snr_db = windows_snr(stage, latents_of(world, window + TRIALS - 1, seed), lengths)
    good = snr_db.get(requested, math.inf) >= options.sound_snr_db
    short = requested < window and (options.sound == "windowed" or (options.sound == "auto" and good))
    stage.decoded = requested if short else window
    return SoundWindow(
        window="windowed" if short else "exact",
        decoded=stage.decoded,
        window_latents=window,
        snr_db={str(length): ratio for length, ratio in snr_db.items()},
        min_snr_db=float(options.sound_snr_db),
        samples=stage.params.samples_per_latent,
    )


def latents_of(world: Component, frames: int, seed: int) -> Tensor:
    """Run the world model eagerly from its reset state; return its audio latents [1, latent_channels, frames]."""
    generator = torch.Generator(world.device).manual_seed(seed)
    world.reset()
    latents = []
    for _ in range(frames):
        for name, drawn in world.make_inputs(generator).items():
            world.inputs[name].copy_(drawn)
        latents.append(world.call()[1].clone())
    world.reset()
    return torch.stack(latents, dim=-1)


def windows_snr(stage: SoundStage, latents: Tensor, lengths: Sequence[int]) -> dict[int, float]:
    """Return the signal-to-noise ratio in dB of windows of `lengths` latents against the whole window.

    Signal and noise are the newest frame's sound, summed over all whole windows in `latents` [1, channels, n]. A length
    whose sound is identical has no ratio.
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
