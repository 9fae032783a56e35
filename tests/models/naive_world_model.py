"""The world model once more, in float64 and plain loops, written from its description alone to check other sizes."""

import math

import numpy as np


def linear(state, name, v):
    out = state[f"{name}.weight"] @ v
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def silu(v):
    return v / (1 + np.exp(-v))


def mlp(state, name, v):
    return linear(state, f"{name}.fc2", silu(linear(state, f"{name}.fc1", v)))


def sinusoids(value, size):
    half = size // 2
    w = [math.exp(-i * math.log(300) / (half - 1)) for i in range(half)]
    return np.array([math.sin(1000 * value * wi) for wi in w] + [math.cos(1000 * value * wi) for wi in w])


def symlog(v):
    return math.copysign(math.log1p(abs(v)), v)


def condition(state, t, mouse, btn):
    x, y = symlog(mouse[0]), symlog(mouse[1])
    angle = math.atan2(y, x)
    direction = linear(state, "control_embed.mouse.angle_proj", np.array([math.cos(angle), math.sin(angle)]))
    control = mlp(
        state, "control_embed.mouse.mlp", np.concatenate([direction, sinusoids(math.sqrt(x * x + y * y), 256)])
    )
    control = control + mlp(state, "control_embed.button.proj", 2 * btn - 1)
    return mlp(state, "t_embed.mlp", sinusoids(t, 512)) + control


def adaln(state, name, v, cond):
    normed = (v - v.mean()) / math.sqrt(v.var() + 1e-5)
    ab = linear(state, f"{name}.fc", silu(cond))
    return normed * (1 + ab[: len(v)]) + ab[len(v) :]


def position(index, count):
    return -1 + 2 * index / (count - 1) if count > 1 else -1.0


def turn(v, frame_position, token_position):
    r = len(v) // 4
    freqs = [math.pi * (1 + 127 * i / (r // 2 - 1) if r > 2 else 1) for i in range(r // 2)]
    v = v.copy()
    for axis, where in enumerate((frame_position, token_position)):
        for i, freq in enumerate(freqs):
            k = axis * r + 2 * i
            a, b, c, s = v[k], v[k + 1], math.cos(where * freq), math.sin(where * freq)
            v[k], v[k + 1] = a * c - b * s, b * c + a * s
    return v


def attention(state, name, tokens, places, n_heads):
    dim = len(tokens[0]) // n_heads
    qkv = [linear(state, f"{name}.qkv", v).reshape(3, n_heads, dim) for v in tokens]

    def prepared(which, gain):
        unit = [v[which] / np.sqrt((v[which] ** 2).mean(-1, keepdims=True) + 1e-6) * (1 + gain) for v in qkv]
        return [[turn(unit[i][h], *places[i]) for h in range(n_heads)] for i in range(len(tokens))]

    q = prepared(0, state[f"{name}.qk_norm.q_norm.gain"])
    k = prepared(1, state[f"{name}.qk_norm.k_norm.gain"])
    out = []
    for i in range(len(tokens)):
        heads = []
        for h in range(n_heads):
            scores = np.array([q[i][h] @ k[j][h] / math.sqrt(dim) for j in range(len(tokens))])
            weights = np.exp(scores - scores.max())
            heads.append(sum(w * qkv[j][2, h] for j, w in enumerate(weights / weights.sum())))
        out.append(linear(state, f"{name}.out", np.concatenate(heads)))
    return out


def forward(state, params, x, audio, t, mouse, btn):
    """Return video and audio velocity of one window; arrays without a batch dim, frames first."""
    n, m, size = len(x), params.tokens_per_frame, params.sample_size
    conds = [condition(state, t[f], mouse[f], btn[f]) for f in range(n)]
    tokens = []
    for f in range(n):
        tokens += [linear(state, "proj_in", x[f, :, i, j]) for i in range(size) for j in range(size)]
        tokens.append(linear(state, "audio_proj_in", audio[f]))
    rows = state["pos_enc.p"][len(state["pos_enc.p"]) - n * m :]
    tokens = [v + row for v, row in zip(tokens, rows, strict=True)]
    places = [(position(i // m, n), position(i % m, m)) for i in range(n * m)]
    for layer in range(params.n_layers):
        name = f"transformer.blocks.{layer}"
        normed = [adaln(state, f"{name}.adaln1", v, conds[i // m]) for i, v in enumerate(tokens)]
        for i, branch in enumerate(attention(state, f"{name}.attn", normed, places, params.n_heads)):
            cond = conds[i // m]
            v = tokens[i] + linear(state, f"{name}.gate1.fc_c", silu(cond)) * branch
            branch = mlp(state, f"{name}.mlp", adaln(state, f"{name}.adaln2", v, cond))
            tokens[i] = v + linear(state, f"{name}.gate2.fc_c", silu(cond)) * branch
    video, sound = np.zeros_like(x), np.zeros_like(audio)
    for i, v in enumerate(tokens):
        f, token = divmod(i, m)
        head = "audio_proj_out" if token == m - 1 else "proj_out"
        out = linear(state, f"{head}.proj", silu(adaln(state, f"{head}.norm", v, conds[f])))
        if token == m - 1:
            sound[f] = out
        else:
            video[f, :, token // size, token % size] = out
    return video, sound
