"""Sizes that no published config has, against plain arithmetic: no constant of one config may leak into the code."""

import math

import naive_world_model
import numpy as np
import pytest
import torch
from reference_data import reference_weights
from torch.nn import functional as F

from models import audio_vae, image_vae
from models.audio_vae import AudioVAE, AudioVAEParams
from models.image_vae import ImageVAE, ImageVAEParams, picture_size
from models.world_model import WorldModel, WorldModelParams, world_model_inputs

WORLD_MODELS = [
    WorldModelParams(3, 5, 3, n_layers=2, n_heads=2, d_model=48, tokens_per_frame=10, n_buttons=4, n_frames=4),
    WorldModelParams(1, 4, 7, n_layers=1, n_heads=3, d_model=24, tokens_per_frame=2, n_buttons=1, n_frames=3),
    WorldModelParams(2, 6, 2, n_layers=2, n_heads=1, d_model=64, tokens_per_frame=5, n_buttons=9, n_frames=7),
]


@pytest.mark.parametrize("params", WORLD_MODELS, ids=lambda params: f"head_dim{params.head_dim}")
def test_world_model_against_plain_loops(params):
    module = WorldModel(params)
    reference_weights(module, seed=5)
    state = {name: value.double().numpy() for name, value in module.state_dict().items()}
    for frames in (1, 2, params.n_frames):
        generator = torch.Generator().manual_seed(frames)
        inputs = world_model_inputs(
            module, batch=2, frames=frames, generator=generator, device="cpu", dtype=torch.float32
        )
        with torch.no_grad():
            video, audio = module(**inputs)
        for b in range(2):
            arrays = {key: value[b].double().numpy() for key, value in inputs.items()}
            expected_video, expected_audio = naive_world_model.forward(state, params, **arrays)
            np.testing.assert_allclose(video[b].numpy(), expected_video, rtol=1e-3, atol=2e-4)
            np.testing.assert_allclose(audio[b].numpy(), expected_audio, rtol=1e-3, atol=2e-4)


def test_a_mouse_at_rest_gives_numbers():
    module = WorldModel(WORLD_MODELS[0])
    embedding = module.control_embed.mouse(torch.zeros(1, 1, 2))
    assert torch.isfinite(embedding).all()


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_group_scale_divides_and_keeps_the_mean(groups):
    norm = image_vae.GroupScale(16, groups)
    reference_weights(norm, seed=3)
    x = torch.randn(2, 16, 3, 5) + 4
    expected = np.zeros(x.shape)
    width = 16 // groups
    for b in range(2):
        for c in range(16):
            group = x[b, c // width * width : (c // width + 1) * width].double().numpy()
            variance = ((group - group.mean()) ** 2).sum() / group.size
            gain = 1 + float(norm.gain[c].detach())
            expected[b, c] = x[b, c].double().numpy() / math.sqrt(variance + 1e-6) * gain
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-5, atol=1e-5)


def test_group_scale_takes_its_statistic_in_fp32():
    norm = image_vae.GroupScale(16, 1).half()
    x = torch.full((1, 16, 64, 64), 300.0).half()
    x[..., ::2] = -300.0  # a variance of 90,000, which fp16 cannot hold
    torch.testing.assert_close(norm(x).float().abs(), torch.ones(1, 16, 64, 64), rtol=2e-3, atol=0)


def test_time_norm_and_snake_against_plain_arithmetic():
    norm, snake = audio_vae.TimeRMSNorm(3), audio_vae.Snake(3)
    reference_weights(norm, seed=1)
    reference_weights(snake, seed=2)
    x = torch.randn(2, 3, 7)
    gain, alpha, beta = (p.detach().double().numpy() for p in (norm.gain, snake.alpha, snake.beta))
    for b in range(2):
        for c in range(3):
            row = x[b, c].double().numpy()
            normed = row / math.sqrt((row**2).mean() + 1e-6) * (1 + gain[c])
            np.testing.assert_allclose(norm(x)[b, c].detach().numpy(), normed, rtol=1e-5, atol=1e-6)
            bent = row + np.sin(row * (1 + alpha[c])) ** 2 / (1e-6 + math.exp(beta[c]))
            np.testing.assert_allclose(snake(x)[b, c].detach().numpy(), bent, rtol=1e-5, atol=1e-6)


def test_repeating_and_block_mean_are_by_blocks():
    narrow, wide = torch.randn(2, 3, 2, 2), torch.randn(2, 12, 2, 2)
    torch.testing.assert_close(image_vae.repeat_add(wide, narrow), wide + torch.cat([narrow] * 4, dim=1))
    mean = (wide[:, 0:3] + wide[:, 3:6] + wide[:, 6:9] + wide[:, 9:12]) / 4
    torch.testing.assert_close(image_vae.block_mean(wide, 3), mean)


def test_audio_up_stage_repeats_then_smooths():
    stage = audio_vae.UpStage(8, 16, stride=3)
    reference_weights(stage, seed=4)
    x = torch.randn(1, 8, 5)
    repeated = torch.repeat_interleave(x, 3, dim=2)
    padded = torch.cat([torch.zeros(1, 8, 2), repeated, torch.zeros(1, 8, 3)], dim=2)
    smoothed = torch.stack(
        [torch.einsum("oik,bik->bo", stage.proj.weight, padded[:, :, j : j + 6]) for j in range(15)], dim=2
    )
    torch.testing.assert_close(stage(x), stage.residual(stage.act(smoothed)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("params", "latent", "picture", "encoded"),
    [
        (ImageVAEParams((128, 128), 3, 8, 8, 32, 32, (1, 1), (2, 1)), (3, 5), (6, 10), 8),
        (ImageVAEParams((64, 64), 1, 2, 32, 64, 128, (1,), (1, 1, 1)), (2, 4), (8, 16), 2),
        (ImageVAEParams((360, 640), 4, 2, 16, 32, 64, (1, 1, 1, 1), (1, 1)), (6, 5), (8, 12), 2),
        # No landscape picture stretches to 32 × 32, so the example is one that stretches to 40 × 40.
        (ImageVAEParams((360, 640), 4, 4, 16, 32, 64, (1, 1, 1, 1), (1, 1)), (4, 4), (6, 10), 5),
    ],
)
def test_image_shapes(params, latent, picture, encoded):
    module = ImageVAE(params)
    reference_weights(module, seed=0)
    z = torch.randn(2, params.latent_channels, *latent)
    with torch.no_grad():
        assert module.decoder(z).shape == (2, params.channels, *picture)
        x = torch.randn(1, params.channels, *picture_size(params))
        assert module.encoder(x).shape == (1, params.latent_channels, encoded, encoded)


@pytest.mark.parametrize("strides", [(1,), (2, 1), (4, 3, 1), (5, 1, 2, 1)])
def test_audio_lengths(strides):
    module = AudioVAE(AudioVAEParams(channels=1, latent_channels=4, ch_0=8, ch_max=24, strides=strides))
    reference_weights(module, seed=0)
    samples = 6 * math.prod(strides)
    with torch.no_grad():
        assert module.decoder(torch.randn(3, 4, 6)).shape == (3, 1, samples)
        assert module.encoder(torch.randn(3, 1, samples)).shape == (3, 4, 6)


def test_bicubic_doubling_has_the_usual_weights():
    x = torch.zeros(1, 1, 1, 8)
    x[..., 4] = 1
    doubled = F.interpolate(x.expand(1, 1, 8, 8), scale_factor=2, mode="bicubic", align_corners=False)
    torch.testing.assert_close(image_vae.resize(x.expand(1, 1, 8, 8), 16, 16), doubled)
    weights = torch.tensor([-9, -27, 67, 225, 225, 67, -27, -9]) / 256
    torch.testing.assert_close(doubled[0, 0, 7, 5:13], weights)
