"""Keys and values of the last frames in memory that is allocated once and written in place."""

import importlib.util
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.world_model import WorldModelParams


class RingCache(nn.Module):
    """One layer's ring: frame f lies in slot f mod (n_frames + 1), keys already rotated.

    One slot more than the window has frames: a new frame is worked on in the slot where it will be committed, while the
    window of the frame before it is still whole.
    """

    k: Tensor
    v: Tensor

    def __init__(self, params: WorldModelParams, batch: int) -> None:
        super().__init__()
        self.slots = params.n_frames + 1
        shape = (batch, self.slots, params.tokens_per_frame, params.n_heads, params.head_dim)
        for name in ("k", "v"):
            # Zeros and not whatever lies there: what no query sees is weighted by 0, and 0 times NaN is NaN.
            self.register_buffer(name, torch.zeros(shape), persistent=False)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write keys and values [b, g, m, heads, head_dim] of g frames into `slots`, int64 [g] on the device."""
        self.k.index_copy_(1, slots, k)
        self.v.index_copy_(1, slots, v)

    def reset(self) -> None:
        """Forget everything, in place."""
        self.k.zero_()
        self.v.zero_()


Kernel = Literal["auto", "sdpa", "triton"]
KERNELS = ("auto", "sdpa", "triton")
HEAD_DIMS = (16, 32, 64, 128)  # a matrix unit takes 16 at least; with 256 registers spill, and a chunk fills small GPUs
HAS_TRITON = importlib.util.find_spec("triton") is not None


class Visibility(NamedTuple):
    """What the queries of a pass see: made once, the same in all layers."""

    frames: Tensor  # int64 [g], the frame that each group of queries belongs to
    mask: Tensor | None  # [g·m, slots·m] of 0 and -inf in the ring's dtype; None: the Triton kernel needs none


def visible(frames: Tensor, slots: int) -> Tensor:
    """Return which slots each of `frames` (int64 [g]) sees, bool [g, slots]: its own, and those of its window.

    A frame that comes before the first one (below 0) sees its own slot alone, so that no softmax is over nothing.
    """
    age = (frames[:, None] - torch.arange(slots, device=frames.device)).remainder(slots)  # frames ago, [g, slots]
    return age <= frames[:, None].clamp(0, slots - 2)  # the oldest of the window, or the first frame of all


def visibility(frames: Tensor, ring: Tensor, *, kernel: Kernel = "auto") -> Visibility:
    """Choose how to attend, and compute what all layers share.

    Args:
        frames: int64 [g] on the ring's device: the frame that each group of queries belongs to, of any size.
        ring: the keys of any layer, [b, slots, m, h, d]; only its shape, dtype and device are looked at.
        kernel: `triton` (fp16 or bf16 on a GPU), `sdpa` (anything), or `auto`: triton where it can run.

    Raises:
        ValueError: there is no such kernel, or it cannot run here.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, not {kernel!r}")
    obstacle = triton_obstacle(ring)
    if kernel == "triton" and obstacle:
        raise ValueError(f"kernel='triton' {obstacle}; use kernel='sdpa', or 'auto' for the one that can run")
    if kernel == "triton" or (kernel == "auto" and not obstacle):
        return Visibility(frames, None)
    return Visibility(frames, additive_mask(visible(frames, ring.shape[1]), ring.shape[2], ring.dtype))


def triton_obstacle(ring: Tensor) -> str | None:
    """Return why the Triton kernel cannot serve keys [b, slots, m, h, d], or None where it can."""
    if ring.device.type != "cuda":
        return f"needs tensors on a GPU, not on {ring.device}"
    if ring.dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16, not {ring.dtype}"
    if ring.shape[-1] not in HEAD_DIMS:
        return f"needs a head dim of {', '.join(map(str, HEAD_DIMS))}, not {ring.shape[-1]}"
    return None if HAS_TRITON else "needs the package triton, which is not installed"


def additive_mask(seen: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    """Return what to add to the scores [g·m, slots·m]: 0 where `seen` (bool [g, slots]), -inf elsewhere.

    Given a boolean mask, or rows that do not start at a multiple of 16 elements, SDPA makes such a copy in every call.
    """
    groups, slots = seen.shape
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, float("-inf"))
    mask = bias[:, None, :, None].expand(-1, tokens, -1, tokens).reshape(groups * tokens, slots * tokens)
    padded = F.pad(mask, (0, -mask.shape[1] % 16))
    # Not a slice: inductor would work the mask out again for every layer, but of this it needs the memory.
    return padded.as_strided(mask.shape, (padded.shape[1], 1))


def ring_attention(q: Tensor, k: Tensor, v: Tensor, seen: Visibility) -> Tensor:
    """Attend from `q` [b, g, m, h, d] to the ring `k`, `v` [b, slots, m, h, d]; return [b, g, m, h, d].

    All tokens of a frame see all tokens of the slots it sees (`visible`); scores are scaled by 1/sqrt(d). Slots that
    nobody sees must be finite nevertheless. The Triton form is for inference: it has no gradient.

    Raises:
        ValueError: the shapes do not belong together, or the ring is not contiguous.
    """
    groups = seen.frames.shape[0]
    if k.shape != v.shape or q.shape != (k.shape[0], groups, *k.shape[2:]):
        raise ValueError(
            f"queries {list(q.shape)} of {groups} frames, keys {list(k.shape)} and values {list(v.shape)} do not fit: "
            "q is [b, g, m, h, d], k and v are [b, slots, m, h, d], and g is the number of frames"
        )
    if not (k.is_contiguous() and v.is_contiguous()):
        raise ValueError("the ring's keys and values must be contiguous; give every layer tensors of its own")
    if seen.mask is None:
        from models.ring_attention_triton import attend_ring  # where triton is not installed, nobody gets here

        return attend_ring(q, k, v, seen.frames)
    heads_first = (tensor.flatten(1, 2).transpose(1, 2) for tensor in (q, k, v))  # [b, h, tokens, d]
    out = F.scaled_dot_product_attention(*heads_first, attn_mask=seen.mask)
    return out.transpose(1, 2).unflatten(1, q.shape[1:3])
