"""Decoders as a player uses them, against the decoders themselves and against numpy."""

import numpy as np
import pytest
import torch

from models.audio_vae import AudioDecoder, AudioVAEParams
from models.image_vae import ImageDecoder, ImageVAEParams
from models.initialisation import randomise
from models.playback import PictureStage, SoundStage, sound_stage_inputs

PICTURE, AUDIO = ImageVAEParams.tiny(), AudioVAEParams.tiny()
WINDOW = 9


def build(kind, *args, **kwargs):
    module = kind(*args, **kwargs).eval()
    randomise(module, 0, prefix="decoder.")
    return module


def same_weights(stage, decoder):
    decoder.load_state_dict(stage.state_dict(), strict=True)
    return decoder.eval()


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_a_picture_is_what_the_decoder_makes_as_bytes():
    stage = build(PictureStage, PICTURE)
    z = draw(2, 16, 4, 4)
    exact = same_weights(stage, ImageDecoder(PICTURE))(z).double().numpy()
    stage_pixels = stage(z)
    assert stage_pixels.dtype == torch.uint8
    assert exact.shape == (2, 3, 11, 20), "a landscape"
    assert stage_pixels.shape == (2, 11, 20, 3), "rows, columns, then the channels of each pixel"
    levels = (np.clip(exact, -1, 1) + 1) * 127.5
    assert levels.min() < 64
    assert levels.max() > 192, "a picture with contrast"
    pixels = stage_pixels.numpy().astype(np.float64)
    assert np.abs(pixels - np.moveaxis(levels, 1, -1)).max() <= 0.5 + 1e-3, "the nearest of 256 values"


@torch.inference_mode()
def test_bytes_reach_both_ends_and_round(monkeypatch):
    values = torch.tensor([-7.0, -1.0, -1 + 0.4 / 127.5, -1 + 0.6 / 127.5, 0.0, 1 - 0.6 / 127.5, 1.0, 7.0])
    pixels = values.bfloat16().float().reshape(1, 1, 1, 8).expand(1, 3, 1, 8)
    monkeypatch.setattr(ImageDecoder, "forward", lambda self, z: z)
    shown = build(PictureStage, PICTURE)(pixels)
    exact = np.rint((np.clip(pixels[0, 0, 0].double().numpy(), -1, 1) + 1) * 127.5)
    assert shown.shape == (1, 1, 8, 3)
    for channel in range(3):
        assert shown[0, 0, :, channel].tolist() == exact.tolist()
    assert exact[0] == exact[1] == 0
    assert exact[-1] == exact[-2] == 255


@pytest.mark.parametrize("decoded", [None, 4, 1])
@torch.inference_mode()
def test_sound_is_the_newest_of_a_window_that_rolls(decoded):
    stage = build(SoundStage, AUDIO, window=WINDOW, decoded=decoded)
    decoder = same_weights(stage, AudioDecoder(AUDIO))
    latents = draw(14, 1, 8)
    history = [*stage.context.unbind(-1)]
    for latent in latents:
        history = [*history[1:], latent]
        used = torch.stack(history, dim=-1)[..., -(decoded or WINDOW) :]
        sound = stage(latent)
        assert sound.shape == (1, 2, AUDIO.samples_per_latent)
        assert sound.dtype == torch.float32
        torch.testing.assert_close(sound, decoder(used)[..., -AUDIO.samples_per_latent :], rtol=0, atol=0)
        torch.testing.assert_close(stage.latents, torch.stack(history, dim=-1), rtol=0, atol=0)


@torch.inference_mode()
def test_reset_begins_again_in_place():
    stage = build(SoundStage, AUDIO, window=WINDOW)
    place, latents = stage.latents.data_ptr(), draw(3, 1, 8)
    first = [stage(latent) for latent in latents]
    assert not torch.equal(stage(latents[0]), first[0]), "it remembers what came before"
    stage.reset()
    for latent, before in zip(latents, first, strict=True):
        torch.testing.assert_close(stage(latent), before, rtol=0, atol=0)
    assert stage.latents.data_ptr() == place
    assert [tensor.data_ptr() for tensor in stage.state_tensors()] == [place]


@pytest.mark.parametrize(("window", "decoded"), [(0, None), (4, 5), (4, 0)])
def test_a_window_that_is_none(window, decoded):
    with pytest.raises(ValueError, match="must be"):
        SoundStage(AUDIO, window=window, decoded=decoded)


def test_inputs_are_seeded():
    stage = build(SoundStage, AUDIO, window=WINDOW)
    inputs = [
        sound_stage_inputs(stage, generator=torch.Generator().manual_seed(seed), device="cpu", dtype=torch.bfloat16)
        for seed in (3, 3, 4)
    ]
    assert inputs[0]["latent"].shape == (1, 8)
    assert inputs[0]["latent"].dtype == torch.bfloat16
    assert torch.equal(inputs[0]["latent"], inputs[1]["latent"])
    assert not torch.equal(inputs[0]["latent"], inputs[2]["latent"])
