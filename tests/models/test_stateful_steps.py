"""Components that keep state, against the library's own way: a whole sequence at once, a whole video at once."""

from typing import Any

import pytest
import torch
from reference_data import relative_error

from models.diffusion import build_wan_stream_decoder
from models.hub import randomise_library
from models.language_steps import build_llama_step, build_moshi_step, randomise_moshi, static_cache

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SIZES, "vocab_size": 64, "intermediate_size": 64, "num_key_value_heads": 2}
MOSHI = {
    **SIZES,
    **{"vocab_size": 48, "audio_vocab_size": 40, "ffn_dim": 64, "audio_encoder_config": {"model_type": "mimi"}},
    "depth_decoder_config": {"hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
}


@torch.inference_mode()
@pytest.mark.parametrize("cache_length", [16, 5], ids=["cache with room", "cache that overflows"])
def test_a_token_at_a_time_gives_the_numbers_of_the_whole_sequence(cache_length):
    module: Any = build_llama_step(batch=2, cache_length=cache_length, filled=0, **LLAMA).eval()
    randomise_library(module, 0)
    ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    steps = torch.stack([module(ids[:, n : n + 1]) for n in range(12)], dim=1)
    rows, columns = torch.arange(12)[:, None], torch.arange(12)
    seen = (columns <= rows) & (columns > rows - cache_length)
    whole = module.model(input_ids=ids, attention_mask=seen.expand(2, 1, 12, 12), use_cache=False).logits
    torch.testing.assert_close(steps, whole, rtol=1e-3, atol=1e-4)
    module.reset()
    torch.testing.assert_close(module(ids[:, :1]), steps[:, 0])


@torch.inference_mode()
@pytest.mark.parametrize("window", [None, 4], ids=["all tokens", "a sliding window"])
def test_a_cache_that_has_read_tokens_is_read_like_one_of_that_length(window):
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    config = LlamaConfig(**LLAMA) if window is None else MistralConfig(**LLAMA, sliding_window=window)
    model: Any = (LlamaForCausalLM if window is None else MistralForCausalLM)(config).eval()
    randomise_library(model, 0)
    generator = torch.Generator().manual_seed(0)
    options = {"generator": generator, "device": torch.device("cpu"), "dtype": torch.float32}
    static = static_cache(torch.nn.Sequential(model), length=8, filled=3, batch=2, **options)
    dynamic = DynamicCache(config=config)
    for number, layer in enumerate(static.layers):
        dynamic.update(layer.keys[:, :, :3].clone(), layer.values[:, :, :3].clone(), number)
    for token in torch.randint(0, 64, (4, 2, 1), generator=generator):
        steps = [model(token, past_key_values=cache).logits for cache in (static, dynamic)]
        torch.testing.assert_close(*steps, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_moshis_codes_are_those_of_its_depth_decoder_and_it_takes_those_it_is_given():
    module: Any = build_moshi_step(batch=1, cache_length=8, filled=3, **MOSHI).eval()
    randomise_moshi(module, 0)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 48, (1, 1), generator=generator)
    moshi_codes, user_codes = (torch.randint(0, 40, (1, 8, 1), generator=generator) for _ in range(2))

    def step(given=torch.full((1, 9), -1)):  # noqa: B008
        module.reset()
        return module(text, moshi_codes, user_codes, given)

    outputs = step()
    assert outputs["codes"].shape == (1, 8, 1)
    assert torch.equal(outputs["text"], outputs["text_logits"].argmax(-1, keepdim=True))
    assert torch.equal(outputs["codes"][:, :, 0], outputs["code_logits"].argmax(-1))
    # All codebooks at once: the tokens before each as its input, as the library trains it.
    module.reset()
    codes = torch.cat([moshi_codes, user_codes], 1).unbind(1)
    embeddings = module.model.decoder.model.embed_tokens(text)
    embeddings = embeddings + sum(embed(code) for embed, code in zip(module.model.embed_tokens, codes, strict=True))
    hidden = module.step(module.model.decoder, inputs_embeds=embeddings).last_hidden_state
    tokens = torch.cat([outputs["text"], outputs["codes"][:, :-1, 0]], dim=1)
    depth = module.model.depth_decoder(input_ids=tokens, last_hidden_state=hidden, use_cache=False)
    torch.testing.assert_close(outputs["code_logits"], depth.logits, rtol=1e-3, atol=1e-4)

    given = torch.cat([outputs["text"], outputs["codes"][:, :, 0]], dim=1)
    torch.testing.assert_close(step(given), outputs)
    given[0, 2] = (given[0, 2] + 1) % 40
    other = step(given)
    assert other["codes"][0, 1, 0] == given[0, 2]
    torch.testing.assert_close(other["code_logits"][:, :2], outputs["code_logits"][:, :2])
    assert relative_error(other["code_logits"][:, 2], outputs["code_logits"][:, 2]) > 0.01


@torch.inference_mode()
def test_a_stream_of_chunks_gives_the_pictures_of_the_whole_video():
    module: Any = build_wan_stream_decoder(batch=1, latent_height=2, latent_width=2, base_dim=4, num_res_blocks=1)
    randomise_library(module.eval(), 0)
    latents = torch.randn(1, 16, 7, 2, 2, generator=torch.Generator().manual_seed(0))
    model = module.model
    whole = model.decode(latents, return_dict=False)[0]
    assert whole.shape[2] == 25
    # The state after the first two latent frames, which make 1 and 4 pictures, from the library's own features.
    model.clear_cache()
    for number, latent in enumerate(model.post_quant_conv(latents[:, :, :2]).split(1, dim=2)):
        model.decoder(latent, feat_cache=model._feat_map, feat_idx=[0], first_chunk=number == 0)
    for number in module.slots:
        kept = model._feat_map[number]
        assert kept.shape[2] in (1, 2)
        buffer = module.get_buffer(f"features_{number}")
        buffer.zero_()
        buffer[:, :, -kept.shape[2] :].copy_(kept)
    chunks = [module(latents[:, :, 2:5]), module(latents[:, :, 5:7])]
    torch.testing.assert_close(torch.cat(chunks, dim=2), whole[:, :, 5:], rtol=1e-3, atol=1e-4)
    assert whole.std() > 0.1


def test_mimi_decodes_as_the_library_does():
    """The paddings that are kept on the host are those that the library computes on the device."""
    from transformers import MimiModel

    from models.hub import build_mimi_decoder, make_model

    config = {
        **{"num_filters": 4, "hidden_size": 32, "codebook_size": 32, "codebook_dim": 8, "upsample_groups": 32},
        **{"vector_quantization_hidden_dimension": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 16},
    }
    decoder = build_mimi_decoder(**config).eval()
    library = make_model(MimiModel, None, config).eval()
    library.load_state_dict(decoder.model.state_dict())
    for frames in (1, 2, 7):
        codes = torch.randint(0, 32, (1, 8, frames))
        with torch.no_grad():
            torch.testing.assert_close(decoder(codes), library.decode(codes, return_dict=False)[0], rtol=0, atol=0)
