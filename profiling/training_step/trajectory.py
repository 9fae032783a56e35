"""A stretch of training: where losses and weights go, what a step takes, and how two stretches compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from profiling.components.build import Draw
from profiling.trace.profiler import synchronize
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import Snapshot, TrainingStep

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


@dataclass(frozen=True)
class Trajectory:
    """Losses of all steps, weights and running statistics at the end (fp64, host), and the log.

    An entry of the log has step, loss, data_ms (waiting for the batch) and step_ms.
    """

    losses: list[float]
    weights: Tensor
    statistics: Tensor
    log: list[Mapping[str, float]]


def follow(
    step: TrainingStep,
    run: Callable[[], Tensor],
    inputs: Mapping[str, Tensor],
    loader: Iterable[Batch],
    options: TrainingOptions,
) -> Trajectory:
    """Train `options.steps` steps from the state that `step` is in.

    Each batch is copied from pinned memory into `inputs`, which `run` reads; the learning rate changes in place, as a
    schedule would do it between two replays.
    """
    device = next(iter(inputs.values())).device
    losses, log, factors = [], [], dict(options.lr_changes or ())
    batches = iter(loader)
    for number in range(options.steps):
        waited = time.perf_counter()
        batch = next(batches)
        started = time.perf_counter()
        if (factor := factors.get(number)) is not None:
            with torch.no_grad():
                for rate in step.learning_rates():
                    rate.mul_(factor)
        for name, tensor in batch.items():
            inputs[name].copy_(tensor, non_blocking=True)
        loss = run()
        synchronize(device)
        taken = time.perf_counter() - started
        losses.append(float(loss))
        if number % options.log_every == 0 or number == options.steps - 1:
            log.append(
                {"step": number, "loss": losses[-1], "data_ms": (started - waited) * 1e3, "step_ms": taken * 1e3}
            )
    end = Snapshot(step)
    return Trajectory(losses, end.weights(), end.statistics(), log)


@dataclass(frozen=True)
class Eager(Trajectory):
    """Where eager goes, and where it goes from weights that are a rounding error away."""

    nearby: tuple[Trajectory, ...] = ()


#: Where eager ends further than this share of its way from itself, begun a rounding error away, weights say nothing.
CHAOS = 0.5
#: However far eager's own losses come apart, those of another way of running may not differ by more.
MOST_LOSS_ERROR = 0.05


def compare(found: Trajectory, eager: Eager, start: Snapshot, options: TrainingOptions) -> dict[str, Any]:
    """Return the parity section: how far `found` ends from `eager`, and whether that is near enough.

    Errors are relative: of the weights (and of the running statistics) to the distance that eager's travel,
    ‖found − eager‖ / ‖eager − start‖, of the losses the largest |found − eager| / (|eager| + 1e-6) of any step. They
    must be within the tolerances, or within twice what eager itself is off by when it starts `nearby`, a rounding error
    away: training can blow that up, and then no other order of additions could do better. Where that reaches `CHAOS`,
    only losses are judged, and `weights_judged` is false.
    """
    begun = {"weights": start.weights(), "statistics": start.statistics()}

    def off(other: Trajectory, what: str) -> float:
        ends = [getattr(path, what) for path in (other, eager)]
        travelled = float((ends[1] - begun[what]).norm())
        return float((ends[0] - ends[1]).norm()) / travelled if travelled else float((ends[0] != ends[1]).any())

    errors = {what: off(found, what) for what in begun}
    nearby = max((off(other, what) for other in eager.nearby for what in begun), default=0.0)
    loss = loss_error(found.losses, eager.losses)
    nearby_loss = max((loss_error(other.losses, eager.losses) for other in eager.nearby), default=0.0)
    tolerance = max(options.tolerance, min(CHAOS, 2 * nearby))
    loss_tolerance = max(options.loss_tolerance, min(MOST_LOSS_ERROR, 2 * nearby_loss))
    chaotic = 2 * nearby >= CHAOS
    judged = not chaotic or errors["weights"] <= options.tolerance
    near = all(math.isfinite(error) and (error <= tolerance or not judged) for error in errors.values())
    section = {
        "reference": f"eager, the same {options.steps} steps (eager_*: eager, begun a rounding error away)",
        "rel_l2": errors["weights"],
        "statistics_rel_l2": errors["statistics"],
        "eager_rel_l2": nearby,
        "tolerance": tolerance,
        "chaotic": chaotic,
        "weights_judged": judged,
        "loss_error": loss,
        "eager_loss_error": nearby_loss,
        "loss_tolerance": loss_tolerance,
        "passed": near and loss <= loss_tolerance,
    }
    return {key: value for key, value in section.items() if not isinstance(value, float) or math.isfinite(value)}


def faults(strict: Mapping[str, Any], timed: Mapping[str, Any]) -> list[str]:
    """Return what speaks against a way of training: one line for each of the two comparisons that failed.

    `strict` ran deterministic algorithms. `timed` ran those that are timed, which add up in no fixed order: where
    training is chaotic eager does not follow itself with them, and only losses that are no numbers are held against it.
    """
    found = [] if strict["passed"] else [f"the deterministic training went elsewhere than eager's: {_told(strict)}"]
    if not timed["passed"] and (not timed["chaotic"] or "loss_error" not in timed):
        found.append(f"the timed training went elsewhere than eager's: {_told(timed)}")
    return found


def _told(parity: Mapping[str, Any]) -> str:
    shown = (
        ("rel_l2", "weights off by", "tolerance"),
        ("statistics_rel_l2", "running statistics by", "tolerance"),
        ("loss_error", "losses by", "loss_tolerance"),
    )
    numbers = ((parity.get(key, math.inf), words, parity.get(most, math.inf)) for key, words, most in shown)
    return ", ".join(f"{words} {error:.2g} (at most {most:.2g})" for error, words, most in numbers)


def loss_error(found: list[float], expected: list[float]) -> float:
    """Return the largest relative difference of two rows of losses; inf where one is not finite."""
    errors = [abs(one - other) / (abs(other) + 1e-6) for one, other in zip(found, expected, strict=True)]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf
