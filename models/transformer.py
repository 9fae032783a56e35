"""The world model's trunk: blocks of attention and MLP, modulated by one condition vector a frame (AdaLN and gates).

Every modulation is a linear layer of SiLU(condition), which is computed once a frame and passed as `activated`.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention import Attention, NewFrames, RingCache
from models.embeddings import MLP
from models.kernels.modulated_norm import modulated_norm
from models.rotary import RotaryTables


class AdaLN(nn.Module):
    """Scale and shift of a LayerNorm, computed from the frame's condition; `modulated_norm` applies them."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc = nn.Linear(d_model, 2 * d_model)

    def modulation(self, activated: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1 + scale, shift), each of the shape of `activated`, SiLU(condition) [b, n, 1, d]."""
        scale, shift = self.fc(activated).chunk(2, dim=-1)
        return scale + 1, shift


class Gate(nn.Module):
    """Weight of a branch in the residual stream, computed from the frame's condition."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc_c = nn.Linear(d_model, d_model)

    def forward(self, activated: Tensor) -> Tensor:
        """Map SiLU(condition) [b, n, 1, d] to the weight of the branch, [b, n, 1, d]."""
        return self.fc_c(activated)


class Modulation(NamedTuple):
    """Modulation of one block by the frame's condition: factors (1 + scale), shifts and gates, [b, n, 1, d] each."""

    factor1: Tensor
    shift1: Tensor
    gate1: Tensor
    factor2: Tensor
    shift2: Tensor
    gate2: Tensor


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
        return self.modulated(x, self.modulation(activated), rotation)

    def modulation(self, activated: Tensor) -> Modulation:
        """Return the block's modulation for `activated` = SiLU(condition) [b, n, 1, d]."""
        factor1, shift1 = self.adaln1.modulation(activated)
        factor2, shift2 = self.adaln2.modulation(activated)
        return Modulation(factor1, shift1, self.gate1(activated), factor2, shift2, self.gate2(activated))

    def modulated(
        self,
        x: Tensor,
        modulation: Modulation,
        rotation: Tensor,
        cache: RingCache | None = None,
        new: NewFrames | None = None,
    ) -> Tensor:
        """Map `x` [b, n, m, d] to the same shape; `rotation`, `cache` and `new` are those of `Attention`."""
        normed = modulated_norm(x, modulation.factor1, modulation.shift1).flatten(1, 2)  # [b, n·m, d]
        x = torch.addcmul(x, self.attn(normed, rotation, cache, new).view_as(x), modulation.gate1)
        return torch.addcmul(x, self.mlp(modulated_norm(x, modulation.factor2, modulation.shift2)), modulation.gate2)


class Transformer(nn.Module):
    """All blocks, and the rotation tables that they share."""

    def __init__(self, d_model: int, n_heads: int, n_layers: int, n_frames: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))
        self.rotary = RotaryTables(d_model // n_heads, n_frames, tokens_per_frame)
        self.register_load_state_dict_post_hook(_rebuild_tables)

    def forward(self, x: Tensor, activated: Tensor) -> Tensor:
        """Map tokens [b, n, m, d] to the same shape; `activated` is SiLU(condition) [b, n, 1, d]."""
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

    def forward(self, x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
        """Map tokens [b, n, k, d] to [b, n, k, channels]; `factor` and `shift` [b, n, 1, d] modulate the norm."""
        return self.proj(F.silu(modulated_norm(x, factor, shift)))


def _rebuild_tables(module: nn.Module, _incompatible_keys: object) -> None:
    """Recompute the rotation tables after a load; raise ValueError where layers have different frequencies."""
    transformer = cast(Transformer, module)
    freqs = [cast(Block, block).attn.rope.pos_emb.freqs for block in transformer.blocks]
    if freqs[0].is_meta:  # no memory was allocated yet
        return
    for layer, other in enumerate(freqs):
        if not torch.equal(other, freqs[0]):
            raise ValueError(
                f"blocks.{layer}.attn.rope.pos_emb.freqs differs from that of blocks.0; "
                "all layers share one rotation table, so a checkpoint must hold the same frequencies in each"
            )
    transformer.rotary.rebuild(freqs[0])
