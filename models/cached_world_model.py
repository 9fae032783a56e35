"""The world model with a key-value cache: each call generates one frame at a cost that does not grow with history.

Frame i attends to the n_frames frames i - n_frames + 1 … i. A finished frame is committed: its keys and values are
computed once more, from its final latent with its own controls at the noise level `t_commit`, and stay in the cache.
One pass over all finished frames, with a mask that lets each see its window, would compute the same keys and values.

All indices are tensors on the device and all shapes are fixed, so one captured or compiled call serves every frame.

The way of a frame: `frame` denoises it in passes, each a `_velocity`. `_run_blocks` computes all layers of a pass. A
layer is a `Block`, whose `Attention` writes keys and values into the layer's ring and attends to the ring. In half
precision on a GPU, `fused_blocks.run_blocks` computes the same layers in fewer launches.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention import NewFrames, RingCache
from models.kernels.eight_bits import MULTIPLE, WEIGHTS
from models.kernels.ring_attention import KERNELS, Kernel, visibility
from models.kernels.skinny_linear import HALF
from models.modulation import MergedModulation, materialized
from models.params import Params, require, require_positive
from models.precision import ConstantBuffers, at_least_fp32
from models.skinny_linear import SkinnyLinear
from models.transformer import Block
from models.world_model import WorldModel, WorldModelParams

COMMITS = ("fused", "separate")


@dataclass(frozen=True)
class FrameOptions(Params):
    """How a frame is generated.

    Attributes:
        steps: denoising passes a frame: Euler steps from noise (t = 1) to the latent (t = 0).
        t_commit: noise level, 0 to 1, at which a finished frame's keys and values are computed for the cache.
        commit: `fused`: a frame is committed in the first pass of the next frame, which then has twice the tokens but
            reads the weights once; `separate`: a frame is committed in an additional pass.
        guidance: scale of classifier-free guidance, None for off. It doubles the batch: the second half is the
            unconditional branch, whose controls are mouse = 0 and buttons = 0.
        batch: sequences generated in parallel.
        kernel: `triton`: the fused Triton kernels; `sdpa`: PyTorch operations; `auto`: Triton where it can run.
        weights: how `quantise` stores the weights that modulate (AdaLN and gates), a third of the 1B model's: `bf16`:
            they stay in the model's dtype; `int8` or `float8_e4m3`: 8 bits, with a scale for each output. Their product
            has few rows (1 + steps a sequence), so that it takes as long as reading the weights does.

    Raises:
        ValueError: a value is out of range.

    """

    steps: int = 1
    t_commit: float = 0.0
    commit: str = "fused"
    guidance: float | None = None
    batch: int = 1
    kernel: str = "auto"
    weights: str = "bf16"

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch")
        require(0 <= self.t_commit <= 1, f"t_commit={self.t_commit}: must be a noise level from 0 to 1")
        require(
            self.guidance is None or (isinstance(self.guidance, int | float) and not isinstance(self.guidance, bool)),
            f"guidance={self.guidance!r}: must be a number, or null for off",
        )
        require(self.commit in COMMITS, f"commit={self.commit!r} must be one of {', '.join(COMMITS)}")
        require(self.kernel in KERNELS, f"kernel={self.kernel!r} must be one of {', '.join(KERNELS)}")
        require(self.weights in WEIGHTS, f"weights={self.weights!r} must be one of {', '.join(WEIGHTS)}")

    @property
    def network_batch(self) -> int:
        """Batch size inside the network, which guidance doubles."""
        return self.batch if self.guidance is None else 2 * self.batch


class NoiseSchedule(ConstantBuffers):
    """Noise levels of the commit and of the denoising steps (equal steps from 1 to 0), as tensors on the device."""

    levels: Tensor
    deltas: Tensor

    def __init__(self, steps: int, t_commit: float) -> None:
        super().__init__()
        self.steps, self.t_commit = steps, t_commit
        self.register_constants()

    def constants(self) -> dict[str, Tensor]:
        """Return `levels` [1 + steps] (the commit's, then each step's) and `deltas` [steps] between steps, fp32."""
        steps = torch.linspace(1, 0, self.steps + 1, dtype=torch.float64, device="cpu")
        commit = torch.tensor([self.t_commit], dtype=torch.float64, device="cpu")
        return {"levels": torch.cat((commit, steps[:-1])).float(), "deltas": (steps[:-1] - steps[1:]).float()}


class CachedWorldModel(WorldModel):
    """A world model that generates one frame after the other; its state dict is that of `WorldModel`.

    In shapes, b is `options.batch`, and B is `options.network_batch`: that of everything inside the network.
    """

    position: Tensor
    last_x: Tensor
    last_audio: Tensor
    last_mouse: Tensor
    last_btn: Tensor

    def __init__(self, params: WorldModelParams, options: FrameOptions) -> None:
        super().__init__(params)
        require(
            options.weights == "bf16" or params.d_model % MULTIPLE == 0,
            f"weights={options.weights!r} needs a d_model that is a multiple of {MULTIPLE}, not {params.d_model}",
        )
        self.options = options
        self.schedule = NoiseSchedule(options.steps, options.t_commit)
        self.modulation = MergedModulation(self)  # takes the place of the AdaLN and gate layers, which it removes
        self.caches = nn.ModuleList(
            # One slot more than the window has frames, see `models.kernels.ring_attention`.
            RingCache(
                options.network_batch, params.n_frames + 1, params.tokens_per_frame, params.n_heads, params.head_dim
            )
            for _ in range(params.n_layers)
        )
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)  # index of the next frame
        size = params.sample_size
        for name, shape in (
            ("x", (params.channels, size, size)),
            ("audio", (params.audio_channels,)),
            ("mouse", (params.n_mouse_axes,)),
            ("btn", (params.n_buttons,)),
        ):
            self.register_buffer(f"last_{name}", torch.zeros(options.batch, *shape), persistent=False)

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that a call changes in place: ring caches, position, and the last frame."""
        rings = (ring for cache in self._rings for ring in (cache.k, cache.v))
        return *rings, self.position, self.last_x, self.last_audio, self.last_mouse, self.last_btn

    @torch.no_grad()
    def reset(self) -> None:
        """Start again at frame 0, in place."""
        for tensor in self.state_tensors():
            tensor.zero_()

    def quantise(self) -> None:
        """Store the weights that modulate as `options.weights` says: once, in fp16 and bf16 only.

        Call it when the weights are final: the model has been loaded and cast.
        """
        linear = self.modulation.linear
        if self.options.weights != "bf16" and isinstance(linear, nn.Linear) and self._rings[0].k.dtype in HALF:
            with torch.inference_mode(False):  # a caller's mode must not become a property of the weights
                self.modulation.linear = SkinnyLinear(linear, self.options.weights)

    @torch.no_grad()
    def prefill(self, x: Tensor, audio: Tensor, mouse: Tensor, btn: Tensor, *, first_frame: int = 0) -> None:
        """Fill the cache with n finished frames in one pass; the next frame then has index `first_frame` + n.

        With `first_frame` > 0 at least n_frames frames are needed: the next frame attends to that many, and with fewer
        it would attend to slots that were never written.

        Args:
            x: video latents [b, n, c, h, w].
            audio: audio latents [b, n, ca].
            mouse: mouse movement [b, n, 2].
            btn: buttons held, 0 or 1, [b, n, n_buttons].
            first_frame: index of the first frame given.

        Raises:
            ValueError: no frames, or too few for this `first_frame`.

        """
        count, m = x.shape[1], self.params.tokens_per_frame
        require(count >= 1, "prefill needs at least 1 frame, not 0")
        require(
            first_frame == 0 or (first_frame > 0 and count >= self.params.n_frames),
            f"prefill of {count} frames at first_frame={first_frame}: the next frame attends to {self.params.n_frames} "
            f"frames. Give at least {self.params.n_frames}, or start at first_frame=0",
        )
        frames = torch.arange(first_frame, first_frame + count, device=x.device)
        age = frames.unsqueeze(1) - frames
        attends = (age >= 0) & (age < self.params.n_frames)
        mask = attends.repeat_interleave(m, 0).repeat_interleave(m, 1)  # [n·m, n·m]
        activated = F.silu(self.t_embed(self.schedule.levels[:1]) + self._control(mouse, btn))  # [B, n, d]
        self._run_blocks(self._doubled(x, audio), self.modulation(activated), frames, mask)
        self.position.fill_(first_frame + count)
        self._store_last(x[:, -1], audio[:, -1], mouse[:, -1], btn[:, -1])

    @torch.no_grad()
    def denoise(self, x: Tensor, audio: Tensor, t: Tensor, mouse: Tensor, btn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocity of the next frame, and write into no slot of the cache but that frame's own.

        The frame before must have been committed, which `prefill` and `commit=separate` do.

        Args:
            x: noisy video latents [b, c, h, w].
            audio: noisy audio latents [b, ca].
            t: noise level in [0, 1], fp32 [b].
            mouse: mouse movement [b, 2].
            btn: buttons held, 0 or 1, [b, n_buttons].

        Returns:
            Velocity of video [b, c, h, w] and of audio [b, ca], in the dtype of the latents.

        """
        level = self.t_embed(t).repeat(self.options.network_batch // self.options.batch, 1).unsqueeze(1)
        activated = F.silu(level + self._control(mouse.unsqueeze(1), btn.unsqueeze(1)))
        video, sound = self._velocity(x.unsqueeze(1), audio.unsqueeze(1), self.modulation(activated), self.position)
        return video.to(x.dtype), sound.to(audio.dtype)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, audio: Tensor, mouse: Tensor, btn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Generate the next frame, see `frame`."""
        return self.frame(x, audio, mouse, btn)

    @torch.no_grad()
    def frame(self, x: Tensor, audio: Tensor, mouse: Tensor, btn: Tensor) -> tuple[Tensor, Tensor]:
        """Generate the next frame from noise: all denoising passes and the commit.

        Args:
            x: noise for the video latents [b, c, h, w].
            audio: noise for the audio latents [b, ca].
            mouse: mouse movement [b, 2].
            btn: buttons held, 0 or 1, [b, n_buttons].

        Returns:
            The frame's video latents [b, c, h, w] and audio latents [b, ca], in the dtype of the noise.

        """
        fused = self.options.commit == "fused"
        committed = (self.last_mouse, self.last_btn) if fused else (mouse, btn)
        modulations = self.modulation(self._activated(committed, (mouse, btn)))  # [B, 1 + steps, …], the commit's first
        video, sound = at_least_fp32(x), at_least_fp32(audio)
        for step, delta in enumerate(self.schedule.deltas.unbind()):
            latents = video.to(x.dtype).unsqueeze(1), sound.to(audio.dtype).unsqueeze(1)
            if fused and step == 0:
                # Two frames: the last one is committed. Before frame 0 that is frame -1, of zeros: it attends to itself
                # alone and no other frame attends to it (`ring_attention.visible`).
                latents = (
                    torch.cat((self.last_x.unsqueeze(1), latents[0]), dim=1),
                    torch.cat((self.last_audio.unsqueeze(1), latents[1]), dim=1),
                )
                frames = materialized(torch.cat((self.position - 1, self.position)))
                velocity = self._velocity(*latents, modulations[:, :2], frames)
            else:
                velocity = self._velocity(*latents, modulations[:, step + 1 : step + 2], self.position)
            video, sound = video - delta * velocity[0], sound - delta * velocity[1]
        finished = video.to(x.dtype), sound.to(audio.dtype)
        if fused:
            self._store_last(*finished, mouse, btn)
        else:
            latents = self._doubled(finished[0].unsqueeze(1), finished[1].unsqueeze(1))
            self._run_blocks(latents, modulations[:, :1], self.position)
        self.position.add_(1)
        return finished

    def _velocity(self, x: Tensor, audio: Tensor, modulations: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocity of the last of g frames, fp32 or fp64; x is [b, g, c, h, w], modulations [B, g, …]."""
        tokens = self._run_blocks(self._doubled(x, audio), modulations, frames)
        of_video, of_audio = (self.modulation.head(modulations[:, -1:], index) for index in range(2))
        video, sound = (at_least_fp32(out.squeeze(1)) for out in self.heads(tokens[:, -1:], of_video, of_audio))
        if self.options.guidance is None:
            return video, sound
        scale = self.options.guidance
        (video, video_without), (sound, sound_without) = video.chunk(2), sound.chunk(2)
        return video_without + scale * (video - video_without), sound_without + scale * (sound - sound_without)

    def _run_blocks(
        self, latents: tuple[Tensor, Tensor], modulations: Tensor, frames: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Run all blocks on g frames, write their keys and values into the rings, and return the tokens [B, g, m, d].

        Args:
            latents: video [B, g, c, h, w] and audio [B, g, ca].
            modulations: of each frame, all factors, shifts and gates side by side, [B, g, (6·layers + 4)·d].
            frames: their indices, int64 [g].
            mask: None: each frame attends to its window in the rings. Otherwise the frames attend to each other: bool
                [g·m, g·m], true where a token (row) attends to another.

        """
        ring_slots = self.params.n_frames + 1
        slots = frames[-ring_slots:].remainder(ring_slots)
        seen = visibility(frames, self._rings[0].k, kernel=cast(Kernel, self.options.kernel)) if mask is None else None
        # Each frame gets the learned positions of the newest frame of a window, which it is when it is generated.
        tokens = self.embed(*latents) + self.pos_enc(1, self.params.tokens_per_frame)
        rotation = self.transformer.rotary.at(frames)
        of_blocks = [self.modulation.block(modulations, index) for index in range(len(self._blocks))]
        layers = zip(self._blocks, self._rings, of_blocks, strict=True)
        if seen is not None and seen.kernel == "triton":
            from models.fused_blocks import run_blocks  # needs triton

            tokens, rotation, slots = (materialized(tensor) for tensor in (tokens, rotation, slots))
            return run_blocks(tokens, layers, rotation, slots, seen)
        for block, cache, modulation in layers:
            tokens = block.modulated(tokens, modulation, rotation, cache, NewFrames(slots, seen, mask))
        return tokens

    def _activated(self, *controls: tuple[Tensor, Tensor]) -> Tensor:
        """Return SiLU of the conditions of the commit and of each step, [B, 1 + steps, d].

        `controls` are (mouse, btn) of the committed frame and of the new one.
        """
        mouse, btn = (torch.stack(pair, dim=1) for pair in zip(*controls, strict=True))  # [b, 2, …]
        control = self._control(mouse, btn)
        of_each = torch.cat((control[:, :1], control[:, 1:].expand(-1, self.options.steps, -1)), dim=1)
        return F.silu(self.t_embed(self.schedule.levels) + of_each)

    def _control(self, mouse: Tensor, btn: Tensor) -> Tensor:
        """Return the embedded controls [B, n, d]; with guidance, the second half is that of controls at 0."""
        if self.options.guidance is not None:
            mouse, btn = (torch.cat((control, torch.zeros_like(control))) for control in (mouse, btn))
        return self.control_embed(mouse, btn)

    def _doubled(self, x: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents [b, …] as [B, …]: with guidance, twice."""
        return (x, audio) if self.options.guidance is None else (torch.cat((x, x)), torch.cat((audio, audio)))

    def _store_last(self, x: Tensor, audio: Tensor, mouse: Tensor, btn: Tensor) -> None:
        self.last_x.copy_(x)
        self.last_audio.copy_(audio)
        self.last_mouse.copy_(mouse)
        self.last_btn.copy_(btn)

    @property
    def _blocks(self) -> list[Block]:
        return [cast(Block, block) for block in self.transformer.blocks]

    @property
    def _rings(self) -> list[RingCache]:
        return [cast(RingCache, cache) for cache in self.caches]
