"""CLIP's text and vision tower as two components, each with its projection, from transformers (extra [hub]).

Factories are like those of `models.hub`. Default sizes are those of ViT-L/14. Source: https://huggingface.co/openai/clip-vit-large-patch14/blob/main/config.json
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.hub import LibraryModel, make_model
from models.initialisation import draw_normal
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

#: Old configs give id 2 as the end of text. The library then pools at the highest id of a row, which is CLIP's true end
#: of text.
LEGACY_EOS = 2


class ClipText(LibraryModel):
    """CLIP's text tower: pooled at the first end-of-text token, then projected."""

    causal_mask: Tensor | None

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        config: Any = model.config
        mask = None
        if config._attn_implementation == "eager":
            # Added to the scores. The library builds it in forward and copies a number from the host, which a CUDA
            # graph cannot capture. With sdpa no mask is needed: is_causal is set.
            n = config.max_position_embeddings
            mask = torch.full((1, 1, n, n), -torch.inf).triu(1)
        self.register_buffer("causal_mask", mask, persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map int64 ids [b, n], with an end of text in each row, to unnormalised embeddings [b, projection_dim]."""
        n = input_ids.shape[1]
        mask = None if self.causal_mask is None else self.causal_mask[:, :, :n, :n]
        return self.model(input_ids=input_ids, attention_mask=mask).text_embeds


class ClipVision(LibraryModel):
    """CLIP's vision tower: pooled at the class token, then projected."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map images [b, 3, image_size, image_size] to unnormalised embeddings [b, projection_dim]."""
        return self.model(pixel_values=pixel_values).image_embeds


def build_clip_text(folder: str | None = None, *, attn_implementation: str = "sdpa", **config: Any) -> ClipText:
    """Build the text tower from keys of CLIPTextConfig, or from a folder of it or of a CLIPModel.

    End of text is the last id of the vocabulary, as in CLIP, whatever `vocab_size` is.

    Args:
        folder: made by save_pretrained; its own config is used, and the values in `config` are ignored. None: random
            weights.
        attn_implementation: "sdpa", or "eager" for attention as matmul and softmax.
        config: keys that differ from ViT-L/14.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: an unknown config key, or an incomplete folder.

    """
    from transformers.models.clip.modeling_clip import CLIPTextModelWithProjection

    full_config = {**VIT_L14_TEXT, **config}
    full_config.setdefault("eos_token_id", full_config["vocab_size"] - 1)
    model = make_model(CLIPTextModelWithProjection, folder, full_config, attn_implementation=attn_implementation)
    return ClipText(model)


def build_clip_vision(folder: str | None = None, *, attn_implementation: str = "sdpa", **config: Any) -> ClipVision:
    """Build the vision tower from keys of CLIPVisionConfig, or from a folder of it or of a CLIPModel.

    Arguments and errors are those of `build_clip_text`.
    """
    from transformers.models.clip.modeling_clip import CLIPVisionModelWithProjection

    full_config = {**VIT_L14_VISION, **config}
    model = make_model(CLIPVisionModelWithProjection, folder, full_config, attn_implementation=attn_implementation)
    return ClipVision(model)


def clip_text_inputs(
    module: ClipText,
    *,
    batch: int,
    tokens: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return random ids, int64 [batch, tokens] whatever `dtype` is.

    A row begins with the start of text, has the end of text at a random position and is padded with it, as CLIP's
    tokenizer does.

    Raises:
        ValueError: `tokens` is below 2 (start and end of text) or above the tower's number of positions.

    """
    config: Any = module.model.config
    longest = config.max_position_embeddings
    require(2 <= tokens <= longest, f"tokens={tokens}: must be 2 (start and end of text) to {longest}")
    end_id = config.vocab_size - 1 if config.eos_token_id == LEGACY_EOS else config.eos_token_id
    ids = torch.randint(0, end_id - 1, (batch, tokens), generator=generator, device=generator.device)
    ids[:, 0] = end_id - 1  # in CLIP's vocabulary the start of text is the id before the end
    end = torch.randint(1, tokens, (batch, 1), generator=generator, device=generator.device)
    ids = ids.masked_fill(torch.arange(tokens, device=generator.device) >= end, end_id)
    return {"input_ids": ids.to(device)}


def clip_vision_inputs(
    module: ClipVision, *, batch: int, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return random images [batch, 3, image_size, image_size] with mean 0 and variance 1, as CLIP normalises them."""
    config: Any = module.model.config
    shape = (batch, config.num_channels, config.image_size, config.image_size)
    return {"pixel_values": draw_normal(*shape, generator=generator, device=device, dtype=dtype)}
