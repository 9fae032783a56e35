"""Which kernel of `convolution_triton.py` computes a convolution, and what it takes over from the calls around it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.kernels.forms import channels_last

#: Most channels of a block for the kernel that goes by rows: it keeps the weights of nine taps.
MOST_IN_ROWS = 32
#: Least width of a result that is computed by rows, or along a sequence.
LEAST_WIDTH = 32
#: What `convolution` returns statistics of, by the number that a kernel gets.
STATISTICS = ("none", "result", "before_activation")
#: Most taps along a sequence, where the kernel keeps a sum and a weight for each.
MOST_TAPS = 11


def goes_by_rows(
    form: Tensor, packed: Tensor, kernel: list[int], stride: list[int], dilation: list[int], size: list[int]
) -> bool:
    """Return whether the kernel reads each row of its input once for the three rows of its result that need it."""
    is_small = 1 < max(packed.shape[-2:]) <= MOST_IN_ROWS and form.dtype in (torch.float16, torch.bfloat16)
    is_dense = kernel == [3, 3] and (stride[0], dilation[0]) == (1, 1) and bool(channels_last(form))
    return is_small and is_dense and size[1] >= LEAST_WIDTH


def goes_along(form: Tensor, packed: Tensor, kernel: list[int], stride: list[int], size: list[int]) -> bool:
    """Return whether the kernel loads each position of a sequence once, and adds it to all results that need it.

    A sequence is in one dim, or is a picture of one row.
    """
    is_small = 1 < max(packed.shape[-2:]) <= 16 and form.dtype in (torch.float16, torch.bfloat16)
    is_sequence = len(kernel) == 1 or (kernel[0], form.shape[2]) == (1, 1)
    is_dense = 1 < kernel[-1] <= MOST_TAPS and {*stride} == {1} and bool(channels_last(form))
    return is_small and is_sequence and is_dense and size[-1] >= LEAST_WIDTH


def is_pointwise(form: Tensor, packed: Tensor, stride: list[int], before: list[int], size: list[int]) -> bool:
    """Return whether each position of the result is the product of one position of the input and one weight."""
    is_one_product = packed.shape[-4:-2] == (1, 1) and {*stride} == {1}
    return is_one_product and not any(before) and form.shape[2:] == torch.Size(size)


def shares_norms(
    form: Tensor, packed: Tensor, kernel: list[int], stride: list[int], before: list[int], dilation: list[int],
    size: list[int],
) -> tuple[bool, bool]:  # fmt: skip
    """Return whether a convolution can normalise its input, and whether it can return statistics of its result.

    A kernel that reads each number several times would normalise it as often. Depthwise convolutions leave no
    statistics, nor do those by rows where a group has more than 16 channels: they would take too many registers.

    Args:
        form: a tensor with the shape, dtype and memory format of the input.
        packed: as for `convolution`, like the rest.
        kernel: size of the kernel.
        stride: in each dim.
        before: zeros before the first element.
        dilation: in each dim.
        size: of the result.
    """
    reads_once = is_pointwise(form, packed, stride, before, size) or goes_along(form, packed, kernel, stride, size)
    most = max(packed.shape[-2:])  # 1 in a depthwise convolution
    by_rows = goes_by_rows(form, packed, kernel, stride, dilation, size)
    return reads_once, reads_once or (most > 1 and not (by_rows and most > 16))


def adds_shortcut(
    form: Tensor, packed: Tensor, kernel: list[int], stride: list[int], before: list[int], dilation: list[int],
    size: list[int], shortcut: Sequence[int],
) -> bool:  # fmt: skip
    """Return whether a convolution adds a `shortcut` of this shape: 1×1 ones of pictures with channels last may.

    The other arguments are those of `shares_norms`.
    """
    if len(shortcut) != 4 or not channels_last(form) or not is_pointwise(form, packed, stride, before, size):
        return False
    outputs, factor = packed.shape[-1], size[0] // max(shortcut[2], 1)
    shuffled = shortcut[1] // max(factor, 1) ** 2
    fits = [len(form), shuffled * factor**2, factor * shortcut[2], factor * shortcut[3]] == [*shortcut[:2], *size]
    # Outputs of a tile are a part of the shuffled channels, or all of them several times.
    return factor in (1, 2) and fits and (shuffled == outputs or (shuffled % 16 == 0 and outputs % shuffled == 0))
