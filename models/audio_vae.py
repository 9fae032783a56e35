"""The OWL audio VAE: a residual convolutional autoencoder between stereo sound and one latent every 735 samples."""

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from models.audio_blocks import KERNEL, Conv1d, DownStage, SameStage, UpStage
from models.params import Params, require, require_positive


@dataclass(frozen=True)
class AudioVAEParams(Params):
    """Sizes of an audio VAE, named as in the published configs."""

    channels: int
    latent_channels: int
    ch_0: int
    ch_max: int
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "strides", tuple(self.strides))
        require_positive(self, "channels", "latent_channels", "ch_0", "ch_max")
        require(len(self.strides) >= 1, "strides must have at least one entry")
        require(min(self.strides) >= 1, f"strides must be at least 1, not {self.strides}")
        require(
            self.strides[-1] == 1,
            f"the last stride belongs to the stage that does not resample and must be 1, not {self.strides[-1]}",
        )
        bad = [width for width in self.widths if width % 8]
        require(not bad, f"every width must be a multiple of 8 (groups of 16 in twice the width); {bad} are not")

    @property
    def widths(self) -> list[int]:
        """Width of each rate, narrowest (the waveform's) first: doubled a stage, at most `ch_max`."""
        return [min(self.ch_0 * 2**stage, self.ch_max) for stage in range(len(self.strides))]

    @property
    def samples_per_latent(self) -> int:
        """Samples of the waveform that one latent stands for."""
        return math.prod(self.strides)

    @classmethod
    def full(cls) -> Self:
        """Return the published model."""
        return cls(channels=2, latent_channels=64, ch_0=128, ch_max=512, strides=(3, 5, 7, 7, 1))

    @classmethod
    def tiny(cls) -> Self:
        """Return a model that a laptop's processor runs in milliseconds."""
        return cls(channels=2, latent_channels=8, ch_0=16, ch_max=32, strides=(2, 3, 2, 1))


class AudioDecoder(nn.Module):
    """Latents to waveform."""

    def __init__(self, params: AudioVAEParams) -> None:
        super().__init__()
        self.params = params
        widths = params.widths
        stages = list(zip(widths[1:], widths[:-1], params.strides[:-1], strict=True))
        self.conv_in = Conv1d(params.latent_channels, widths[-1], 1, bias=False)
        self.starter = SameStage(widths[-1])
        self.blocks = nn.Sequential(*(UpStage(wide, narrow, stride) for wide, narrow, stride in reversed(stages)))
        self.conv_out = Conv1d(widths[0], params.channels, KERNEL, padding=KERNEL // 2, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents [b, latent_channels, l] to sound [b, channels, l·samples_per_latent] in (-1, 1)."""
        return self.conv_out(self.blocks(self.starter(self.conv_in(z)))).tanh().contiguous()


class AudioEncoder(nn.Module):
    """Waveform to latents."""

    def __init__(self, params: AudioVAEParams) -> None:
        super().__init__()
        self.params = params
        widths = params.widths
        stages = zip(widths[:-1], widths[1:], params.strides[:-1], strict=True)
        self.conv_in = Conv1d(params.channels, widths[0], KERNEL, padding=KERNEL // 2, bias=False)
        self.blocks = nn.Sequential(*(DownStage(narrow, wide, stride) for narrow, wide, stride in stages))
        self.final = SameStage(widths[-1])
        self.conv_out = Conv1d(widths[-1], params.latent_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Encode sound [b, channels, samples] to latents [b, latent_channels, samples / samples_per_latent]."""
        return self.conv_out(self.final(self.blocks(self.conv_in(x)))).contiguous()


class AudioVAE(nn.Module):
    """Encoder and decoder under their published names."""

    def __init__(self, params: AudioVAEParams) -> None:
        super().__init__()
        self.params = params
        self.encoder = AudioEncoder(params)
        self.decoder = AudioDecoder(params)

    def forward(self, x: Tensor) -> Tensor:
        """Encode sound and decode it again."""
        return self.decoder(self.encoder(x))
