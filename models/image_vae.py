"""The OWL image VAE: a residual convolutional autoencoder between pictures and square latents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn
from torch.nn import functional as F

from models import image_blocks as blocks
from models.params import Params, require, require_positive

LANDSCAPE = (360, 640)
SQUARE = 512  # the square picture that a landscape one is stretched to
OUTPUT_GROUPS = 32


@dataclass(frozen=True)
class ImageVAEParams(Params):
    """Sizes of an image VAE, named as in the published configs."""

    sample_size: tuple[int, int]
    channels: int
    latent_size: int
    latent_channels: int
    ch_0: int
    ch_max: int
    encoder_blocks_per_stage: tuple[int, ...]
    decoder_blocks_per_stage: tuple[int, ...]

    def __post_init__(self) -> None:
        size = self.sample_size
        object.__setattr__(self, "sample_size", tuple(size) if isinstance(size, Sequence) else (size, size))
        for name in ("encoder_blocks_per_stage", "decoder_blocks_per_stage"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            require(len(getattr(self, name)) >= 1, f"{name} must name at least one stage")
            require(min(getattr(self, name)) >= 1, f"{name} must be counts of at least 1, not {getattr(self, name)}")
        require_positive(self, "channels", "latent_size", "latent_channels", "ch_0", "ch_max")
        require(len(self.sample_size) == 2, f"sample_size must be a height and a width, not {self.sample_size}")
        require(
            self.ch_0 % OUTPUT_GROUPS == 0, f"ch_0 must be a multiple of {OUTPUT_GROUPS} (output norm), not {self.ch_0}"
        )
        for widths in (self.encoder_widths, self.decoder_widths):
            require(
                all(wide in (narrow, 2 * narrow) for narrow, wide in blocks.width_pairs(widths)),
                f"widths must stay or double from stage to stage; ch_0={self.ch_0} and ch_max={self.ch_max} give "
                f"{widths}: choose ch_max = ch_0 times a power of two",
            )
            require(
                widths[-1] % self.latent_channels == 0,
                f"the widest stage ({widths[-1]}) must be a multiple of latent_channels={self.latent_channels}",
            )

    @property
    def landscape(self) -> bool:
        """Whether pictures are 360 × 640 and pass through a resize to and from a square."""
        return self.sample_size == LANDSCAPE

    @property
    def encoder_widths(self) -> list[int]:
        """Widths of the encoder's stages, narrowest first."""
        return blocks.stage_widths(self.ch_0, self.ch_max, len(self.encoder_blocks_per_stage))

    @property
    def decoder_widths(self) -> list[int]:
        """Widths of the decoder's stages, narrowest first; the decoder runs them backwards."""
        return blocks.stage_widths(self.ch_0, self.ch_max, len(self.decoder_blocks_per_stage))

    @classmethod
    def full(cls) -> Self:
        """Return the published 128× model."""
        return cls(LANDSCAPE, 3, 4, latent_channels=128, ch_0=128, ch_max=1024, **_stages((3,) * 8))

    @classmethod
    def tiny(cls) -> Self:
        """Return a model that a laptop's processor runs in milliseconds, with every kind of stage in it."""
        return cls(LANDSCAPE, 3, 4, latent_channels=16, ch_0=32, ch_max=64, **_stages((1, 1, 2)))


def _stages(counts: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {"encoder_blocks_per_stage": counts, "decoder_blocks_per_stage": counts}


class ImageDecoder(nn.Module):
    """Latent to picture."""

    def __init__(self, params: ImageVAEParams) -> None:
        super().__init__()
        self.params = params
        widths, counts = params.decoder_widths, params.decoder_blocks_per_stage
        self.conv_in = nn.Conv2d(params.latent_channels, widths[-1], 1, bias=False)
        self.starter = blocks.SameStage(widths[-1], counts[-1])
        pairs = reversed(blocks.width_pairs(widths))
        self.blocks = nn.Sequential(
            *(blocks.UpStage(wide, narrow, count) for (narrow, wide), count in zip(pairs, counts[:-1], strict=True))
        )
        self.s_to_l = blocks.Projection(widths[0], widths[0], kernel=3) if params.landscape else None
        self.norm_out = blocks.GroupScale(widths[0], OUTPUT_GROUPS)
        self.conv_out = nn.Conv2d(widths[0], params.channels, 3, padding=1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents [b, latent_channels, s, s] to pictures [b, channels, H, W], about -1 … 1."""
        x = self.starter(blocks.repeat_add(self.conv_in(z), z))
        x = self.blocks(x)
        if self.s_to_l is not None:
            height, width = round(x.shape[2] * LANDSCAPE[0] / SQUARE), round(x.shape[3] * LANDSCAPE[1] / SQUARE)
            x = blocks.resize(self.s_to_l(x), height, width)
        return self.conv_out(F.silu(self.norm_out(x)))


class ImageEncoder(nn.Module):
    """Picture to latent."""

    def __init__(self, params: ImageVAEParams) -> None:
        super().__init__()
        self.params = params
        widths, counts = params.encoder_widths, params.encoder_blocks_per_stage
        self.conv_in = nn.Conv2d(params.channels, widths[0], 3, padding=1, bias=False)
        self.l_to_s = blocks.Projection(widths[0], widths[0], kernel=3) if params.landscape else None
        pairs = blocks.width_pairs(widths)
        self.blocks = nn.Sequential(
            *(blocks.DownStage(narrow, wide, count) for (narrow, wide), count in zip(pairs, counts[:-1], strict=True))
        )
        self.final = blocks.SameStage(widths[-1], counts[-1])
        self.conv_out = nn.Conv2d(widths[-1], params.latent_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Encode pictures [b, channels, H, W] to latents [b, latent_channels, s, s]."""
        x = self.conv_in(x)
        if self.l_to_s is not None:
            height, width = round(x.shape[2] * SQUARE / LANDSCAPE[0]), round(x.shape[3] * SQUARE / LANDSCAPE[1])
            x = self.l_to_s(blocks.resize(x, height, width))
        x = self.final(self.blocks(x))
        return self.conv_out(x) + blocks.block_mean(x, self.params.latent_channels)


class ImageVAE(nn.Module):
    """Encoder and decoder under their published names."""

    def __init__(self, params: ImageVAEParams) -> None:
        super().__init__()
        self.params = params
        self.encoder = ImageEncoder(params)
        self.decoder = ImageDecoder(params)

    def forward(self, x: Tensor) -> Tensor:
        """Encode pictures and decode them again."""
        return self.decoder(self.encoder(x))
