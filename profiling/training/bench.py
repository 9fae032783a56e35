"""One start, one row of batches, any number of ways to train from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from profiling.training.data import Batch
from profiling.training.options import TrainingOptions
from profiling.training.step import Snapshot, TrainingStep
from profiling.training.trajectory import Eager, Trajectory, follow

#: How often eager is begun a rounding error away; one could by chance stay near.
NEIGHBOURS = 3


@dataclass(frozen=True)
class Bench:
    """Follows a way to run `step` over the loader's batches, always from the same start.

    `rounding` is the relative rounding error of what the step computes in.
    """

    step: TrainingStep
    inputs: Mapping[str, Tensor]
    loader: Iterable[Batch]
    options: TrainingOptions
    rounding: float
    start: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        """Keep the state of now as the start."""
        object.__setattr__(self, "start", Snapshot(self.step))

    def follow(self, run: Callable[[], Tensor], *, noise: float = 0.0, seed: int = 0) -> Trajectory:
        """Train from the start, or from weights that are off by up to `noise` of themselves."""
        self.start.restore(noise, seed)
        return follow(self.step, run, self.inputs, self.loader, self.options)

    def eager(self) -> Eager:
        """Train eagerly, and again from next to the start."""
        run = partial(self.step, **self.inputs)
        path = self.follow(run)
        nearby = [self.follow(run, noise=self.rounding, seed=seed) for seed in range(NEIGHBOURS)]
        return Eager(path.losses, path.weights, path.statistics, path.log, tuple(nearby))

    def tidy(self) -> None:
        """Go back to the start and give back what eager left: gradients, and the allocator's cache."""
        self.step.optimizer.zero_grad(set_to_none=True)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self.start.restore()
