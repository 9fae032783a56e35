"""The resizing kernel against PyTorch's interpolation in float64."""

import pytest
import torch
from reference_data import check_compiled_and_captured, interpret, relative_error
from torch.nn import functional as F

from models.kernels.resize import resize, tables

#: Shape of the input, and options of `F.interpolate`. They enlarge and shrink, by factors that are no whole numbers.
CASES = [
    ((2, 20, 7, 9), {"size": (14, 18), "mode": "bicubic"}),
    ((1, 80, 12, 12), {"size": (9, 15), "mode": "bicubic"}),
    ((3, 16, 5, 6), {"size": (13, 16), "mode": "bilinear", "align_corners": True}),
    ((1, 16, 20, 20), {"size": (10, 13), "mode": "bilinear", "antialias": True}),
    ((1, 16, 1, 3), {"size": (4, 7), "mode": "bicubic"}),
]
LARGE = [
    ((1, 128, 256, 256), {"size": (512, 512), "mode": "bicubic"}),
    ((1, 128, 512, 512), {"size": (360, 640), "mode": "bicubic"}),
]


def weights(inputs, results, **options):
    """Return the weights [results, inputs] in one dim: the results for unit vectors."""
    rows = torch.eye(inputs, dtype=torch.float64)[:, None, None]
    return F.interpolate(rows, (1, results), **options)[:, 0, 0].T


def given_for(shape, size, **options):
    """Return the tables and the size for the kernel."""
    rows, columns = (weights(*sizes, **options) for sizes in zip(shape[2:], size, strict=True))
    return *tables(rows, columns), list(size)


def check(function, device="cpu", cases=CASES):
    for shape, options in cases:
        wide = torch.randn(shape, dtype=torch.float64)
        given = [each.to(device) if torch.is_tensor(each) else each for each in given_for(shape, **options)]
        for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 4e-3)):
            x = wide.to(dtype).to(memory_format=torch.channels_last)
            out = function(x.to(device), *given)
            assert out.dtype == dtype
            assert out.is_contiguous(memory_format=torch.channels_last)
            assert relative_error(out.cpu(), F.interpolate(x.double(), **options)) < bound, (shape, options)


def interpreted():
    from models.kernels import resize_triton

    check(resize_triton.resize)


def test_the_kernel_in_the_interpreter():
    interpret("test_resize", "interpreted")


def test_the_reference():
    check(resize)


@pytest.mark.gpu
def test_the_kernel_on_the_gpu():
    with torch.no_grad():
        check(resize, "cuda", [*CASES, *LARGE])


@pytest.mark.gpu
def test_compiled_and_captured_on_the_gpu():
    shape, options = CASES[0]
    given = [each.cuda() if torch.is_tensor(each) else each for each in given_for(shape, **options)]

    def between(x):
        return resize(x.relu(), *given) + 1

    x = torch.randn(shape, device="cuda").to(memory_format=torch.channels_last)
    check_compiled_and_captured(between, x, bound=1e-6)
