"""Convolutions in one and two dims as one kernel each: grouped, depthwise, dilated and 1×1 ones.

Libraries compute many small groups at a fraction of the bandwidth, and add biases and residuals in kernels of their
own. Here a convolution is one implicit matrix product: a program takes a tile of positions and outputs, and for each
tap of the kernel multiplies the inputs there by the weights; padding is a mask. Groups of less than `LEAST_INPUTS`
channels are joined, with zeros in the weight, because tensor cores and memory want as many at once. `STATISTICS` and
`shares_norms` are in `convolution_kinds.py`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from models.kernels import HAS_TRITON, one_call
from models.kernels.activations import activated, channelwise
from models.kernels.forms import DTYPES, channels_last, in_format_of, runs_in_kernel
from models.kernels.fused_norm import moments

#: Inputs of a group in one dim and in two, 64 and 32 bytes in half precision, below which groups are joined.
LEAST_INPUTS = (32, 16)


def misfit(form: Tensor, device: torch.device, weight: Tensor, groups: int) -> str | None:
    """Return why the kernels do not take a convolution of a tensor of the form of `form`, or None.

    Args:
        form: the input, which may be on another device.
        device: of the input.
        weight: [outputs, inputs / groups, ...].
        groups: of channels.
    """
    if device.type != "cuda" or not HAS_TRITON:
        return "the kernel needs triton and a CUDA device"
    if form.dtype not in DTYPES or weight.dtype != form.dtype:
        names = [str(each.dtype).removeprefix("torch.") for each in (form, weight)]
        return "its input is in {}, its weight in {}; the kernel takes float32, bfloat16 and float16".format(*names)
    if weight.dim() not in (3, 4):
        return f"it is in {weight.dim() - 2} dims; the kernel takes 1 and 2"
    if form.dim() != weight.dim():
        return "its input has no batch"
    if groups == 1 and form.dim() == 4 and channels_last(form) is False and form.shape[2:].numel() > 1:
        return "its input is not channels last: write channels_last before this step"
    return None


def is_depthwise(weight: Tensor, groups: int) -> bool:
    """Return whether each channel has a filter of its own."""
    return weight.shape[1] == 1 and weight.shape[0] == groups > 1


def pack(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of `convolution`, [blocks, taps, inputs, outputs], from one [outputs, inputs / groups, ...].

    A block is a group or several. A depthwise weight becomes [channels, taps, 1, 1].
    """
    inputs, taps = weight.shape[1], weight.shape[2:].numel()
    each = weight.reshape(groups, -1, inputs, taps)  # [group, output, input, tap]
    if is_depthwise(weight, groups):
        return each.permute(0, 3, 2, 1).contiguous()
    most = max(LEAST_INPUTS[weight.dim() - 3] // inputs, 1)
    joined = max(count for count in range(1, most + 1) if not groups % count)
    each = each.unflatten(0, (-1, joined))
    joint = weight.new_zeros(groups // joined, taps, joined, inputs, joined, each.shape[2])
    for place in range(joined):
        joint[:, :, place, :, place] = each[:, place].permute(0, 3, 2, 1)
    return joint.flatten(4, 5).flatten(2, 3)


@one_call
def convolution(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None, alpha: Tensor | None, beta: Tensor | None,
    kernel: list[int], stride: list[int], before: list[int], dilation: list[int], size: list[int],
    activation: str, slope: float, table: Tensor | None = None, first_activation: str = "none",
    first_slope: float = 0.0, first_alpha: Tensor | None = None, first_beta: Tensor | None = None,
    statistics: str = "none", shortcut: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return `activation(conv(input) + bias + residual + shortcut)` [n, outputs, *size], in the memory format of `x`.

    The input of the convolution is `x`. With a table it is `first_activation(x·scale + offset)`: the kernel normalises
    `x` as it reads it.

    Args:
        x: [n, inputs, ...], in one or two dims.
        packed: the weight, as `pack` returns it, or one for each batch element, [n, blocks, taps, inputs, outputs].
        bias: fp32 [outputs] or None.
        residual: of the shape of the result, or None.
        alpha: of a snake, fp32 [outputs], else None.
        beta: of a snake, fp32 [outputs], else None.
        kernel: size of the kernel, in each dim.
        stride: in each dim.
        before: zeros before the first element of each dim; behind the last one are as many as `size` needs.
        dilation: in each dim.
        size: of the result, in each dim.
        activation: one of `activations.ACTIVATIONS`.
        slope: of leaky ReLU.
        table: as `norm_table` returns it, or None; see `shares_norms`.
        first_activation: of the norm.
        first_slope: of leaky ReLU there.
        first_alpha: of a snake there, fp32 [inputs], else None.
        first_beta: likewise.
        statistics: one of `STATISTICS`; unless it is "none", return what `norm_table` takes as `partial`, too, of the
            result, or of the result before the activation, before it is rounded; see `shares_norms`.
        shortcut: [n, m·r², height / r, width / r] with r 1 or 2, or None. Its pixel shuffle by r, [n, m, *size],
            is added to each m outputs; see `adds_shortcut`.
    """
    given = (x, packed, bias, residual, alpha, beta, kernel, stride, before, dilation, size, activation, slope)
    first = (table, first_activation, first_slope, first_alpha, first_beta)
    if runs_in_kernel(x):
        from models.kernels import convolution_triton  # needs triton

        return convolution_triton.convolution(*given, *first, statistics, shortcut)
    return reference(*given, *first, statistics, shortcut)


def reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None, alpha: Tensor | None, beta: Tensor | None,
    kernel: list[int], stride: list[int], before: list[int], dilation: list[int], size: list[int],
    activation: str, slope: float, table: Tensor | None = None, first_activation: str = "none",
    first_slope: float = 0.0, first_alpha: Tensor | None = None, first_beta: Tensor | None = None,
    statistics: str = "none", shortcut: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Compute what `convolution` does with PyTorch operations in fp64; the result is rounded once."""
    first = x.double()
    if table is not None:
        scale, offset = (table[:, row].double().unflatten(1, (-1, *[1] * len(kernel))) for row in (2, 4))
        first = activated(first * scale + offset, first_activation, first_slope, first_alpha, first_beta)
    is_shared = packed.dim() == 4  # otherwise batch elements are groups of one convolution
    first = first if is_shared else first.flatten(0, 1).unsqueeze(0)
    weight = packed.double().flatten(0, -4).permute(0, 3, 2, 1).flatten(0, 1).unflatten(2, kernel)
    pads = list[int]()
    for dim in reversed(range(len(kernel))):
        reach = (size[dim] - 1) * stride[dim] + (kernel[dim] - 1) * dilation[dim] + 1
        pads += [before[dim], reach - before[dim] - x.shape[2 + dim]]
    convolve = F.conv1d if len(kernel) == 1 else F.conv2d
    out = convolve(F.pad(first, pads), weight, None, stride, 0, dilation, packed.shape[:-3].numel())
    out = out if is_shared else out[0].unflatten(0, (len(x), -1))
    if bias is not None:
        out = out + channelwise(bias, out)
    if residual is not None:
        out = out + residual
    if shortcut is not None:
        shuffled = F.pixel_shuffle(shortcut, size[0] // shortcut.shape[2])
        out = out + shuffled.repeat(1, out.shape[1] // shuffled.shape[1], 1, 1)
    result = activated(out, activation, slope, alpha, beta)
    of = {"none": None, "result": result, "before_activation": out}[statistics]
    return [in_format_of(x, result), *([] if of is None else [moments(of).float()])]
