"""Triton kernels of the ring cache: attention of a frame's few queries to a long ring, and the write to the ring.

A frame has a few dozen queries, so splitting by queries and heads alone would leave most of the GPU idle. Here the keys
are split too: a program handles all queries of a head and one chunk of the keys, and a second kernel combines the
chunks (flash-decoding: https://pytorch.org/blog/flash-decoding).

`write_ring` goes from the output of the `qkv` product to the ring in one kernel: QK norm, rotation, cast, and the write
of keys and values. PyTorch operations take five launches for it, of about a microsecond of work each.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch.utils.flop_counter import register_flop_formula

# Maximum of an empty set of scores, instead of -inf: the difference of two is 0, not NaN.
LOWEST = tl.constexpr(-1e38)
MAX_ROWS = 64  # queries of a program: two groups of 17 fit, and the sums at d = 128 still fit into registers
WAVE = 264  # two programs for each of an H200's 132 SMs; with fewer, some SMs are idle
ELEMENTS = 128  # of q, k and v each in one program of `write_ring`: 4 for each thread of one warp


def chunk_length(keys: int, columns: int) -> int:
    """Return the keys of one program, for `columns` = heads × batches × row blocks.

    Long chunks leave fewer partial sums to combine; short chunks are used where long ones would not fill the GPU.
    """
    return 128 if triton.cdiv(keys, 128) * columns >= WAVE else 64


@triton.jit
def _attend_chunk(
    q, k, v, frames, partial, peaks, sums,
    stride_b, stride_row, stride_head, stride_dim, rows, keys, heads,
    scale: tl.constexpr, tokens: tl.constexpr, slots: tl.constexpr,
    d: tl.constexpr, block: tl.constexpr, length: tl.constexpr,
):  # fmt: skip
    """Write the unnormalised sum of values over one chunk of keys, with the row maxima and sums of its softmax."""
    chunk, column = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = column // heads, column % heads
    row = tl.program_id(2) * block + tl.arange(0, block)
    key = chunk * length + tl.arange(0, length)
    dim = tl.arange(0, d)
    query_at = batch * stride_b + row[:, None] * stride_row + head * stride_head + dim[None, :] * stride_dim
    ring_at = ((batch * keys + key[:, None]) * heads + head) * d + dim[None, :]
    queries = tl.load(q + query_at, mask=row[:, None] < rows, other=0.0)  # [block, d]
    ring_k = tl.load(k + ring_at, mask=key[:, None] < keys, other=0.0)  # [length, d]
    ring_v = tl.load(v + ring_at, mask=key[:, None] < keys, other=0.0)

    frame = tl.load(frames + row // tokens, mask=row < rows, other=0)
    newest = (frame % slots).to(tl.int32)
    newest = tl.where(newest < 0, newest + slots, newest)  # Triton's remainder has the sign of the frame
    oldest = tl.minimum(tl.maximum(frame, 0), slots - 2).to(tl.int32)  # as a number of frames before `newest`
    age = newest[:, None] - key[None, :] // tokens
    age = tl.where(age < 0, age + slots, age)
    seen = (age <= oldest[:, None]) & (key[None, :] < keys)

    scores = tl.where(seen, tl.dot(queries, tl.trans(ring_k)) * scale, float("-inf"))  # fp32 [block, length]
    peak = tl.maximum(tl.max(scores, 1), LOWEST)
    weights = tl.exp2(scores - peak[:, None])
    values = tl.dot(weights.to(ring_v.dtype), ring_v)  # fp32 [block, d]
    at = (column * rows + row) * tl.num_programs(0) + chunk
    tl.store(peaks + at, peak, mask=row < rows)
    tl.store(sums + at, tl.sum(weights, 1), mask=row < rows)
    tl.store(partial + at[:, None] * d + dim[None, :], values, mask=row[:, None] < rows)


@triton.jit
def _combine_chunks(
    partial, peaks, sums, out, rows, heads, chunks: tl.constexpr, d: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Combine one row's partial sums, weighted by their maxima, and write the normalised total."""
    row, column = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = (column * rows + row) * chunks
    dim = tl.arange(0, d)
    peak, total = tl.full((), LOWEST, tl.float32), tl.full((), 0.0, tl.float32)
    values = tl.full((d,), 0.0, tl.float32)
    for start in range(0, chunks, block):
        chunk = start + tl.arange(0, block)
        peak_here = tl.load(peaks + first + chunk, mask=chunk < chunks, other=LOWEST)
        sum_here = tl.load(sums + first + chunk, mask=chunk < chunks, other=0.0)
        at = (first + chunk[:, None]) * d + dim[None, :]
        values_here = tl.load(partial + at, mask=chunk[:, None] < chunks, other=0.0)  # [block, d]
        higher = tl.maximum(peak, tl.max(peak_here, 0))
        before, here = tl.exp2(peak - higher), tl.exp2(peak_here - higher)
        total = total * before + tl.sum(sum_here * here, 0)
        values = values * before + tl.sum(values_here * here[:, None], 0)
        peak = higher
    at = ((column // heads * rows + row) * heads + column % heads) * d + dim
    tl.store(out + at, (values / total).to(out.dtype.element_ty))


@triton_op("models::attend_ring", mutates_args=())
def attend_ring(q: Tensor, k: Tensor, v: Tensor, frames: Tensor, chunk: int = 0) -> Tensor:
    """Return attention from `q` [b, g, m, h, d] to a contiguous ring `k`, `v` [b, slots, m, h, d], shaped as `q`.

    Args:
        q: fp16 or bf16, like the ring; d is a power of two from 16 to 128.
        k: keys, already rotated.
        v: values.
        frames: frame of each group of queries, int64 [g], read on the device: a captured graph follows changes.
        chunk: keys of one program, a power of two of at least 16; 0: chosen by `chunk_length`.
    """
    batches, groups, tokens, heads, d = q.shape
    slots, rows, keys = k.shape[1], groups * tokens, k.shape[1] * tokens
    queries, columns = q.flatten(1, 2), batches * heads  # [b, rows, h, d]
    block = min(max(triton.next_power_of_2(rows), 16), MAX_ROWS)
    blocks = triton.cdiv(rows, block)
    chunk = chunk or chunk_length(keys, columns * blocks)
    chunks = triton.cdiv(keys, chunk)
    partial = q.new_empty((columns, rows, chunks, d), dtype=torch.float32)
    peaks = q.new_empty((columns, rows, chunks), dtype=torch.float32)
    sums = torch.empty_like(peaks)
    out = q.new_empty(q.shape)
    wrap_triton(_attend_chunk)[(chunks, columns, blocks)](
        queries, k, v, frames, partial, peaks, sums, *queries.stride(), rows, keys, heads,
        scale=math.log2(math.e) / math.sqrt(d), tokens=tokens, slots=slots, d=d, block=block, length=chunk,
    )  # fmt: skip
    wrap_triton(_combine_chunks)[(rows, columns)](
        partial, peaks, sums, out, rows, heads, chunks=chunks, d=d, block=min(triton.next_power_of_2(chunks), 32)
    )  # fmt: skip
    return out


@register_flop_formula(torch.ops.models.attend_ring)
def _flops(q: list[int], k: list[int], *_: object, **__: object) -> int:
    """Count the keys of all slots, as torch's counter does for masked attention."""
    batches, groups, tokens, heads, d = q
    return 4 * batches * heads * groups * tokens * k[1] * tokens * d


@triton.jit
def _norm_and_rotate(
    x, gain, cosine, sine, eps: tl.constexpr, d: tl.constexpr, heads: tl.constexpr, block: tl.constexpr
):
    """Return fp32 `x` [heads, block] after RMS norm, gain and rotation; dims from d on are 0 and stay 0."""
    normed = x * tl.rsqrt(tl.sum(x * x, 1) / d + eps)[:, None]
    normed += normed * gain[None, :]
    even, odd = tl.split(tl.reshape(normed, (heads, block // 2, 2)))
    swapped = tl.reshape(tl.join(odd, even), (heads, block))
    return normed * cosine[None, :] + swapped * sine[None, :]


@triton.jit
def _write_ring(
    qkv, q_gain, k_gain, rotation, slots, q, k_ring, v_ring, rows,
    eps: tl.constexpr, ring_slots: tl.constexpr, tokens: tl.constexpr,
    heads: tl.constexpr, d: tl.constexpr, heads_per_program: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Process one token (axis 0 of the grid) in `heads_per_program` heads (axis 1)."""
    row = tl.program_id(0).to(tl.int64)  # of b·g·m
    batch, token = row // rows, row % rows
    slot = tl.load(slots + token // tokens)
    head = tl.program_id(1) * heads_per_program + tl.arange(0, heads_per_program)
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

    query = _norm_and_rotate(query, gain_q, cosine, sine, eps, d, heads_per_program, block)
    key = _norm_and_rotate(key, gain_k, cosine, sine, eps, d, heads_per_program, block)
    at = ((batch * ring_slots + slot) * tokens + token % tokens) * heads * d + inner
    tl.store(q + row * heads * d + inner, query.to(q.dtype.element_ty), mask=real)
    tl.store(k_ring + at, key.to(k_ring.dtype.element_ty), mask=real)
    tl.store(v_ring + at, value.to(v_ring.dtype.element_ty), mask=real)


@triton_op("models::write_ring", mutates_args={"k_ring", "v_ring"})
def write_ring(
    qkv: Tensor, q_gain: Tensor, k_gain: Tensor, rotation: Tensor, slots: Tensor, k_ring: Tensor, v_ring: Tensor
) -> Tensor:
    """Normalise and rotate queries and keys, write keys and values into the ring, and return the queries.

    RMS norm (epsilon 1e-6) and rotation are fp32, then rounded once to the ring's dtype. There is no gradient.

    Args:
        qkv: output of `Attention.qkv`, [b, g·m, 3·h·d].
        q_gain: gain of the queries' norm minus one, [d].
        k_gain: gain of the keys' norm minus one, [d].
        rotation: cosine and signed sine of each token, fp32 [2, g·m, d], see `models.rotary`.
        slots: slot of each frame, int64 [g], all different, read on the device: a captured graph follows changes.
        k_ring: keys, contiguous [b, slots, m, h, d], written in place.
        v_ring: values, like `k_ring`.

    Returns:
        Queries [b, g, m, h, d], contiguous, in the ring's dtype.

    Raises:
        ValueError: the shapes do not match, or the ring is not contiguous.
    """
    b, ring_slots, m, h, d = k_ring.shape
    g = slots.shape[0]
    if v_ring.shape != k_ring.shape or qkv.shape != (b, g * m, 3 * h * d) or rotation.shape != (2, g * m, d):
        raise ValueError(
            f"qkv {list(qkv.shape)} and rotation {list(rotation.shape)} of {g} frames, keys {list(k_ring.shape)} and "
            f"values {list(v_ring.shape)} do not match: qkv is [b, g·m, 3·h·d], rotation [2, g·m, d], "
            "keys and values are [b, slots, m, h, d]"
        )
    if not (k_ring.is_contiguous() and v_ring.is_contiguous()):
        raise ValueError("the ring's keys and values must be contiguous; give each layer its own tensors")
    q = k_ring.new_empty((b, g, m, h, d))
    block = triton.next_power_of_2(d)
    heads_per_program = max(ELEMENTS // block, 1)
    wrap_triton(_write_ring)[(b * g * m, triton.cdiv(h, heads_per_program))](
        qkv.contiguous(), q_gain, k_gain, rotation.contiguous(), slots, q, k_ring, v_ring, g * m,
        eps=1e-6, ring_slots=ring_slots, tokens=m, heads=h, d=d,
        heads_per_program=heads_per_program, block=block, num_warps=1,
    )  # fmt: skip
    return q
