"""Seeded weights: the same for a seed, of the published scales, and never degenerate."""

import zlib

import numpy as np
import pytest
import torch
from reference_data import TINY, flat, tiny_network

from models.audio_vae import AudioDecoder, AudioVAE, AudioVAEParams
from models.initialisation import randomise, reference_weights
from models.world_model import WorldModel, WorldModelParams


def test_reference_recipe():
    module = WorldModel(WorldModelParams.tiny())
    freqs = module.transformer.blocks[0].attn.rope.pos_emb.freqs.clone()
    reference_weights(module, seed=9)
    for name, scale in (("proj_in.weight", 8**-0.5), ("proj_out.proj.bias", 0.1)):
        value = module.get_parameter(name)
        draw = np.random.RandomState((zlib.crc32(name.encode()) ^ 9) & 0xFFFFFFFF).standard_normal(tuple(value.shape))
        np.testing.assert_array_equal(value.detach().numpy(), (draw * scale).astype(np.float32))
    torch.testing.assert_close(module.transformer.blocks[0].attn.rope.pos_emb.freqs, freqs, rtol=0, atol=0)


@pytest.mark.parametrize("fill", [reference_weights, randomise])
def test_a_prefix_makes_the_decoder_of_the_whole(fill):
    whole, half = AudioVAE(AudioVAEParams.tiny()), AudioDecoder(AudioVAEParams.tiny())
    fill(whole, 4)
    fill(half, 4, prefix="decoder.")
    for name, value in half.state_dict().items():
        torch.testing.assert_close(value, whole.state_dict()[f"decoder.{name}"], rtol=0, atol=0)


def test_randomise_repeats_a_seed_and_has_the_scales_of_the_recipe():
    one, same, other = (WorldModel(WorldModelParams.tiny()) for _ in range(3))
    randomise(one, 1)
    randomise(same, 1)
    randomise(other, 2)
    for name, value in one.named_parameters():
        assert torch.equal(value, same.get_parameter(name))
        assert not torch.equal(value, other.get_parameter(name))
        if value.numel() > 1000:
            scale = value[0].numel() ** -0.5 if value.ndim > 1 else 0.1
            assert value.std().item() == pytest.approx(scale, rel=0.1)


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_matters_to_the_output(name):
    module, inputs = tiny_network(name)
    with torch.no_grad():
        first = flat(module(**inputs))[0]
        assert first.std() > 1e-2
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.zero_()
        assert not torch.allclose(flat(module(**inputs))[0], first, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", TINY)
def test_inputs_follow_their_generator_and_are_never_zero(name):
    _, inputs = tiny_network(name, torch.bfloat16, seed=3)
    _, same = tiny_network(name, torch.bfloat16, seed=3)
    _, other = tiny_network(name, torch.bfloat16, seed=4)
    for key, value in inputs.items():
        assert value.dtype == (torch.float32 if key == "t" else torch.bfloat16)
        assert torch.equal(value, same[key])
        assert not torch.equal(value, other[key])
        assert value.abs().sum() > 0
