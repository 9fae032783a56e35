"""Decoders as a player uses them, against the decoders themselves and against numpy."""

import numpy as np
import pytest
import torch

from models.audio_vae import AudioDecoder, AudioVAEParams
from models.image_vae import ImageDecoder, ImageVAEParams
from models.initialisation import randomise
from models.playback import PictureStage, SoundStage

PICTURE, AUDIO = ImageVAEParams.tiny(), AudioVAEParams.tiny()
WINDOW = 9


def build(kind, *args, **kwargs):
    module = kind(*args, **kwargs).eval()
    randomise(module, 0, prefix="decoder.")
    return module


def same_weights(stage, decoder):
    decoder.load_state_dict(stage.state_dict(), strict=True)
    return decoder.eval()


@torch.inference_mode()
def test_a_picture_is_what_the_decoder_makes_as_bytes():
    stage = build(PictureStage, PICTURE)
    z = torch.randn(2, 16, 4, 4)
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
    assert exact[[0, 1, -2, -1]].tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize("decoded", [None, 4, 1])
@torch.inference_mode()
def test_sound_is_the_newest_of_a_window_that_rolls_and_reset_begins_it_again_in_place(decoded):
    stage = build(SoundStage, AUDIO, window=WINDOW, decoded=decoded)
    decoder = same_weights(stage, AudioDecoder(AUDIO))
    latents, place = torch.randn(14, 1, 8), stage.latents.data_ptr()
    history = [*stage.context.unbind(-1)]
    first = stage(latents[0])
    assert torch.equal(stage(latents[0]), first) is (decoded == 1), "otherwise it remembers what came before"
    stage.reset()
    for latent in latents:
        history = [*history[1:], latent]
        used = torch.stack(history, dim=-1)[..., -(decoded or WINDOW) :]
        sound = stage(latent)
        assert sound.shape == (1, 2, AUDIO.samples_per_latent)
        assert sound.dtype == torch.float32
        torch.testing.assert_close(sound, decoder(used)[..., -AUDIO.samples_per_latent :], rtol=0, atol=0)
        torch.testing.assert_close(stage.latents, torch.stack(history, dim=-1), rtol=0, atol=0)
    assert [tensor.data_ptr() for tensor in stage.state_tensors()] == [stage.latents.data_ptr()] == [place]


@pytest.mark.parametrize(("window", "decoded"), [(0, None), (4, 5), (4, 0)])
def test_a_window_that_is_none(window, decoded):
    with pytest.raises(ValueError, match="must be"):
        SoundStage(AUDIO, window=window, decoded=decoded)
