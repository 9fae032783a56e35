"""Ring attention once more, in float64 and plain loops: the frames are written one by one, and listed to be seen."""

import math

import numpy as np
import torch

TOKENS, HEADS = 3, 2
GARBAGE = 500.0  # what lies in slots that were never written: no rounding hides it


def newest_frames(n):
    """Return the newest frames to try with a window of n: before the first, while it fills, full, much later."""
    return (-1, 0, 1, n - 1, n, n + 1, 3 * n + 2, 100_000, 10**9)


def group_frames(newest, groups):
    """Return the frames of the groups of queries: the newest one, and the one before it."""
    return list(range(newest - groups + 1, newest + 1))


def written_ring(n, d, groups, batch, newest):
    """Return queries [b, g, m, h, d], the ring's keys and values, and what was written: frame -> (keys, values)."""
    generator = np.random.default_rng([n, d, groups, batch])
    frames = group_frames(newest, groups)
    q = generator.standard_normal((batch, groups, TOKENS, HEADS, d))
    k, v = (np.full((batch, n + 1, TOKENS, HEADS, d), GARBAGE) for _ in range(2))
    written = {}
    for frame in sorted({*frames, *range(max(0, newest - n), newest + 1)}):
        slot = frame % (n + 1)
        for kept in (k, v):
            kept[:, slot] = generator.standard_normal((batch, TOKENS, HEADS, d))
        written[frame] = k[:, slot].copy(), v[:, slot].copy()
    return *(torch.from_numpy(value) for value in (q, k, v)), torch.tensor(frames), written


def attended(q, frames, written, n):
    """Return for each query the mean of the values that it sees, weighted by the softmax of its scores."""
    out = np.zeros(q.shape)
    for b, g, m, h in np.ndindex(*q.shape[:-1]):
        own = int(frames[g])
        seen = [frame for frame in written if frame == own or (0 <= frame < own and own - frame < n)]
        query = q[b, g, m, h].numpy()
        weights, values = [], []
        for frame in seen:
            keys, contents = written[frame]
            for token in range(TOKENS):
                weights.append(math.exp(float(query @ keys[b, token, h]) / math.sqrt(len(query))))
                values.append(contents[b, token, h])
        out[b, g, m, h] = sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
    return torch.from_numpy(out)
