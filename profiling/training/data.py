"""Seeded batches through a DataLoader with pinned memory, as a training loop gets them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from profiling.core.building import Draw

Batch = dict[str, Tensor]


class Batches(Dataset[Batch]):
    """So many different batches, drawn once and kept in host memory."""

    def __init__(self, draw: Draw, count: int, seed: int) -> None:
        self._batches = [dict(draw(torch.Generator().manual_seed(seed + index))) for index in range(count)]

    def __len__(self) -> int:
        """Return how many batches there are."""
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        """Return batch `index`, tensors on the CPU by the names of forward's arguments."""
        return self._batches[index]


class Rounds(torch.utils.data.Sampler[int]):
    """The numbers of the batches in order, again and again, `steps` of them."""

    def __init__(self, batches: int, steps: int) -> None:
        self._batches, self._steps = batches, steps

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers."""
        return (step % self._batches for step in range(self._steps))

    def __len__(self) -> int:
        """Return how many steps there are."""
        return self._steps


def make_loader(batches: Batches, steps: int, workers: int, *, pinned: bool) -> DataLoader[Batch]:
    """Return a loader of `steps` batches, made by `workers` processes (0: by this one), into pinned memory."""
    return DataLoader(
        batches,
        batch_size=None,
        sampler=Rounds(len(batches), steps),
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
    )
