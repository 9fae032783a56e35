"""The OWL world model: a rectified-flow transformer over video and audio latents, in its window form."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.embeddings import ControlEmbedding, LearnedPositions, TimestepEmbedding
from models.initialisation import draw_normal
from models.params import Params, require, require_positive
from models.transformer import OutputHead, Transformer

HEADS = ("proj_out", "audio_proj_out")  # from tokens to the latents of video and of audio


@dataclass(frozen=True)
class WorldModelParams(Params):
    """Sizes of a world model, named as in the published configs."""

    sample_size: int
    channels: int
    audio_channels: int
    n_layers: int
    n_heads: int
    d_model: int
    tokens_per_frame: int
    n_buttons: int
    n_frames: int
    n_mouse_axes: int = 2

    def __post_init__(self) -> None:
        require_positive(self, *self.__dataclass_fields__)
        require(
            self.tokens_per_frame == self.sample_size**2 + 1,
            f"tokens_per_frame must be sample_size² + 1 = {self.sample_size**2 + 1} (one for each latent pixel and one "
            f"for audio), not {self.tokens_per_frame}",
        )
        require(
            self.d_model % self.n_heads == 0,
            f"d_model must be a multiple of n_heads; {self.d_model} is not a multiple of {self.n_heads}",
        )
        require(
            self.head_dim % 8 == 0,
            f"d_model / n_heads must be a multiple of 8 (two rotary axes of head_dim/8 pairs), not {self.head_dim}",
        )
        require(self.n_mouse_axes == 2, f"n_mouse_axes must be 2 (an angle needs two), not {self.n_mouse_axes}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @classmethod
    def full(cls) -> Self:
        """Return the published 1B model."""
        return cls(4, 128, 64, n_layers=25, n_heads=24, d_model=1536, tokens_per_frame=17, n_buttons=11, n_frames=60)

    @classmethod
    def full_200m(cls) -> Self:
        """Return the published 200M-class model."""
        return cls(4, 128, 64, n_layers=13, n_heads=16, d_model=1024, tokens_per_frame=17, n_buttons=11, n_frames=30)

    @classmethod
    def tiny(cls) -> Self:
        """Return a test size that runs in milliseconds on a CPU."""
        return cls(2, 8, 6, n_layers=2, n_heads=4, d_model=64, tokens_per_frame=5, n_buttons=11, n_frames=6)


class WorldModel(nn.Module):
    """Predicts the velocity of video and audio latents at their noise levels, given the controls of each frame."""

    def __init__(self, params: WorldModelParams) -> None:
        super().__init__()
        self.params = params
        d = params.d_model
        self.transformer = Transformer(d, params.n_heads, params.n_layers, params.n_frames, params.tokens_per_frame)
        self.control_embed = ControlEmbedding(params.n_buttons, d)
        self.t_embed = TimestepEmbedding(d)
        self.proj_in = nn.Linear(params.channels, d, bias=False)
        self.proj_out = OutputHead(d, params.channels)
        self.audio_proj_in = nn.Linear(params.audio_channels, d, bias=False)
        self.audio_proj_out = OutputHead(d, params.audio_channels)
        self.pos_enc = LearnedPositions(params.tokens_per_frame * params.n_frames, d)

    def embed(self, x: Tensor, audio: Tensor) -> Tensor:
        """Return tokens [b, n, m, d] of latents shaped as for `forward`: pixels, rows first, then the audio latent."""
        video = self.proj_in(x.flatten(3).transpose(2, 3))  # [b, n, h·w, d]
        return torch.cat((video, self.audio_proj_in(audio).unsqueeze(2)), dim=2)

    def heads(
        self, tokens: Tensor, video: tuple[Tensor, Tensor], audio: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the velocity of video [b, n, c, h, w] and audio [b, n, ca] from the last block's tokens.

        `video` and `audio` are the modulations (factor, shift) [b, n, 1, d] of the two heads' norms.
        """
        size = self.params.sample_size
        picture = self.proj_out(tokens[:, :, :-1], *video).transpose(2, 3).unflatten(3, (size, size))
        return picture, self.audio_proj_out(tokens[:, :, -1:], *audio).squeeze(2)

    def forward(self, x: Tensor, audio: Tensor, t: Tensor, mouse: Tensor, btn: Tensor) -> tuple[Tensor, Tensor]:
        """Denoise a window of n ≤ n_frames frames.

        Args:
            x: video latents [b, n, c, h, w].
            audio: audio latents [b, n, ca].
            t: noise levels in [0, 1], [b, n]; keep them in fp32, whatever the model's dtype.
            mouse: mouse movement [b, n, 2].
            btn: buttons held, 0 or 1, [b, n, n_buttons].

        Returns:
            Velocity of video [b, n, c, h, w] and of audio [b, n, ca].

        Raises:
            ValueError: the window is longer than the model's, or the latents are of another size.
        """
        frames, size = x.shape[1], self.params.sample_size
        if not 1 <= frames <= self.params.n_frames or x.shape[3:] != (size, size):
            raise ValueError(
                f"x must be [b, n, {self.params.channels}, {size}, {size}] with 1 to {self.params.n_frames} frames, "
                f"not {tuple(x.shape)}"
            )
        activated = F.silu(self.t_embed(t) + self.control_embed(mouse, btn)).unsqueeze(2)  # [b, n, 1, d]
        tokens = self.embed(x, audio) + self.pos_enc(frames, self.params.tokens_per_frame)
        tokens = self.transformer(tokens, activated)
        heads = (head.norm.modulation(activated) for head in (self.proj_out, self.audio_proj_out))
        return self.heads(tokens, *heads)


def world_model_inputs(
    module: WorldModel,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return random inputs of `WorldModel.forward` by argument name; `t` is fp32, all others are in `dtype`."""
    params, size = module.params, module.params.sample_size
    normal = partial(draw_normal, batch, frames, generator=generator, device=device, dtype=dtype)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(batch, frames, *shape, generator=generator, device=generator.device).to(device)

    return {
        "x": normal(params.channels, size, size),
        "audio": normal(params.audio_channels),
        "t": uniform(),
        "mouse": 3 * normal(params.n_mouse_axes),
        "btn": uniform(params.n_buttons).round().to(dtype),
    }


def build_world_model(**config: Any) -> WorldModel:
    """Build a world model from the keys of a published config.

    Raises:
        ValueError: a key is missing, or its value is not supported.

    """
    return WorldModel(WorldModelParams.from_config(config))
