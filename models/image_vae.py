"""The OWL image VAE: a residual convolutional autoencoder between pictures and square latents.

Tensors are channels first throughout: with channels last the full-size decoder takes 28 ms instead of 16 ms in eager
bf16 on an H200 (the bicubic kernel reads across channels), and is not faster when compiled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.initialisation import draw_normal, draw_uniform
from models.params import Params, require, require_positive
from models.precision import at_least_fp32

CHANNELS_PER_GROUP = 16  # of grouped convolutions and norms in residual blocks
LANDSCAPE = (360, 640)  # height and width of a picture
SQUARE = 512  # side of the square that a landscape picture is resized to
OUTPUT_GROUPS = 32  # of the decoder's last norm


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """Return `x` [b, c, h, w] resized to [b, c, height, width]: bicubic, no aligned corners, no antialias."""
    return F.interpolate(x, size=(height, width), mode="bicubic", align_corners=False, antialias=False)


def repeat_add(x: Tensor, narrow: Tensor) -> Tensor:
    """Return `x` [b, k·c, h, w] plus `narrow` [b, c, h, w] repeated k times, without storing the repeated tensor."""
    return (x.unflatten(1, (-1, narrow.shape[1])) + narrow.unsqueeze(1)).flatten(1, 2)


def block_mean(x: Tensor, channels: int) -> Tensor:
    """Return [b, channels, …], the mean over k of `x` [b, k·channels, …] (block-wise)."""
    return x.unflatten(1, (-1, channels)).mean(1)


def group_variance(x: Tensor) -> Tensor:
    """Return the biased variance over the last dim, fp32 (fp64 for fp64)."""
    if x.is_cuda and x.element_size() < 4 and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # `out` makes the reduction read 16 bits and accumulate in fp32, so eager mode needs no fp32 copy of the
        # activations (the largest is 256 MiB). Compiled code fuses the cast below.
        return torch.var(x, dim=-1, correction=0, out=x.new_empty(x.shape[:-1], dtype=torch.float32))
    return torch.var(at_least_fp32(x), dim=-1, correction=0)


class GroupScale(nn.Module):
    """Divides each group of channels by its standard deviation; the mean is not subtracted."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.gain = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [b, c, h, w]: one reading pass, then one multiplication by a scale for each channel."""
        deviation_inverse = torch.rsqrt(group_variance(x.reshape(x.shape[0], self.groups, -1)) + 1e-6)
        scale = (1 + at_least_fp32(self.gain)).view(self.groups, -1) * deviation_inverse.unsqueeze(-1)
        return x * scale.view(x.shape[0], -1, 1, 1).to(x.dtype)


class ResBlock(nn.Module):
    """1×1 conv to twice the width, grouped 3×3 conv, 1×1 conv back, plus the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = 2 * channels
        groups = inner // CHANNELS_PER_GROUP
        self.conv1 = nn.Conv2d(channels, inner, 1)
        self.norm1 = GroupScale(inner, groups)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, groups=groups)
        self.norm2 = GroupScale(inner, groups)
        self.conv3 = nn.Conv2d(inner, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, c, h, w] to the same shape."""
        h = F.leaky_relu(self.norm1(self.conv1(x)), 0.01)  # [b, 2c, h, w]
        h = F.leaky_relu(self.norm2(self.conv2(h)), 0.01)
        return x + self.conv3(h)


def _res_blocks(channels: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(ResBlock(channels) for _ in range(count)))


class SameStage(nn.Module):
    """Residual blocks at one resolution, plus the input."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.blocks = _res_blocks(channels, count)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, c, h, w] to the same shape."""
        return x + self.blocks(x)


class Projection(nn.Module):
    """A convolution without bias under the published name `proj`."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, channels_in, h, w] to [b, channels_out, h, w]."""
        return self.proj(x)


class UpStage(nn.Module):
    """Doubles the resolution; the shortcut is a pixel shuffle, repeated to the new width."""

    def __init__(self, channels_in: int, channels_out: int, count: int) -> None:
        super().__init__()
        self.up = Projection(channels_in, channels_out) if channels_in != channels_out else nn.Identity()
        self.blocks = _res_blocks(channels_out, count)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, channels_in, h, w] to [b, channels_out, 2h, 2w]."""
        y = resize(self.up(x), 2 * x.shape[2], 2 * x.shape[3])
        return repeat_add(self.blocks(y), F.pixel_shuffle(x, 2))


class DownStage(nn.Module):
    """Halves the resolution; the shortcut is a pixel unshuffle, averaged down to the new width."""

    def __init__(self, channels_in: int, channels_out: int, count: int) -> None:
        super().__init__()
        self.channels_out = channels_out
        self.blocks = _res_blocks(channels_in, count)
        self.down = Projection(channels_in, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, channels_in, h, w] to [b, channels_out, h/2, w/2]."""
        y = self.down(resize(self.blocks(x), x.shape[2] // 2, x.shape[3] // 2))
        return y + block_mean(F.pixel_unshuffle(x, 2), self.channels_out)


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
        require(
            len(self.sample_size) == 2 and all(isinstance(side, int) and side >= 1 for side in self.sample_size),
            f"sample_size must be a height and a width in pixels, not {self.sample_size}",
        )
        height, width = self.sample_size
        require(
            self.landscape or abs(width / height - LANDSCAPE[1] / LANDSCAPE[0]) > 0.01,
            f"sample_size {list(self.sample_size)} is 16:9, where only {list(LANDSCAPE)} is supported: another size "
            "would be another network",
        )
        require(
            self.ch_0 % OUTPUT_GROUPS == 0, f"ch_0 must be a multiple of {OUTPUT_GROUPS} (output norm), not {self.ch_0}"
        )
        for widths in (self.encoder_widths, self.decoder_widths):
            require(
                all(wide in (narrow, 2 * narrow) for narrow, wide in pairwise(widths)),
                f"widths must stay or double from stage to stage; ch_0={self.ch_0} and ch_max={self.ch_max} give "
                f"{widths}: choose ch_max = ch_0 times a power of two",
            )
            require(
                widths[-1] % self.latent_channels == 0,
                f"the widest stage ({widths[-1]}) must be a multiple of latent_channels={self.latent_channels}",
            )

    @property
    def landscape(self) -> bool:
        """True if pictures are 360 × 640 and are resized to and from a square."""
        return self.sample_size == LANDSCAPE

    @property
    def encoder_widths(self) -> list[int]:
        """Widths of the encoder's stages, narrowest first."""
        return self._widths(len(self.encoder_blocks_per_stage))

    @property
    def decoder_widths(self) -> list[int]:
        """Widths of the decoder's stages, narrowest first; the decoder runs them backwards."""
        return self._widths(len(self.decoder_blocks_per_stage))

    def _widths(self, stages: int) -> list[int]:
        return [min(self.ch_0 * 2**stage, self.ch_max) for stage in range(stages)]

    @classmethod
    def full(cls) -> Self:
        """Return the published 128× model."""
        return cls(LANDSCAPE, 3, 4, latent_channels=128, ch_0=128, ch_max=1024, **_stages((3,) * 8))

    @classmethod
    def tiny(cls) -> Self:
        """Return a test size that runs in milliseconds on a CPU and has every kind of stage."""
        return cls(LANDSCAPE, 3, 4, latent_channels=16, ch_0=32, ch_max=64, **_stages((1, 1, 2)))


def _stages(counts: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {"encoder_blocks_per_stage": counts, "decoder_blocks_per_stage": counts}


class ImageDecoder(nn.Module):
    """Latents to pictures."""

    def __init__(self, params: ImageVAEParams) -> None:
        super().__init__()
        self.params = params
        widths, counts = params.decoder_widths, params.decoder_blocks_per_stage
        self.conv_in = nn.Conv2d(params.latent_channels, widths[-1], 1, bias=False)
        self.starter = SameStage(widths[-1], counts[-1])
        stages = zip(reversed(list(pairwise(widths))), counts[:-1], strict=True)
        self.blocks = nn.Sequential(*(UpStage(wide, narrow, count) for (narrow, wide), count in stages))
        self.s_to_l = Projection(widths[0], widths[0], kernel=3) if params.landscape else None
        self.norm_out = GroupScale(widths[0], OUTPUT_GROUPS)
        self.conv_out = nn.Conv2d(widths[0], params.channels, 3, padding=1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents [b, latent_channels, s, s] to pictures [b, channels, H, W], about -1 … 1."""
        x = self.starter(repeat_add(self.conv_in(z), z))
        x = self.blocks(x)
        if self.s_to_l is not None:
            height, width = round(x.shape[2] * LANDSCAPE[0] / SQUARE), round(x.shape[3] * LANDSCAPE[1] / SQUARE)
            x = resize(self.s_to_l(x), height, width)
        return self.conv_out(F.silu(self.norm_out(x)))


class ImageEncoder(nn.Module):
    """Pictures to latents."""

    def __init__(self, params: ImageVAEParams) -> None:
        super().__init__()
        self.params = params
        widths, counts = params.encoder_widths, params.encoder_blocks_per_stage
        self.conv_in = nn.Conv2d(params.channels, widths[0], 3, padding=1, bias=False)
        self.l_to_s = Projection(widths[0], widths[0], kernel=3) if params.landscape else None
        stages = zip(pairwise(widths), counts[:-1], strict=True)
        self.blocks = nn.Sequential(*(DownStage(narrow, wide, count) for (narrow, wide), count in stages))
        self.final = SameStage(widths[-1], counts[-1])
        self.conv_out = nn.Conv2d(widths[-1], params.latent_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Encode pictures [b, channels, H, W] to latents [b, latent_channels, s, s]."""
        x = self.conv_in(x)
        if self.l_to_s is not None:
            height, width = round(x.shape[2] * SQUARE / LANDSCAPE[0]), round(x.shape[3] * SQUARE / LANDSCAPE[1])
            x = self.l_to_s(resize(x, height, width))
        x = self.final(self.blocks(x))
        return self.conv_out(x) + block_mean(x, self.params.latent_channels)


def build_image_decoder(**config: Any) -> ImageDecoder:
    """Build the decoder alone from the keys of a published config."""
    return ImageDecoder(ImageVAEParams.from_config(config))


def build_image_encoder(**config: Any) -> ImageEncoder:
    """Build the encoder alone from the keys of a published config."""
    return ImageEncoder(ImageVAEParams.from_config(config))


def picture_size(params: ImageVAEParams) -> tuple[int, int]:
    """Return height and width of a picture that the encoder maps to a latent of latent_size × latent_size.

    A landscape picture is first resized to a square. If no landscape picture is resized to exactly this square, the
    next larger square (and latent) that has one is used.
    """
    step = 2 ** (len(params.encoder_blocks_per_stage) - 1)
    square = params.latent_size * step
    if not params.landscape:
        return square, square
    while round(round(square * LANDSCAPE[0] / SQUARE) * SQUARE / LANDSCAPE[0]) != square:
        square += step
    return round(square * LANDSCAPE[0] / SQUARE), round(square * LANDSCAPE[1] / SQUARE)


def image_decoder_inputs(
    module: ImageDecoder,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return random latents [batch·frames, latent_channels, s, s] for `ImageDecoder.forward`."""
    params = module.params
    shape = (batch * frames, params.latent_channels, params.latent_size, params.latent_size)
    return {"z": draw_normal(*shape, generator=generator, device=device, dtype=dtype)}


def image_encoder_inputs(
    module: ImageEncoder,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return random pictures [batch·frames, channels, H, W] in -1 … 1 for `ImageEncoder.forward`."""
    shape = (batch * frames, module.params.channels, *picture_size(module.params))
    return {"x": draw_uniform(*shape, generator=generator, device=device, dtype=dtype)}
