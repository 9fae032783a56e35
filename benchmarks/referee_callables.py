"""What the referees measure: bound by arithmetic, by memory, and by launches; the same on every device, other sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch

Call = Callable[[], object]


def callables(device: str) -> dict[str, Call]:
    """Return name → call that takes no arguments; each writes into memory of its own, so that none allocates."""
    cuda = device == "cuda"
    # On a GPU each takes milliseconds: what an idle device waits for its first kernel must not count.
    rows, side, length, count = (16384, 8192, 2**30, 4000) if cuda else (512, 512, 2**23, 50)
    dtype = torch.bfloat16 if cuda else torch.float32
    left, right = (torch.randn(lines, side, device=device, dtype=dtype) for lines in (rows, side))
    product = torch.empty_like(left)
    source = torch.randn(length, device=device, dtype=torch.float64)
    target = torch.empty_like(source)
    small = torch.randn(16, device=device)

    def chain() -> None:
        for _ in range(count):
            small.neg_()

    return {
        f"product {rows} × {side} × {side}": lambda: torch.mm(left, right, out=product),
        f"copy {source.nbytes // 2**20} MiB": lambda: target.copy_(source),
        f"chain of {count} small operators": chain,
    }
