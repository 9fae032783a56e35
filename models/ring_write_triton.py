"""From the output of the `qkv` product to the ring, in one kernel: QK norm, rotation, cast, and the write of k and v.

Plain operations take five launches for it, and none of them has more than a microsecond's work. A program serves one
token and as many heads as fill a warp, with q, k and v in it: they share the rotation, and there are hundreds of
programs even when there are only 17 tokens.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.library import triton_op, wrap_triton

PER_PROGRAM = 128  # elements of q, k and v each: 4 a thread of one warp


@triton.jit
def _turned(x, gain, cosine, sine, eps: tl.constexpr, d: tl.constexpr, heads: tl.constexpr, block: tl.constexpr):
    """Return fp32 `x` [heads, block] after RMS norm, gain and rotation; the dims from d on are 0 and stay so."""
    normed = x * tl.rsqrt(tl.sum(x * x, 1) / d + eps)[:, None]
    normed += normed * gain[None, :]
    even, odd = tl.split(tl.reshape(normed, (heads, block // 2, 2)))
    swapped = tl.reshape(tl.join(odd, even), (heads, block))
    return normed * cosine[None, :] + swapped * sine[None, :]


@triton.jit
def _write_ring(
    qkv, q_gain, k_gain, rotation, slots, q, k_ring, v_ring, rows,
    eps: tl.constexpr, ring_slots: tl.constexpr, tokens: tl.constexpr,
    heads: tl.constexpr, d: tl.constexpr, per_program: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Serve one token (axis 0 of the grid) in `per_program` heads (axis 1)."""
    row = tl.program_id(0).to(tl.int64)  # of b·g·m
    batch, token = row // rows, row % rows
    slot = tl.load(slots + token // tokens)
    head = tl.program_id(1) * per_program + tl.arange(0, per_program)
    dim = tl.arange(0, block)
    real = (head[:, None] < heads) & (dim[None, :] < d)
    inner = head[:, None] * d + dim[None, :]
    start = qkv + row * 3 * heads * d + inner
    query = tl.load(start, mask=real, other=0.0).to(tl.float32)
    key = tl.load(start + heads * d, mask=real, other=0.0).to(tl.float32)
    value = tl.load(start + 2 * heads * d, mask=real, other=0.0)
    cosine = tl.load(rotation + token * d + dim, mask=dim < d, other=0.0)
    sine = tl.load(rotation + (rows + token) * d + dim, mask=dim < d, other=0.0)
    gain_q = tl.load(q_gain + dim, mask=dim < d, other=0.0).to(tl.float32)
    gain_k = tl.load(k_gain + dim, mask=dim < d, other=0.0).to(tl.float32)

    query = _turned(query, gain_q, cosine, sine, eps, d, per_program, block)
    key = _turned(key, gain_k, cosine, sine, eps, d, per_program, block)
    at = ((batch * ring_slots + slot) * tokens + token % tokens) * heads * d + inner
    tl.store(q + row * heads * d + inner, query.to(q.dtype.element_ty), mask=real)
    tl.store(k_ring + at, key.to(k_ring.dtype.element_ty), mask=real)
    tl.store(v_ring + at, value.to(v_ring.dtype.element_ty), mask=real)


@triton_op("models::write_ring", mutates_args={"k_ring", "v_ring"})
def write_ring(
    qkv: Tensor, q_gain: Tensor, k_gain: Tensor, rotation: Tensor, slots: Tensor, k_ring: Tensor, v_ring: Tensor
) -> Tensor:
    """Normalise and rotate queries and keys, write keys and values into the ring, and return the queries.

    RMS norm (epsilon 1e-6) and rotation are in fp32; the ring's dtype is rounded to once. There is no gradient.

    Args:
        qkv: queries, keys and values [b, g·m, 3·h·d] as `Attention.qkv` makes them.
        q_gain: what the gain of the queries' norm is above one, [d].
        k_gain: that of the keys.
        rotation: cosine and signed sine of each token, fp32 [2, g·m, d], see `models.rotary`.
        slots: int64 [g], different ones, read on the device: a captured graph follows its changes.
        k_ring: contiguous [b, slots, m, h, d], written in place.
        v_ring: the same for values.

    Returns:
        Queries [b, g, m, h, d], contiguous, in the ring's dtype.

    Raises:
        ValueError: the shapes do not belong together, or the ring is not contiguous.
    """
    b, ring_slots, m, h, d = k_ring.shape
    g = slots.shape[0]
    if v_ring.shape != k_ring.shape or qkv.shape != (b, g * m, 3 * h * d) or rotation.shape != (2, g * m, d):
        raise ValueError(
            f"qkv {list(qkv.shape)} and rotation {list(rotation.shape)} of {g} frames, keys {list(k_ring.shape)} and "
            f"values {list(v_ring.shape)} do not fit: qkv is [b, g·m, 3·h·d], rotation [2, g·m, d], "
            "keys and values are [b, slots, m, h, d]"
        )
    if not (k_ring.is_contiguous() and v_ring.is_contiguous()):
        raise ValueError("the ring's keys and values must be contiguous; give every layer tensors of its own")
    q = k_ring.new_empty((b, g, m, h, d))
    block = triton.next_power_of_2(d)
    per_program = max(PER_PROGRAM // block, 1)
    wrap_triton(_write_ring)[(b * g * m, triton.cdiv(h, per_program))](
        qkv.contiguous(), q_gain, k_gain, rotation.contiguous(), slots, q, k_ring, v_ring, g * m,
        eps=1e-6, ring_slots=ring_slots, tokens=m, heads=h, d=d, per_program=per_program, block=block, num_warps=1,
    )  # fmt: skip
    return q
