"""The world model's trunk: blocks of attention and MLP, steered by one condition vector a frame."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention import Attention
from models.conditioning import AdaLN, Gate
from models.embeddings import MLP
from models.rotary import RotaryTables


class Block(nn.Module):
    """`x + gate1(attn(adaln1(x)))`, then `x + gate2(mlp(adaln2(x)))`."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.attn = Attention(d_model, n_heads)
        self.mlp = MLP(d_model, 4 * d_model, d_model)
        self.adaln1 = AdaLN(d_model)
        self.gate1 = Gate(d_model)
        self.adaln2 = AdaLN(d_model)
        self.gate2 = Gate(d_model)

    def forward(self, x: Tensor, activated: Tensor, rotation: Tensor) -> Tensor:
        """Map `x` [b, n, m, d] to the same shape; `activated` is SiLU(condition) [b, n, 1, d]."""
        attended = self.attn(self.adaln1(x, activated).flatten(1, 2), rotation)  # [b, n·m, d]
        x = self.gate1(x, attended.view_as(x), activated)
        return self.gate2(x, self.mlp(self.adaln2(x, activated)), activated)


class Transformer(nn.Module):
    """The blocks, and the rotation tables that they share."""

    def __init__(self, d_model: int, n_heads: int, n_layers: int, n_frames: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))
        self.rotary = RotaryTables(d_model // n_heads, n_frames, tokens_per_frame)
        self.register_load_state_dict_post_hook(_rebuild_tables)

    def forward(self, x: Tensor, activated: Tensor) -> Tensor:
        """Map tokens [b, n, m, d] to the same shape."""
        rotation = self.rotary(x.shape[1])
        for block in self.blocks:
            x = block(x, activated, rotation)
        return x


class OutputHead(nn.Module):
    """AdaLN, SiLU and a linear layer from tokens to latents."""

    def __init__(self, d_model: int, channels: int) -> None:
        super().__init__()
        self.norm = AdaLN(d_model)
        self.proj = nn.Linear(d_model, channels)

    def forward(self, x: Tensor, activated: Tensor) -> Tensor:
        """Map tokens [b, n, k, d] to [b, n, k, channels]."""
        return self.proj(F.silu(self.norm(x, activated)))


def _rebuild_tables(module: nn.Module, _incompatible_keys: object) -> None:
    """After a load: the tables follow the loaded frequencies, which must be the same in all layers."""
    transformer = cast(Transformer, module)
    freqs = [cast(Block, block).attn.rope.pos_emb.freqs for block in transformer.blocks]
    if freqs[0].is_meta:  # nothing was loaded into memory yet
        return
    for layer, other in enumerate(freqs):
        if not torch.equal(other, freqs[0]):
            raise ValueError(
                f"blocks.{layer}.attn.rope.pos_emb.freqs differs from that of blocks.0; "
                "one rotation table serves all layers, so a checkpoint must hold the same frequencies in each"
            )
    transformer.rotary.rebuild(freqs[0])
