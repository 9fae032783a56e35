"""What the referees measure: bound by arithmetic, by memory, and by launches; the same on every device, other sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch

Call = Callable[[], object]


def callables(device: str) -> dict[str, Call]:
    """Return name → call that takes no arguments; each writes into memory of its own, so that none allocates."""
    cuda = device == "cuda"
    side, length, count = (4096, 2**28, 100) if cuda else (512, 2**24, 50)
    dtype = torch.bfloat16 if cuda else torch.float32
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    source = torch.randn(length, device=device)
    target = torch.empty_like(source)
    small = torch.randn(16, device=device)

    def chain() -> None:
        for _ in range(count):
            small.neg_()

    return {
        f"product {side}": lambda: torch.mm(left, right, out=product),
        f"copy {4 * length // 2**20} MiB": lambda: target.copy_(source),
        f"chain of {count} small operators": chain,
    }
