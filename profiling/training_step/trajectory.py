"""A trajectory of training: losses, weights and step times of some steps, and its comparison with eager training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from profiling.components.trees import overwrite
from profiling.results.measured import Parity, ParityCheck, TrainingStepRow
from profiling.trace.profiler import synchronize
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import Snapshot, TrainingStep

#: Number of eager trainings from weights perturbed by a rounding error; a single one could stay near by chance.
NEARBY = 3
#: Training is chaotic, and weights cannot be compared, where eager training from weights perturbed by a rounding error
#: ends at least this fraction of the travelled distance away.
CHAOS = 0.5
#: Largest loss error that is accepted, however much a rounding error changes eager's own losses. Steps that draw random
#: numbers have no such limit: their losses differ by chance.
MOST_LOSS_ERROR = 0.05
#: Steps from one row of the log to the next.
LOG_EVERY = 10

#: Arguments of the model, as its component draws them: tensors, plain values, nested.
Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Trajectory:
    """The losses of all steps, `Snapshot.vectors` after the last, and a log.

    `nearby`: for eager training, the eager trajectories from weights perturbed by a rounding error.
    `is_random`: the steps drew random numbers (such as dropout), so that every training differs from every other.
    """

    losses: list[float]
    end: Mapping[str, Tensor]
    log: tuple[TrainingStepRow, ...]
    nearby: tuple[Trajectory, ...] = ()
    is_random: bool = False


class Trainer:
    """Trains `step` on `batches` of CPU tensors, in different ways but always from the state that it has now.

    `inputs` are what a step reads: each batch is copied into them, from pinned memory on CUDA. `rounding` is the
    relative rounding error of the dtype that the step computes in.
    """

    def __init__(
        self, step: TrainingStep, inputs: Batch, batches: Sequence[Batch], options: TrainingOptions, rounding: float
    ) -> None:
        self.step, self.inputs, self.options, self.rounding = step, inputs, options, rounding
        self.start = Snapshot(step)
        self.loader = DataLoader(
            cast(Dataset[Batch], batches),
            batch_size=None,
            sampler=[number % len(batches) for number in range(options.steps)],  # repeats them in their order
            num_workers=options.workers,
            pin_memory=next(step.parameters()).is_cuda,
            persistent_workers=options.workers > 0,
        )

    def train(self, run: Callable[[], Tensor], *, noise: float = 0.0, seed: int = 0) -> Trajectory:
        """Train from the start by calls of `run`, with a random relative error of up to `noise` in each weight.

        The learning rate is changed in place, as a schedule does between two replays of a graph.
        """
        self.start.restore(noise, seed)
        device = next(self.step.parameters()).device
        losses, log, factors = [], [], dict(self.options.lr_changes or ())
        batches = iter(self.loader)  # draws a random number itself
        before = _generator_states(device)
        for number in range(self.options.steps):
            waiting = time.perf_counter()
            batch = next(batches)
            started = time.perf_counter()
            if (factor := factors.get(number)) is not None:
                with torch.no_grad():
                    for rate in self.step.learning_rates():
                        rate.mul_(factor)
            overwrite(self.inputs, batch)
            loss = run()
            synchronize(device)
            step_ms, data_ms = (time.perf_counter() - started) * 1e3, (started - waiting) * 1e3
            losses.append(float(loss))
            if number % LOG_EVERY == 0 or number == self.options.steps - 1:
                log.append(TrainingStepRow(step=number, loss=_finite(losses[-1]), data_ms=data_ms, step_ms=step_ms))
        after = _generator_states(device)
        is_random = any(not torch.equal(*states) for states in zip(before, after, strict=True))
        return Trajectory(losses, Snapshot(self.step).vectors(), tuple(log), is_random=is_random)

    def train_eagerly(self) -> Trajectory:
        """Train eagerly several times: from the start, and from its weights with random errors of the size of rounding.

        Afterwards the start is restored, and gradients and the allocator's cache are freed.
        """
        run = partial(self.step, **self.inputs)
        eager = self.train(run)
        nearby = [self.train(run, noise=self.rounding, seed=seed) for seed in range(NEARBY)]
        self.step.optimizer.zero_grad(set_to_none=True)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self.start.restore()
        return replace(eager, nearby=tuple(nearby))


def compare_trajectories(
    trajectory: Trajectory, eager: Trajectory, start: Snapshot, options: TrainingOptions
) -> Parity:
    """Compare a trajectory from `start` with that of eager training.

    The error of weights (and of running statistics) is relative to the distance that eager's travelled,
    ‖weights − eager‖ / ‖eager − start‖; the error of a loss is |loss − eager| / (|eager| + 1e-6), of which the largest
    counts. An error may be as large as the tolerance, or twice the distance of `eager` from its own `nearby`
    trajectories: where training amplifies a rounding error, no other order of additions can do better. Where that
    reaches `CHAOS`, only losses are compared, and `weights_judged` is false. Where the steps draw random numbers,
    a loss may differ by twice as much as eager's own losses do.
    """
    starts = start.vectors()

    def relative_distance(other: Trajectory, what: str) -> float:
        end, eager_end = other.end[what], eager.end[what]
        travelled = float((eager_end - starts[what]).norm())
        return float((end - eager_end).norm()) / travelled if travelled else float((end != eager_end).any())

    errors = {what: relative_distance(trajectory, what) for what in starts}
    nearby = max((relative_distance(other, what) for other in eager.nearby for what in starts), default=0.0)
    loss_error = _loss_error(trajectory.losses, eager.losses)
    nearby_loss = max((_loss_error(other.losses, eager.losses) for other in eager.nearby), default=0.0)
    tolerance = max(options.tolerance, min(CHAOS, 2 * nearby))
    most_loss_error = math.inf if eager.is_random else MOST_LOSS_ERROR
    loss_tolerance = max(options.loss_tolerance, min(most_loss_error, 2 * nearby_loss))
    chaotic = 2 * nearby >= CHAOS
    weights_judged = not chaotic or errors["weights"] <= options.tolerance
    within = all(math.isfinite(error) and (error <= tolerance or not weights_judged) for error in errors.values())
    return Parity(
        reference=f"the same {options.steps} steps run eagerly (eager_*: from weights perturbed by a rounding error)",
        passed=within and loss_error <= loss_tolerance,
        rel_l2=_finite(errors["weights"]),
        statistics_rel_l2=_finite(errors["statistics"]),
        eager_rel_l2=_finite(nearby),
        tolerance=_finite(tolerance),
        chaotic=chaotic,
        weights_judged=weights_judged,
        loss_error=_finite(loss_error),
        loss_tolerance=_finite(loss_tolerance),
    )


def parity_faults(deterministic: ParityCheck, timed: ParityCheck) -> list[str]:
    """Return a line for each of the two comparisons that failed.

    The algorithms of the timed training add up in no fixed order. Where training is chaotic, two eager trainings with
    them differ, so only losses that are not finite count.
    """
    faults = []
    if not deterministic.passed:
        faults.append(f"the training with deterministic algorithms differs from eager's: {_describe(deterministic)}")
    if not timed.passed and (not timed.chaotic or timed.loss_error is None):
        faults.append(f"the timed training differs from eager's: {_describe(timed)}")
    return faults


def _generator_states(device: torch.device) -> tuple[Tensor, ...]:
    """Return the states of the random number generators of the host and of a CUDA device."""
    host = torch.get_rng_state()
    return (host, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (host,)


def _describe(check: ParityCheck) -> str:
    errors = (
        ("weights", check.rel_l2, check.tolerance),
        ("running statistics", check.statistics_rel_l2, check.tolerance),
        ("losses", check.loss_error, check.loss_tolerance),
    )
    return ", ".join(f"{what} by {_number(error)} (tolerance {_number(most)})" for what, error, most in errors)


def _number(value: float | None) -> str:
    return "inf" if value is None else f"{value:.2g}"


def _loss_error(losses: list[float], expected: list[float]) -> float:
    """Return the largest relative error of a loss; inf where one is not finite."""
    errors = [abs(one - other) / (abs(other) + 1e-6) for one, other in zip(losses, expected, strict=True)]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def _finite(value: float) -> float | None:
    """Return the value, or None where it is not finite, which a record cannot hold."""
    return value if math.isfinite(value) else None
