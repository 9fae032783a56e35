"""Activations in a Triton kernel, where its result is still in registers."""

import triton
import triton.language as tl

from models.kernels import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def _square_of_sine(a):
    """Return sin²(a): reduces `a` to [-π/2, π/2] and evaluates a Taylor series, in fewer instructions than `tl.sin`."""
    turns = a * 0.3183098861837907
    a = (turns - tl.floor(turns + 0.5)) * 3.141592653589793
    square = a * a
    series = 1.0 / 362880 - square * (1.0 / 39916800)
    series = -1.0 / 5040 + square * series
    series = 1.0 / 120 + square * series
    series = -1.0 / 6 + square * series
    sine = a + a * square * series
    return sine * sine


@triton.jit
def _sine(a):
    """Return sin(a) by the special function unit; its error, 4e-5 up to |a| = 300, is below half precision's."""
    if _INTERPRETED:
        return tl.sin(a)
    return tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def factors_of(alpha, beta, channel, is_channel, activation: tl.constexpr):
    """Load alpha and beta of the given channels for `activate`; zeros if the activation is not a snake."""
    a = 0.0
    b = 0.0
    if activation == 5:
        a = tl.load(alpha + channel, mask=is_channel, other=0.0)
        b = tl.load(beta + channel, mask=is_channel, other=0.0)
    return a, b


@triton.jit
def activate(y, activation: tl.constexpr, slope: tl.constexpr, alpha, beta, dtype: tl.constexpr):
    """Return the activation of fp32 numbers: the number is its place in `activations.ACTIVATIONS`.

    `dtype` is what the result will be rounded to.
    """
    if activation == 1:
        y = y * tl.sigmoid(y)
    elif activation == 2:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif activation == 3:
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))  # 2·sqrt(2/π): 1 + tanh(a) = 2·sigmoid(2a)
    elif activation == 4:
        if slope == 0:
            y = tl.where(y < 0, 0.0, y)  # -inf becomes 0, as in a ReLU
        else:
            y = tl.maximum(y, y * slope) if slope <= 1 else tl.where(y >= 0, y, y * slope)
    elif activation == 5:
        if dtype == tl.float32:
            y = y + beta * _square_of_sine(alpha * y)
        else:
            sine = _sine(alpha * y)
            y = y + beta * sine * sine
    return y
