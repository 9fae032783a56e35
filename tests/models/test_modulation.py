"""A compiled graph computes what several kernels read once, and the numbers stay the same."""

import re

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from models.modulation import materialized


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """Stand for a kernel of our own."""
    return 2 * x


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def parts(x, held):
    """Return three parts of `x + 1`, each from a kernel that reads memory."""
    wide = materialized(x + 1) if held else x + 1
    return [doubled(wide[:, start : start + 8]) for start in (0, 8, 16)]


@pytest.mark.parametrize("held", [True, False])
def test_readers_share_what_is_in_memory(held):
    """Without it each gets a tensor of its own; should that change, this module is not needed any more."""
    torch._dynamo.reset()
    x = torch.randn(4, 24)
    found, (code,) = run_and_get_code(torch.compile(parts, fullgraph=True), x, held)
    read = re.findall(r"doubled\.default\((?:reinterpret_tensor\()?(\w+)", code)
    assert len(read) == 3
    assert len(set(read)) == (1 if held else 3)
    for one, other in zip(found, parts(x, held), strict=True):
        torch.testing.assert_close(one, other)


def test_order_of_dims_stays():
    torch._dynamo.reset()
    x = torch.randn(3, 4, 5).transpose(0, 2)
    compiled = torch.compile(lambda x: materialized(x.sin()) * 2, fullgraph=True)(x)
    torch.testing.assert_close(compiled, x.sin() * 2)
    assert materialized(x).stride() == x.stride()
