"""Attention to a ring of cached keys and values: which slots a frame attends to, and the product (SDPA or Triton).

Frame f is stored in slot f mod (n_frames + 1), so the newest frame overwrites the oldest. There is one slot more than
the window has frames: a new frame is worked on in its slot while the window of the frame before it is still complete,
and both frames can attend in one call.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from models.kernels import HAS_TRITON

Kernel = Literal["auto", "sdpa", "triton"]
KERNELS = ("auto", "sdpa", "triton")
HEAD_DIMS = (16, 32, 64, 128)  # of the Triton kernels: tensor cores need 16 at least; at 256 registers spill


class Visibility(NamedTuple):
    """Which slots the queries of a pass attend to, and by which kernel: computed once, the same in all layers."""

    kernel: Literal["sdpa", "triton"]
    frames: Tensor  # int64 [g], the frame of each group of queries
    mask: Tensor | None  # of sdpa: [g·m, slots·m] of 0 and -inf in the ring's dtype; triton reads `frames` instead


def visible(frames: Tensor, slots: int) -> Tensor:
    """Return which slots each of `frames` (int64 [g]) attends to, bool [g, slots]: its own and those of its window.

    A frame before the first one (below 0) attends to its own slot only, so that no softmax is empty.
    """
    age = (frames[:, None] - torch.arange(slots, device=frames.device)).remainder(slots)  # frames ago, [g, slots]
    return age <= frames[:, None].clamp(0, slots - 2)  # up to the window's oldest frame, or frame 0


def visibility(frames: Tensor, ring: Tensor, *, kernel: Kernel = "auto") -> Visibility:
    """Choose the kernel, and compute the mask that all layers share.

    Args:
        frames: int64 [g] on the ring's device: the frame index of each group of queries.
        ring: keys of any layer, [b, slots, m, h, d]; only shape, dtype and device are read.
        kernel: `triton` (fp16 or bf16 on a GPU), `sdpa` (anything), or `auto`: triton where it can run.

    Raises:
        ValueError: an unknown kernel, or one that cannot run with this ring.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, not {kernel!r}")
    obstacle = triton_obstacle(ring)
    if kernel == "triton" and obstacle:
        raise ValueError(f"kernel='triton' {obstacle}; use kernel='sdpa' or 'auto'")
    if kernel == "triton" or (kernel == "auto" and not obstacle):
        return Visibility("triton", frames, None)
    return Visibility("sdpa", frames, additive_mask(visible(frames, ring.shape[1]), ring.shape[2], ring.dtype))


def triton_obstacle(ring: Tensor) -> str | None:
    """Return why the Triton kernel cannot run with keys [b, slots, m, h, d], or None if it can."""
    if ring.device.type != "cuda":
        return f"needs tensors on a GPU, not on {ring.device}"
    if ring.dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16, not {ring.dtype}"
    if ring.shape[-1] not in HEAD_DIMS:
        return f"needs a head dim of {', '.join(map(str, HEAD_DIMS))}, not {ring.shape[-1]}"
    return None if HAS_TRITON else "needs the package triton, which is not installed"


def additive_mask(seen: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    """Return the attention bias [g·m, slots·m]: 0 where `seen` (bool [g, slots]), -inf elsewhere.

    Rows start at multiples of 16 elements: SDPA copies a bool mask or unaligned rows in every call.
    """
    groups, slots = seen.shape
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, float("-inf"))
    mask = bias[:, None, :, None].expand(-1, tokens, -1, tokens).reshape(groups * tokens, slots * tokens)
    padded = F.pad(mask, (0, -mask.shape[1] % 16))
    # as_strided, not a slice: of a slice inductor would recompute the mask for every layer.
    return padded.as_strided(mask.shape, (padded.shape[1], 1))


def ring_attention(q: Tensor, k: Tensor, v: Tensor, seen: Visibility) -> Tensor:
    """Return attention from `q` [b, g, m, h, d] to the ring `k`, `v` [b, slots, m, h, d], shaped as `q`.

    All tokens of a frame attend to all tokens of the frame's slots (`visible`); scores are scaled by 1/sqrt(d). All
    slots must hold finite numbers. The Triton kernel has no gradient.

    Raises:
        ValueError: the shapes do not match, or the ring is not contiguous.
    """
    groups = seen.frames.shape[0]
    if k.shape != v.shape or q.shape != (k.shape[0], groups, *k.shape[2:]):
        raise ValueError(
            f"queries {list(q.shape)} of {groups} frames, keys {list(k.shape)} and values {list(v.shape)} do not "
            "match: q is [b, g, m, h, d], k and v are [b, slots, m, h, d], and g is the number of frames"
        )
    if not (k.is_contiguous() and v.is_contiguous()):
        raise ValueError("the ring's keys and values must be contiguous; give each layer its own tensors")
    if seen.kernel == "triton":
        from models.kernels.ring_attention_triton import attend_ring  # needs triton

        return attend_ring(q, k, v, seen.frames)
    heads_first = (tensor.flatten(1, 2).transpose(1, 2) for tensor in (q, k, v))  # [b, h, tokens, d]
    out = F.scaled_dot_product_attention(*heads_first, attn_mask=seen.mask)
    return out.transpose(1, 2).unflatten(1, q.shape[1:3])


def write_ring(
    qkv: Tensor, q_gain: Tensor, k_gain: Tensor, rotation: Tensor, slots: Tensor, k_ring: Tensor, v_ring: Tensor
) -> Tensor:
    """Write the keys and values of one pass into the ring: the reference of the Triton kernel `write_ring`."""
    m, h, d = k_ring.shape[2:]
    wide = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    qk, v = qkv.unflatten(-1, (3, h, d)).split((2, 1), dim=2)  # [b, g·m, 2, h, d] and [b, g·m, 1, h, d]
    normed = F.rms_norm(qk.to(wide), (d,), eps=1e-6)
    normed = normed * (1 + torch.stack((q_gain, k_gain)).to(wide).unsqueeze(1))
    swapped = normed.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    cosine, sine = rotation[:, :, None, None]
    q, k = (normed * cosine + swapped * sine).to(k_ring.dtype).unflatten(1, (-1, m)).unbind(3)
    k_ring.index_copy_(1, slots, k)
    v_ring.index_copy_(1, slots, v.squeeze(2).unflatten(1, (-1, m)).to(v_ring.dtype))
    return q.contiguous()
