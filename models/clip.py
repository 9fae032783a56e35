"""CLIP's two towers as components of their own, each with its projection, through the transformers library.

Weights are random, or come from a local folder; nothing is ever fetched. The sizes that nobody names are those of
ViT-L/14. Source: https://huggingface.co/openai/clip-vit-large-patch14/blob/main/config.json
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.hub import make_model
from models.initialisation import randomise
from models.params import require

VIT_L14_TEXT = {
    "vocab_size": 49408,
    "max_position_embeddings": 77,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
VIT_L14_VISION = {
    "image_size": 224,
    "patch_size": 14,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "projection_dim": 768,
}

#: Configs from before the library knew CLIP's own ids say that a text ends with id 2. The library then pools at the
#: highest id of a row, which is where CLIP's vocabulary has the end of text.
LEGACY_EOS = 2


class ClipText(nn.Module):
    """The text tower: pooled at the first end of text, then projected."""

    causal_mask: Tensor | None

    def __init__(self, model: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.model = model
        self.weights_source = weights_source
        config: Any = model.config
        mask = None
        if config._attn_implementation == "eager":
            # Added to the scores. Made in forward, as the library does it, a number from the host is copied in, which
            # no CUDA graph can hold. Attention by sdpa knows that it is causal and needs none.
            n = config.max_position_embeddings
            mask = torch.full((1, 1, n, n), -torch.inf).triu(1)
        self.register_buffer("causal_mask", mask, persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map int64 ids [b, n], each row with an end of text in it, to embeddings [b, projection_dim], unnormalised."""
        n = input_ids.shape[1]
        mask = None if self.causal_mask is None else self.causal_mask[:, :, :n, :n]
        return self.model(input_ids=input_ids, attention_mask=mask).text_embeds


class ClipVision(nn.Module):
    """The vision tower: pooled at the class token, then projected."""

    def __init__(self, model: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.model = model
        self.weights_source = weights_source

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map pictures [b, 3, image_size, image_size] to embeddings [b, projection_dim], unnormalised."""
        return self.model(pixel_values=pixel_values).image_embeds


def build_clip_text(folder: str | None = None, *, attn_implementation: str = "sdpa", **config: Any) -> ClipText:
    """Build the text tower alone, from keys of CLIPTextConfig or from a folder (of a whole CLIPModel, too).

    The last id of the vocabulary ends a text, as in CLIP's, whatever `vocab_size` is.

    Args:
        folder: made by save_pretrained; its own config rules and `config` is left aside. None: random weights.
        attn_implementation: "sdpa", or "eager" for attention written out in matmul and softmax.
        config: what is to differ from ViT-L/14.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        FileNotFoundError: the folder does not exist.
        ValueError: an unknown key, or a folder without the whole tower.

    """
    from transformers import CLIPTextModelWithProjection

    wanted = {**VIT_L14_TEXT, **config}
    wanted.setdefault("eos_token_id", wanted["vocab_size"] - 1)
    model = make_model(CLIPTextModelWithProjection, folder, wanted, attn_implementation=attn_implementation)
    return ClipText(model, folder)


def build_clip_vision(folder: str | None = None, *, attn_implementation: str = "sdpa", **config: Any) -> ClipVision:
    """Build the vision tower alone, from keys of CLIPVisionConfig or from a folder (of a whole CLIPModel, too).

    Arguments and errors are those of `build_clip_text`.
    """
    from transformers import CLIPVisionModelWithProjection

    wanted = {**VIT_L14_VISION, **config}
    model = make_model(CLIPVisionModelWithProjection, folder, wanted, attn_implementation=attn_implementation)
    return ClipVision(model, folder)


@torch.no_grad()
def randomise_clip(module: ClipText | ClipVision, seed: int) -> None:
    """Fill a tower with the recipe of `randomise`, the gains of its layer norms around one.

    The library's own start makes queries and keys so small that attention is an average: a wrong softmax would pass.
    """
    randomise(module, seed)
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.weight.add_(1)


def clip_text_inputs(
    module: ClipText,
    *,
    batch: int,
    tokens: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return seeded ids [batch, tokens], int64 whatever `dtype` is.

    A row starts with the start of text, ends at a random place with the end of text, and is padded with more of that,
    as CLIP's tokenizer does it.

    Raises:
        ValueError: `tokens` has no room for start and end, or is more than the tower has positions for.

    """
    config: Any = module.model.config
    longest = config.max_position_embeddings
    require(2 <= tokens <= longest, f"tokens={tokens}: this tower takes 2 (start and end of text) to {longest}")
    end_id = config.vocab_size - 1 if config.eos_token_id == LEGACY_EOS else config.eos_token_id
    here = generator.device
    ids = torch.randint(0, end_id - 1, (batch, tokens), generator=generator, device=here)
    ids[:, 0] = end_id - 1  # the start of text stands right before the end in CLIP's vocabulary
    end = torch.randint(1, tokens, (batch, 1), generator=generator, device=here)
    ids = ids.masked_fill(torch.arange(tokens, device=here) >= end, end_id)
    return {"input_ids": ids.to(device)}


def clip_vision_inputs(
    module: ClipVision,
    *,
    batch: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return seeded pictures [batch, 3, image_size, image_size] of mean 0 and variance 1, as CLIP's are normalised."""
    config: Any = module.model.config
    shape = (batch, config.num_channels, config.image_size, config.image_size)
    return {"pixel_values": torch.randn(shape, generator=generator, device=generator.device).to(device, dtype)}
