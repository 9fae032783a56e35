"""Norms over channels of convolutional networks, with the bias and the sum before and the activation after them.

Tensors are [n, c, ...], contiguous or with channels last. The statistics are of `groups` groups of channels and all
positions (group norm; with as many groups as channels, an instance norm), or with `groups=0` of all channels at each
position. A norm in PyTorch operations reads a tensor several times, and its reductions run in as many blocks as there
are groups, which fill a quarter of a large GPU. The kernels read once for the statistics, in enough blocks, and once
more to write the result; where a group is small, they read once.
"""

import torch
from torch import Tensor

from models.kernels import one_call
from models.kernels.activations import activated, channelwise
from models.kernels.forms import MOST_IN_REGISTERS, channels_last, in_format_of, runs_in_kernel, unsupported


def misfit(form: Tensor, device: torch.device, groups: int) -> str | None:
    """Return why the kernels do not take a tensor of the form of `form`, which may be on another device, or None."""
    if (reason := unsupported(form, device)) is not None:
        return reason
    if channels_last(form) is None:
        return "its memory is neither contiguous nor channels last"
    if not groups and form.shape[1] > MOST_IN_REGISTERS:
        return f"it has {form.shape[1]} channels; the kernel takes {MOST_IN_REGISTERS} at most"
    return None


@one_call
def fused_norm(
    x: Tensor, bias: Tensor | None, added: Tensor | None, gain: Tensor, shift: Tensor, alpha: Tensor | None,
    beta: Tensor | None, groups: int, eps: float, about_mean: bool, subtract_mean: bool, activation: str, slope: float,
    partial: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return `activation(normalise(x + bias + added)·gain + shift)`, and the sum behind it where `added` is given.

    Results have the dtype and memory format of `x`.

    Args:
        x: [n, c, ...], of a form for which `misfit` returns None.
        bias: fp32 [c], for example of the convolution whose result `x` is; None: no bias.
        added: of the shape of `x`, or None.
        gain: fp32 [c].
        shift: fp32 [c].
        alpha: of a snake, fp32 [c], else None.
        beta: of a snake, fp32 [c], else None.
        groups: groups of channels, each of which has statistics over all positions; 0: statistics over all channels at
            each position.
        eps: added to the variance or mean square.
        about_mean: divide by the standard deviation; False: by the root of the mean square.
        subtract_mean: subtract the mean, too.
        activation: one of `activations.ACTIVATIONS`.
        slope: of leaky ReLU.
        partial: as for `norm_table`, without a bias and `added`; None: the statistics are computed of `x`.
    """
    options = (groups, eps, about_mean, subtract_mean, activation, slope, partial)
    if runs_in_kernel(x):
        from models.kernels import fused_norm_triton  # needs triton

        return fused_norm_triton.fused_norm(x, bias, added, gain, shift, alpha, beta, *options)
    return reference(x, bias, added, gain, shift, alpha, beta, *options)


@one_call
def norm_table(
    x: Tensor, bias: Tensor | None, partial: Tensor | None, gain: Tensor, shift: Tensor, groups: int, eps: float,
    about_mean: bool, subtract_mean: bool,
) -> Tensor:  # fmt: skip
    """Return fp32 [n, 5, c]: what a convolution needs of each channel to normalise its input as it reads it.

    Its rows are a number near the mean, the mean less that, the scale, the shift, and the offset: the norm of `x` is
    `x·scale + offset`.

    Args:
        x: [n, c, ...], of a form for which `misfit` returns None.
        bias: as for `fused_norm`; None with `partial`.
        partial: fp32 [n, parts, 3, c], as a convolution leaves it with `x` (count, mean, and sum of squared differences
            from it, of each channel in each part of the positions); None: they are computed of `x`.
        gain: fp32 [c].
        shift: fp32 [c].
        groups: at least 1; it and what follows are those of `fused_norm`.
        eps: added to the variance or mean square.
        about_mean: divide by the standard deviation.
        subtract_mean: subtract the mean, too.
    """
    options = (groups, eps, about_mean, subtract_mean)
    if runs_in_kernel(x):
        from models.kernels import fused_norm_triton  # needs triton

        return fused_norm_triton.norm_table(x, bias, partial, gain, shift, *options)
    return table_reference(x, bias, partial, gain, shift, *options)


@one_call
def scaled_weight(
    x: Tensor, partial: Tensor, packed: Tensor, gain: Tensor, groups: int, eps: float, about_mean: bool
) -> Tensor:
    """Return the weight of a convolution of a norm of `x`, [n, blocks, taps, inputs, outputs], to be applied to `x`.

    The norm subtracts and adds nothing: it multiplies each channel by a number, which the weight of the convolution
    after it takes. An activation `f` may lie between them if `f(s·x) = s·f(x)` for s > 0 and all of `gain` is positive.

    Args:
        x: [n, c, ...], of which only the shape is read where a kernel runs.
        partial: as for `norm_table`.
        packed: the weight that the convolution has after the norm, as `convolution.pack` returns it.
        gain: fp32 [c]; it and what follows are those of `fused_norm`.
        groups: at least 1.
        eps: added to the variance or mean square.
        about_mean: divide by the standard deviation.
    """
    if runs_in_kernel(x):
        from models.kernels import fused_norm_triton  # needs triton

        return fused_norm_triton.scaled_weight(x, partial, packed, gain, groups, eps, about_mean)
    scale = table_reference(x, None, partial, gain, gain * 0, groups, eps, about_mean, False)[:, 2]
    return (packed * scale.view(len(x), len(packed), 1, -1, 1)).to(packed.dtype)


def table_reference(
    x: Tensor, bias: Tensor | None, partial: Tensor | None, gain: Tensor, shift: Tensor, groups: int, eps: float,
    about_mean: bool, subtract_mean: bool,
) -> Tensor:  # fmt: skip
    """Return what `norm_table` does in PyTorch operations, in fp64."""
    if partial is None:
        partial = moments(x.double() if bias is None else x.double() + channelwise(bias, x.double()))
    count, mean, squares = partial.double().unflatten(3, (groups, -1)).unbind(2)  # [n, part, group, channel of it]
    elements = count.sum((1, 3), keepdim=True)
    centre = (count * mean).sum((1, 3), keepdim=True) / elements * about_mean
    variance = (squares + (mean - centre).square() * count).sum((1, 3), keepdim=True) / elements
    scale = (gain.double().view(groups, -1) * torch.rsqrt(variance + eps)).flatten(1)
    centre = centre.expand_as(mean[:, :1]).flatten(1)
    less = -centre * subtract_mean if bias is None else bias.double() - centre * subtract_mean
    rows = (torch.zeros_like(centre), centre, scale, shift.double().expand_as(scale), less * scale + shift)
    return torch.stack(rows, 1).float()


def moments(x: Tensor) -> Tensor:
    """Return [n, 1, 3, c]: count, mean and sum of squared differences from it of each channel of `x` [n, c, ...]."""
    rows = x.flatten(2)
    mean = rows.mean(2)
    squares = (rows - mean.unsqueeze(2)).square().sum(2)
    return torch.stack((torch.full_like(mean, rows.shape[2]), mean, squares), 1).unsqueeze(1)


def reference(
    x: Tensor, bias: Tensor | None, added: Tensor | None, gain: Tensor, shift: Tensor, alpha: Tensor | None,
    beta: Tensor | None, groups: int, eps: float, about_mean: bool, subtract_mean: bool, activation: str, slope: float,
    partial: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return what `fused_norm` does in PyTorch operations, in fp64; each result is rounded once."""
    wide = x.double()
    if partial is not None:
        table = table_reference(x, None, partial, gain, shift, groups, eps, about_mean, subtract_mean)
        scale, offset = (table[:, row].double().view(*x.shape[:2], *[1] * (x.dim() - 2)) for row in (2, 4))
        return [in_format_of(x, activated(wide * scale + offset, activation, slope, alpha, beta))]
    if bias is not None:
        wide = wide + channelwise(bias, wide)
    if added is not None:
        wide = (wide + added).to(x.dtype).double()  # what is normalised is what others read
    rows = wide.flatten(2) if not groups else wide.reshape(x.shape[0], groups, -1)
    dim = -1 if groups else 1
    centred = rows - rows.mean(dim, keepdim=True) if about_mean else rows
    scale = torch.rsqrt(centred.square().mean(dim, keepdim=True) + eps)
    normalised = ((centred if subtract_mean else rows) * scale).reshape(x.shape)
    out = activated(normalised * channelwise(gain, wide) + channelwise(shift, wide), activation, slope, alpha, beta)
    return [in_format_of(x, each) for each in ((out,) if added is None else (out, wide))]
