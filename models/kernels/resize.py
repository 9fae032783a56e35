"""Resizes pictures with channels last by weighted sums along columns and rows: bilinear, bicubic, antialiased or not.

The weights come from PyTorch's own function, once, and are tables. Compiled code computes them for each number of the
result, and reads 16 inputs for it in a bicubic resize; here `ROWS` rows share the sums along a row of the input.
"""

import torch
from torch import Tensor

from models.kernels import one_call
from models.kernels.forms import channels_last, in_format_of, runs_in_kernel, unsupported

#: Rows of the result that a program computes.
ROWS = 8
#: Fewest channels: 32 bytes in half precision, the least that memory transfers.
LEAST_CHANNELS = 16
#: Most inputs along a dim that a program reads for its results.
MOST_INPUTS = 16


def misfit(form: Tensor, device: torch.device, row_weights: Tensor, column_weights: Tensor) -> str | None:
    """Return why the kernel does not resize a tensor of the form of `form`, or None.

    Args:
        form: the input, which may be on another device.
        device: of the input.
        row_weights: as `tables` returns them.
        column_weights: likewise.
    """
    if (reason := unsupported(form, device)) is not None:
        return reason
    if form.shape[1] < LEAST_CHANNELS:
        return f"it has {form.shape[1]} channels; the kernel takes {LEAST_CHANNELS} and more"
    if not channels_last(form):
        return "it is not channels last: write channels_last before this step"
    if max(row_weights.shape[2], column_weights.shape[2]) > MOST_INPUTS:
        return f"it sums more than {MOST_INPUTS} numbers of a dim"
    return None


def tables(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `first_row`, `row_weights`, `first_column` and `column_weights` of `resize`.

    Args:
        rows: weights of the sums along a column [height, input height]; those that are not zero lie side by side.
        columns: likewise of the sums along a row [width, input width].
    """
    return *_table(rows, ROWS), *_table(columns, 1)


def _table(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return where each `count` results begin to read, [groups], and their weights [groups, count, window]."""
    results, inputs = weights.shape
    used = torch.zeros(-(-results // count) * count, inputs, dtype=torch.bool)
    used[:results] = weights.cpu() != 0
    used = used.unflatten(0, (-1, count)).any(1)
    places = torch.arange(inputs)
    first = torch.where(used, places, inputs).amin(1)
    window = max(int((torch.where(used, places, -1).amax(1) - first).max()) + 1, 1)
    first = first.clamp(max=inputs - window)
    padded = torch.zeros(len(first) * count, inputs)
    padded[:results] = weights.cpu()
    read = (first[:, None] + torch.arange(window)).repeat_interleave(count, 0)
    return first.int(), padded.gather(1, read).unflatten(0, (-1, count)).contiguous()


@one_call
def resize(
    x: Tensor, first_row: Tensor, row_weights: Tensor, first_column: Tensor, column_weights: Tensor, size: list[int]
) -> Tensor:
    """Return `x` [n, c, h, w] resized to [n, c, *size], in its dtype and memory format; sums are in fp32.

    An infinite number or NaN also makes results NaN that read it with a weight of zero: up to `ROWS` rows around it.

    Args:
        x: of a form for which `misfit` returns None.
        first_row: where each `ROWS` rows begin to read, int32 [groups]; see `tables`.
        row_weights: fp32 [groups, ROWS, window].
        first_column: where each column begins to read, int32 [width].
        column_weights: fp32 [width, 1, window].
        size: height and width of the result.
    """
    given = (x, first_row, row_weights, first_column, column_weights, size)
    if runs_in_kernel(x):
        from models.kernels import resize_triton  # needs triton

        return resize_triton.resize(*given)
    return reference(*given)


def reference(
    x: Tensor, first_row: Tensor, row_weights: Tensor, first_column: Tensor, column_weights: Tensor, size: list[int]
) -> Tensor:
    """Compute what `resize` does with PyTorch operations in fp64; the result is rounded once."""
    rows = _dense(first_row, row_weights, size[0], x.shape[2])
    columns = _dense(first_column, column_weights, size[1], x.shape[3])
    return in_format_of(x, rows @ x.double() @ columns.T)


def _dense(first: Tensor, weights: Tensor, results: int, inputs: int) -> Tensor:
    groups, count, window = weights.shape
    read = (first.long()[:, None] + torch.arange(window, device=first.device)).repeat_interleave(count, 0)
    dense = weights.new_zeros(groups * count, inputs, dtype=torch.float64)
    return dense.scatter(1, read, weights.double().flatten(0, 1))[:results]
