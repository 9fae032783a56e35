"""Sizes that no published config has (world models: test_cached_world_model.py); a config of no network says why."""

import dataclasses
import math
import re
from functools import partial

import pytest
import torch
from reference_data import STATE_DICTS, TINY, audio_vae_of, image_vae_of, reference_weights

from models import clip, diffusion, hub, language_steps
from models.audio_vae import AudioVAEParams
from models.image_vae import GroupScale, ImageVAEParams, build_image_decoder, picture_size
from models.playback import build_picture_stage, build_sound_stage, build_world_model_frame, build_world_model_step
from models.world_model import WorldModelParams, build_world_model

NAMED_SIZES = {
    "world_model_1b": WorldModelParams.full(),
    "world_model_200m": WorldModelParams.full_200m(),
    "image_vae_cod_128x": ImageVAEParams.full(),
    "audio_vae_cod_audio": AudioVAEParams.full(),
}


@pytest.mark.parametrize(("name", "params"), NAMED_SIZES.items())
def test_full_sizes_are_the_published_configs(name, params):
    assert type(params).from_config(STATE_DICTS[name]["config"]) == params


@pytest.mark.parametrize(
    ("params", "change", "message"),
    [
        (WorldModelParams, {"tokens_per_frame": 4}, r"tokens_per_frame must be sample_size² \+ 1 = 5"),
        (WorldModelParams, {"d_model": 66}, "multiple of n_heads"),
        (WorldModelParams, {"d_model": 48}, "d_model / n_heads must be a multiple of 8"),
        (WorldModelParams, {"n_mouse_axes": 3}, "n_mouse_axes must be 2"),
        (WorldModelParams, {"n_layers": 0}, "n_layers must be an integer of at least 1"),
        (WorldModelParams, {"n_frames": 2.5}, "n_frames must be an integer"),
        (ImageVAEParams, {"ch_0": 48}, "ch_0 must be a multiple of 32"),
        (ImageVAEParams, {"ch_0": 32, "ch_max": 48}, "widths must stay or double"),
        (ImageVAEParams, {"latent_channels": 24}, "multiple of latent_channels"),
        (ImageVAEParams, {"decoder_blocks_per_stage": ()}, "at least one stage"),
        (ImageVAEParams, {"encoder_blocks_per_stage": (1, 0)}, "counts of at least 1"),
        (ImageVAEParams, {"sample_size": (1, 2, 3)}, "a height and a width"),
        (ImageVAEParams, {"sample_size": (720, 1280)}, r"\[720, 1280\] is 16:9, where only \[360, 640\]"),
        (AudioVAEParams, {"strides": (3, 2)}, "the last stride"),
        (AudioVAEParams, {"strides": (0, 1)}, "at least 1"),
        (AudioVAEParams, {"ch_0": 12}, "multiple of 8"),
        (AudioVAEParams, {"ch_max": 20}, "multiple of 8"),
    ],
    ids=str,
)
def test_a_config_that_makes_no_network_is_refused(params, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(params.tiny(), **change)


@pytest.mark.parametrize(
    ("factory", "params", "given", "near"),
    [
        (partial(build_world_model_step, context_frames=0), WorldModelParams, "weigths", "'weights'"),
        (partial(build_world_model_frame, context_frames=0), WorldModelParams, "n_button", "'n_buttons'"),
        (build_image_decoder, ImageVAEParams, "ch_maximum", "'ch_max'"),
        (build_picture_stage, ImageVAEParams, "checkpoint_grad", "'checkpoint_grads'"),
        (partial(build_sound_stage, window=4), AudioVAEParams, "decoder", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_key_that_no_factory_knows_is_refused(factory, params, given, near):
    """Otherwise a misspelt option is measured with its default."""
    message = f"has no key '{given}'" + (f"; did you mean {near}" if near else ". There are channels, ")
    with pytest.raises(ValueError, match=re.escape(message)):
        factory(**vars(params.tiny()), **{given: "int8"})


@pytest.mark.parametrize("folder", [None, "saved"])
@pytest.mark.parametrize(
    ("library", "factory", "key", "near"),
    [
        ("transformers", clip.build_clip_text, "hidden_sizes", "hidden_size"),
        ("transformers", partial(language_steps.build_llama_step, batch=1, cache_length=2, filled=0), "ropes", None),
        ("diffusers", hub.build_autoencoder_tiny, "act_fun", "act_fn"),
        ("diffusers", diffusion.build_wan_step, "weigths", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_key_that_no_library_knows_is_refused_with_a_folder_too(library, factory, key, near, folder):
    """Its own config replaces the values given, and does not make a misspelt key right."""
    pytest.importorskip(library)
    message = f"has no key '{key}'" + (f"; did you mean '{near}'" if near else "")
    with pytest.raises(ValueError, match=re.escape(message)):
        factory(folder=folder, **{key: "int8"})


def test_configs_of_other_networks_are_refused():
    config = vars(WorldModelParams.tiny())
    for change, message in (({"patch_size": 2}, "patch_size must be 1"), ({"causal": True}, "causal must be false")):
        with pytest.raises(ValueError, match=message):
            build_world_model(**config, **change)
    layers = {key: value for key, value in config.items() if key != "n_layers"}
    with pytest.raises(ValueError, match="lacks 'n_layers'; is 'n_layer' a misspelling of it"):
        build_world_model(**layers, n_layer=config["n_layers"])


@pytest.mark.parametrize("size", [(360, 640), (256, 384), 128])
def test_other_image_sizes_are_accepted(size):
    params = dataclasses.replace(ImageVAEParams.tiny(), sample_size=size)
    assert params.landscape == (size == (360, 640))


def test_a_window_too_long_is_refused_and_a_mouse_at_rest_gives_numbers():
    config, factory, make_inputs, _ = TINY["world_model"]
    module = factory(**config)
    options = {"generator": torch.Generator(), "device": "cpu", "dtype": torch.float32}
    with pytest.raises(ValueError, match="1 to 6 frames"):
        module(**make_inputs(module, batch=1, frames=7, **options))
    assert torch.isfinite(module.control_embed.mouse(torch.zeros(1, 1, 2))).all()


def test_group_scale_takes_its_statistic_in_fp32():
    norm = GroupScale(16, 1).half()
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
    module = image_vae_of(**vars(params))
    reference_weights(module, seed=0)
    with torch.no_grad():
        z = torch.randn(2, params.latent_channels, *latent)
        assert module.decoder(z).shape == (2, params.channels, *picture)
        x = torch.randn(1, params.channels, *picture_size(params))
        assert module.encoder(x).shape == (1, params.latent_channels, encoded, encoded)


@pytest.mark.parametrize("strides", [(1,), (4, 3, 1), (5, 1, 2, 1)])
def test_audio_lengths(strides):
    module = audio_vae_of(channels=1, latent_channels=4, ch_0=8, ch_max=24, strides=strides)
    reference_weights(module, seed=0)
    samples = 6 * math.prod(strides)
    with torch.no_grad():
        assert module.decoder(torch.randn(3, 4, 6)).shape == (3, 1, samples)
        assert module.encoder(torch.randn(3, 1, samples)).shape == (3, 4, 6)
