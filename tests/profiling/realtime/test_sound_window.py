"""How good a short window of sound is: against a computation by hand, and what the loop makes of it."""

import numpy as np
import pytest
import torch
from networks import composed

from models.audio_vae import AudioVAEParams
from models.initialisation import randomise
from models.playback import SoundStage
from profiling.components.spec import Settings
from profiling.errors import InputError
from profiling.realtime.__main__ import chosen_stages
from profiling.realtime.options import LoopOptions
from profiling.realtime.prepare import blueprints_of
from profiling.realtime.sound import TRIALS, choose_window, latents_of, windows_snr

WINDOW = 30


@pytest.fixture(scope="module")
def world():
    specs = {role: spec.at("tiny") for role, spec in chosen_stages(composed()).items()}
    settings = Settings(device="cpu", dtype="float32", scale="tiny", checkpoint="random")
    with torch.inference_mode():
        yield blueprints_of(specs, settings)["world"].component(torch.float32, 0)


def small_stage():
    params = AudioVAEParams(channels=2, latent_channels=8, ch_0=16, ch_max=32, strides=(4, 3, 1))
    stage = SoundStage(params, window=WINDOW).eval()
    randomise(stage, 0, prefix="decoder.")
    return stage


@torch.inference_mode()
def test_the_ratio_by_hand():
    """Signal over noise, both summed over all windows, in numpy and double precision."""
    stage = small_stage()
    latents = torch.randn(1, 8, WINDOW + 3, generator=torch.Generator().manual_seed(0))
    sounds = {length: [] for length in (5, 20, WINDOW)}
    for first in range(4):
        for length, found in sounds.items():
            given = latents[:, :, first + WINDOW - length : first + WINDOW]
            sound = super(SoundStage, stage).forward(given).numpy().astype(np.float64)
            found.append(sound[:, :, -stage.params.samples_per_latent :])
    exact = np.stack(sounds.pop(WINDOW))
    by_hand = {
        length: 10 * np.log10((exact**2).sum() / ((np.stack(short) - exact) ** 2).sum())
        for length, short in sounds.items()
    }
    assert by_hand[20] > by_hand[5], "a longer window is nearer"
    assert windows_snr(stage, latents, [5, 20]) == pytest.approx(by_hand, rel=1e-6)
    assert windows_snr(stage, latents, [WINDOW]) == {}, "nothing differs, so there is no ratio"


def test_latents_are_the_worlds_own_and_leave_it_as_it_was(world):
    world.reset()
    before = [tensor.clone() for tensor in world.state()]
    first, again, other = (latents_of(world, 5, seed) for seed in (1, 1, 2))
    assert first.shape == (1, 8, 5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({column.numpy().tobytes() for column in first[0].T}) == 5, "each frame's is another"
    for tensor, old in zip(world.state(), before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize(
    ("bar", "sound", "chosen"),
    [(1.0, "auto", "windowed"), (200.0, "auto", "exact"), (200.0, "windowed", "windowed"), (1.0, "exact", "exact")],
)
@torch.inference_mode()
def test_what_is_decoded(world, bar, sound, chosen):
    stage = small_stage()
    facts = choose_window(stage, world, LoopOptions(sound=sound, sound_latents=20, sound_snr_db=bar), 0)
    decoded = 20 if chosen == "windowed" else WINDOW
    assert (facts["window"], facts["decoded"], facts["of"], facts["samples"]) == (chosen, decoded, WINDOW, 12)
    assert stage.decoded == decoded
    latents = latents_of(world, WINDOW + TRIALS - 1, 0)
    assert facts["snr_db"]["20"] == windows_snr(stage, latents, [20])[20]
    assert set(facts["snr_db"]) == {"4", "8", "15", "20", "22"}


def test_a_window_longer_than_the_whole(world):
    with pytest.raises(InputError, match=r"sound_latents=31: the window holds 30.*loop\.sound=exact"):
        choose_window(small_stage(), world, LoopOptions(sound="windowed", sound_latents=31), 0)


def test_a_decoder_without_a_window(world):
    with pytest.raises(InputError, match=r"loop\.sound=exact"):
        choose_window(torch.nn.Identity(), world, LoopOptions(sound="auto"), 0)
    assert choose_window(torch.nn.Identity(), world, LoopOptions(), 0) == {"window": "exact"}


@torch.inference_mode()
def test_the_whole_window_asked_for_is_exact(world):
    facts = choose_window(small_stage(), world, LoopOptions(sound="windowed", sound_latents=WINDOW), 0)
    assert (facts["window"], facts["decoded"]) == ("exact", WINDOW)
