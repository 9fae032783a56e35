"""Random weights, and constants that keep fp32 through casts, copies and loads."""

import pytest
import torch
from reference_data import AUDIO, TINY, audio_vae_of, flat, tiny_network
from torch import nn

from models.audio_vae import AudioDecoder, AudioVAEParams
from models.initialisation import randomise
from models.world_model import WorldModel, WorldModelParams


def test_a_prefix_makes_the_decoder_of_the_whole():
    whole, half = audio_vae_of(**AUDIO), AudioDecoder(AudioVAEParams.tiny())
    randomise(whole, 4)
    randomise(half, 4, prefix="decoder.")
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
def test_inputs_follow_their_generator_and_are_never_zero(name):
    _, inputs = tiny_network(name, torch.bfloat16, seed=3)
    _, same = tiny_network(name, torch.bfloat16, seed=3)
    _, other = tiny_network(name, torch.bfloat16, seed=4)
    for key, value in inputs.items():
        assert value.dtype == {"t": torch.float32, "input_ids": torch.int64}.get(key, torch.bfloat16)
        assert torch.equal(value, same[key])
        assert not torch.equal(value, other[key])
        assert value.abs().sum() > 0


def constants(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def test_casting_rounds_the_weights_alone():
    module, _ = tiny_network("world_model")
    before = constants(module)
    # Frequencies of two layers, two tables and the rotation between frames, two sinusoidal embeddings.
    assert len(before) == 2 + 3 + 2
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        module.to(dtype)
        assert {parameter.dtype for parameter in module.parameters()} == {dtype}
        torch.testing.assert_close(constants(module), before, rtol=0, atol=0)  # of the same dtypes


@pytest.mark.parametrize("assign", [False, True])
def test_a_network_made_on_the_meta_device_has_the_constants_of_what_it_loads(assign):
    source, _ = tiny_network("world_model")
    with torch.device("meta"):
        module = WorldModel(WorldModelParams.tiny())
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}
    if not assign:
        module.bfloat16().to_empty(device="cpu").float()
    module.load_state_dict(source.state_dict(), assign=assign)
    after, expected = (constants(each.transformer.rotary if assign else each) for each in (module, source))
    torch.testing.assert_close(after, expected, rtol=0, atol=0)


def test_tables_follow_loaded_frequencies_and_layers_that_disagree_are_refused():
    module, inputs = tiny_network("world_model")
    state = module.state_dict()
    before = flat(module(**inputs))[0]
    address = module.transformer.rotary.frame_table.data_ptr()
    changed = {name: value * 1.5 if name.endswith(".freqs") else value for name, value in state.items()}
    module.load_state_dict(changed)
    assert module.transformer.rotary.frame_table.data_ptr() == address  # a captured graph reads it there
    assert not torch.allclose(flat(module(**inputs))[0], before)
    module.load_state_dict({name: value / 1.5 if name.endswith(".freqs") else value for name, value in changed.items()})
    torch.testing.assert_close(flat(module(**inputs))[0], before, rtol=1e-3, atol=2e-4)
    state["transformer.blocks.1.attn.rope.pos_emb.freqs"] = state["transformer.blocks.1.attn.rope.pos_emb.freqs"] + 1
    with pytest.raises(ValueError, match=r"blocks\.1\.attn\.rope\.pos_emb\.freqs differs"):
        module.load_state_dict(state)
