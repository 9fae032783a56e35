"""Which tensors each kernel accepts, and the reason that it gives for all others, which PyTorch's operators compute."""

import pytest
import torch
from test_resize import given_for

from models.kernels import convolution, fused_norm, resize
from models.kernels.forms import MOST_IN_REGISTERS, channels_last

X = torch.empty(1, 8, 4, 4)
GROUPED, POINTWISE = (torch.empty(8, 2, 3, 3), 4), (torch.empty(8, 8, 1, 1), 1)
LAST = torch.empty(1, 4, 4, 32, dtype=torch.bfloat16).movedim(-1, 1)
LARGE = torch.empty(1, 64, 64, 32).movedim(-1, 1)


def tables(form, size):
    _, rows, _, columns, _ = given_for(form.shape, (size, size), mode="bilinear", antialias=True)
    return rows, columns


@pytest.mark.parametrize(
    ("misfit", "form", "others", "reason"),
    [
        (convolution.misfit, X, GROUPED, None),
        (convolution.misfit, X.to(memory_format=torch.channels_last), POINTWISE, None),
        (convolution.misfit, X, POINTWISE, "write channels_last before this step"),
        (convolution.misfit, torch.empty(1, 8, 4, 4, 4), (torch.empty(8, 2, 3, 3, 3), 4), "it is in 3 dims"),
        (convolution.misfit, X[0], GROUPED, "its input has no batch"),
        (convolution.misfit, torch.empty(1, 8, 4), (torch.empty(8, 8, 1), 1), None),
        (convolution.misfit, X.half(), GROUPED, "in float16, its weight in float32"),
        (fused_norm.misfit, X, (2,), None),
        (fused_norm.misfit, LAST, (2,), None),
        (fused_norm.misfit, X.double(), (2,), "its dtype is float64"),
        (fused_norm.misfit, torch.empty(1, 8, 4, 8)[..., ::2], (2,), "neither contiguous nor channels last"),
        (fused_norm.misfit, torch.empty(1, MOST_IN_REGISTERS + 1, 2), (0,), "it has 8193 channels"),
        (resize.misfit, LAST, tables(LAST, 8), None),
        (resize.misfit, LAST.double(), tables(LAST, 8), "its dtype is float64"),
        (resize.misfit, LAST[:, :3], tables(LAST, 8), "it has 3 channels"),
        (resize.misfit, LAST.contiguous(), tables(LAST, 8), "not channels last"),
        (resize.misfit, LARGE, tables(LARGE, 4), "more than 16 numbers"),
    ],
)
def test_what_a_kernel_does_not_take(misfit, form, others, reason, monkeypatch):
    assert "CUDA device" in misfit(form, torch.device("cpu"), *others)
    for module in ("forms", "convolution"):
        monkeypatch.setattr(f"models.kernels.{module}.HAS_TRITON", True)
    found = misfit(form, torch.device("cuda"), *others)
    assert found is reason or reason in found


def test_the_layout():
    x = torch.empty(2, 8, 3, 4)
    assert channels_last(x) is False
    assert channels_last(x.to(memory_format=torch.channels_last)) is True
    assert channels_last(torch.empty(2, 8, 1, 4).squeeze(2).transpose(1, 2).contiguous().transpose(1, 2)) is True
    assert channels_last(x.transpose(2, 3)) is None
