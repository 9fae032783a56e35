"""Sizes that no published config has, and numbers at the ends of a range (world models: test_cached_world_model.py)."""

import math

import pytest
import torch
from reference_data import reference_weights

from models import image_vae
from models.audio_vae import AudioVAE, AudioVAEParams
from models.image_vae import ImageVAE, ImageVAEParams, picture_size
from models.world_model import WorldModel, WorldModelParams


def test_a_mouse_at_rest_gives_numbers():
    embedding = WorldModel(WorldModelParams.tiny()).control_embed.mouse(torch.zeros(1, 1, 2))
    assert torch.isfinite(embedding).all()


def test_group_scale_takes_its_statistic_in_fp32():
    norm = image_vae.GroupScale(16, 1).half()
    x = torch.full((1, 16, 64, 64), 300.0).half()
    x[..., ::2] = -300.0  # a variance of 90,000, which fp16 cannot hold
    torch.testing.assert_close(norm(x).float().abs(), torch.ones(1, 16, 64, 64), rtol=2e-3, atol=0)


@pytest.mark.parametrize(
    ("params", "latent", "picture", "encoded"),
    [
        (ImageVAEParams((128, 128), 3, 8, 8, 32, 32, (1, 1), (2, 1)), (3, 5), (6, 10), 8),
        (ImageVAEParams((360, 640), 4, 2, 16, 32, 64, (1, 1, 1, 1), (1, 1)), (6, 5), (8, 12), 2),
        # No landscape picture stretches to 32 × 32, so the example is one that stretches to 40 × 40.
        (ImageVAEParams((360, 640), 4, 4, 16, 32, 64, (1, 1, 1, 1), (1, 1)), (4, 4), (6, 10), 5),
    ],
)
def test_image_shapes(params, latent, picture, encoded):
    module = ImageVAE(params)
    reference_weights(module, seed=0)
    with torch.no_grad():
        z = torch.randn(2, params.latent_channels, *latent)
        assert module.decoder(z).shape == (2, params.channels, *picture)
        x = torch.randn(1, params.channels, *picture_size(params))
        assert module.encoder(x).shape == (1, params.latent_channels, encoded, encoded)


@pytest.mark.parametrize("strides", [(1,), (4, 3, 1), (5, 1, 2, 1)])
def test_audio_lengths(strides):
    module = AudioVAE(AudioVAEParams(channels=1, latent_channels=4, ch_0=8, ch_max=24, strides=strides))
    reference_weights(module, seed=0)
    samples = 6 * math.prod(strides)
    with torch.no_grad():
        assert module.decoder(torch.randn(3, 4, 6)).shape == (3, 1, samples)
        assert module.encoder(torch.randn(3, 1, samples)).shape == (3, 4, 6)
