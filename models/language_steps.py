"""Steps of language models of the library transformers as components (extra [hub]): Llama, and Moshi's speech.

A step reads one token and keeps keys and values in a StaticCache of the library. Factories are like those of
`models.hub`. Both need transformers 5.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.hub import StatefulModel, make_model, randomise_library
from models.params import require


class CachedSteps(StatefulModel):
    """Base of steps against a StaticCache: the cache's tensors and the position are buffers of this module.

    The library allocates the cache at its first call and counts tokens in each layer; a step past its end fails. Here
    the tensors exist from the start, `position` (int64, no dimension) counts the tokens read so far, and it sets the
    layers' counters before each call: when the cache is full, a step overwrites the oldest token. Keys carry their
    rotation, so the order in memory does not matter. A new module has read `filled` tokens (normal keys and values).
    """

    position: Tensor
    slots: Tensor
    cache: Any

    def __init__(self, model: Any, config: Any, batch: int, cache_length: int, filled: int) -> None:
        from transformers.cache_utils import Cache, StaticLayer

        require(filled >= 0, f"filled={filled}: must be 0 or more tokens")
        super().__init__(model)
        self.filled = filled
        heads, size = _heads(config)
        # Not StaticCache(config): for a model with a sliding window that counts tokens in Python.
        layers: list[Any] = [StaticLayer(max_cache_len=cache_length) for _ in range(config.num_hidden_layers)]
        self.cache = Cache(layers=layers)
        for number in range(len(layers)):
            self.add_state(f"keys_{number}", (batch, heads, cache_length, size))
            self.add_state(f"values_{number}", (batch, heads, cache_length, size))
            self.register_buffer(f"length_{number}", torch.tensor(0), persistent=False)
        self.register_buffer("position", torch.tensor(filled), persistent=False)
        self.register_buffer("slots", torch.arange(cache_length), persistent=False)
        empty = torch.empty(batch, heads, 0, size)
        for layer in layers:
            layer.lazy_initialization(empty, empty)
        self._attach()
        self.reset()

    def reset(self) -> None:
        """Restore the cache and the position of a new module in place."""
        super().reset()
        self.position.fill_(self.filled)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._attach()
        return self

    def _attach(self) -> None:
        """Let the cache's layers use this module's buffers, which a move or a cast replaces."""
        for number, layer in enumerate(self.cache.layers):
            layer.keys, layer.values = self.get_buffer(f"keys_{number}"), self.get_buffer(f"values_{number}")
            layer.cumulative_length = self.get_buffer(f"length_{number}")
            layer.device, layer.dtype = layer.keys.device, layer.keys.dtype
            for tensor in (layer.keys, layer.values, layer.cumulative_length):
                torch._dynamo.mark_static_address(tensor)  # as the library does, for inductor's own CUDA graphs

    def step(self, model: Any, **inputs: Tensor) -> Any:
        """Call a decoder on the inputs of one token, and count it."""
        slot = self.position.remainder(self.slots.numel())
        lengths: list[Any] = [layer.cumulative_length for layer in self.cache.layers]
        torch._foreach_copy_(lengths, [slot] * len(lengths))  # pyright: ignore[reportPrivateImportUsage]
        batch = next(iter(inputs.values())).shape[0]
        output = model(
            **inputs,
            position_ids=self.position.expand(batch, 1),
            # As the library's own mask for a full static cache; given, it does not depend on the version.
            attention_mask=(self.slots <= self.position).expand(batch, 1, 1, -1),
            past_key_values=self.cache,
            use_cache=True,
        )
        self.position.add_(1)
        return output


def static_cache(
    module: nn.Module,
    *,
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
    length: int,
    filled: int = 0,
    batch: int = 1,
) -> Any:
    """Return a StaticCache for the decoder in `module`, as an argument (`past_key_values`) of a component's `inputs`.

    It has room for `length` tokens, `filled` of which were read before (normal keys and values). Each call adds its
    tokens; a call that finds no room fails. Layers with a sliding window count their tokens in Python.
    """
    from transformers.cache_utils import StaticCache

    require(0 <= filled < length, f"filled={filled}: must be 0 or more tokens, and below length={length}")
    configs = (getattr(part, "config", None) for part in module.modules())
    config = next((each for each in configs if hasattr(each, "get_text_config")), None)
    require(
        config is not None, f"{type(module).__name__} contains no model of transformers, whose config says the sizes"
    )
    config = config.get_text_config(decoder=True)  # pyright: ignore[reportOptionalMemberAccess]
    cache = StaticCache(config=config, max_cache_len=length)
    cache.early_initialization(batch, *_heads(config), dtype, device)
    layers: list[Any] = cache.layers
    for layer in layers:
        if layer.keys is None:  # linear attention, whose state has no length
            continue
        for states in (layer.keys, layer.values):
            states[:, :, :filled].normal_(generator=generator)
        layer.cumulative_length.fill_(filled)
        if layer.is_sliding:
            layer.cumulative_length_int = filled
    return cache


def _heads(config: Any) -> tuple[int, int]:
    """Return the number of key and value heads, and their size."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class LlamaStep(CachedSteps):
    """One token of a LlamaForCausalLM."""

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map the next token, int64 [b, 1], to the logits of the one after it [b, vocab_size]."""
        return self.step(self.model, input_ids=input_ids).logits[:, -1]


class MoshiStep(CachedSteps):
    """One frame (80 ms) of a MoshiForConditionalGeneration: a text token and Mimi's codes, picked one after the other.

    The library's depth decoder reads each position back from the device to choose an embedding, which a CUDA graph
    cannot capture; the loop over codebooks is therefore here, and its embeddings are passed in. It starts from a fresh
    DynamicCache each frame, as in the library. Tokens are the most likely ones (the library samples). The audio encoder
    is removed. The first codebook is one frame ahead of the others, as Moshi makes them.
    """

    def __init__(self, model: Any, batch: int, cache_length: int, filled: int) -> None:
        model.audio_encoder = None
        super().__init__(model, model.decoder.config, batch, cache_length, filled)

    def forward(self, text: Tensor, moshi_codes: Tensor, user_codes: Tensor, given: Tensor) -> dict[str, Tensor]:
        """Read the last frame and make the next one.

        Args:
            text: the last text token, int64 [b, 1].
            moshi_codes: the last codes of the model, int64 [b, codebooks, 1].
            user_codes: the last codes of the user, int64 [b, codebooks, 1].
            given: int64 [b, 1 + codebooks]; where it is not negative, this token is taken instead of the most likely
                one (text first). Given tokens make the logits comparable between dtypes.

        Returns:
            "text" and "codes", shaped as in the arguments; "text_logits" [b, vocab_size] and "code_logits"
            [b, codebooks, audio_vocab_size].

        """
        from transformers.cache_utils import DynamicCache

        model: Any = self.model
        codes = torch.cat([moshi_codes, user_codes], dim=1).unbind(1)
        embeddings = [embed(code) for embed, code in zip(model.embed_tokens, codes, strict=True)]
        decoder, depth = model.decoder, model.depth_decoder
        hidden: Any = sum(embeddings, decoder.model.embed_tokens(text))
        output = self.step(decoder, inputs_embeds=hidden)
        logits = [output.logits[:, -1]]
        tokens = [_pick(logits[0], given[:, :1])]
        cache = DynamicCache()
        for number in range(model.num_codebooks):
            embed = depth.text_embed_tokens if number == 0 else depth.embed_tokens[number - 1]
            made = depth(
                input_ids=tokens[-1],  # its shape alone is used
                inputs_embeds=embed(tokens[-1]),
                last_hidden_state=output.last_hidden_state,
                past_key_values=cache,
                use_cache=True,
            )
            logits.append(made.logits[:, -1])
            tokens.append(_pick(logits[-1], given[:, number + 1 : number + 2]))
        return {
            "text": tokens[0],
            "codes": torch.stack(tokens[1:], dim=1),
            "text_logits": logits[0],
            "code_logits": torch.stack(logits[1:], dim=1),
        }


def _pick(logits: Tensor, given: Tensor) -> Tensor:
    """Return `given` [b, 1] where it is not negative, else the most likely token of `logits` [b, n]."""
    return torch.where(given >= 0, given, logits.argmax(dim=-1, keepdim=True))


def build_llama_step(
    folder: str | None = None, *, batch: int, cache_length: int, filled: int, **config: Any
) -> nn.Module:
    """Build transformers' LlamaForCausalLM as a step of one token.

    Args:
        folder: made by save_pretrained; its own config is used, and the values in `config` are ignored. None: random
            weights.
        batch: sequences in the cache.
        cache_length: tokens in the cache.
        filled: tokens that a new module has read.
        config: keys of LlamaConfig.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: an unknown config key, an incomplete folder, or a negative number of tokens.

    """
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    model: Any = make_model(LlamaForCausalLM, folder, config)
    return LlamaStep(model, model.config, batch, cache_length, filled)


def build_moshi_step(
    folder: str | None = None, *, batch: int, cache_length: int, filled: int, **config: Any
) -> nn.Module:
    """Build transformers' MoshiForConditionalGeneration as a step of one frame; `config` are keys of MoshiConfig.

    Other arguments and errors are those of `build_llama_step`.
    """
    from transformers.models.moshi.modeling_moshi import MoshiForConditionalGeneration

    model = make_model(MoshiForConditionalGeneration, folder, config)
    return MoshiStep(model, batch, cache_length, filled)


@torch.no_grad()
def randomise_moshi(module: nn.Module, seed: int) -> None:
    """Fill a MoshiStep as `randomise_library` does; each codebook's matrix is drawn like a linear layer's."""
    randomise_library(module, seed)
    for part in module.modules():
        if type(part).__name__ == "MoshiFlexibleLinear":
            weight: Any = part.weight
            weight.mul_(weight.shape[1] ** 0.5)  # [codebooks, out, in]
