"""The step: clear gradients, forward, loss, backward, clip, optimizer, in one call that can be captured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.training_step.options import TrainingOptions


class TrainingStep(nn.Module):
    """A model that returns its loss, and the optimizer that follows it.

    The learning rate is a tensor on the device, so that changing it reaches a graph that was captured before.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, options: TrainingOptions) -> None:
        super().__init__()
        self.model = model
        self.optimizer = optimizer
        self._clip_norm = options.clip_norm
        self._autocast = None if options.autocast is None else getattr(torch, options.autocast)
        self._device_type = next(model.parameters()).device.type

    def forward(self, **batch: Tensor) -> Tensor:
        """Train on `batch`, the arguments of the model's forward; return the loss, an fp32 scalar without a graph."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device_type, dtype=self._autocast, enabled=self._autocast is not None):
            loss = self.model(**batch)
        if loss.numel() != 1:
            raise InputError(f"training needs a component whose forward returns its loss, not {list(loss.shape)}.")
        loss.backward()
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self.optimizer.step()
        return loss.detach()

    def learning_rates(self) -> Iterable[Tensor]:
        """Return the learning rate of each group, to be changed in place."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes or reads: weights, buffers, moments, learning rates."""
        return [*self.model.parameters(), *self.state_tensors()]

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return what a step changes or reads besides the weights: buffers, moments, learning rates."""
        moments = [value for kept in self.optimizer.state.values() for value in kept.values()]
        tensors = [*self.model.buffers(), *moments, *self.learning_rates()]
        return tuple(tensor for tensor in tensors if isinstance(tensor, Tensor))


@dataclass(frozen=True)
class TrainingComponent(Component):
    """A component whose module is a `TrainingStep`: a call changes its weights, and whoever calls puts them back."""

    def state(self) -> tuple[Tensor, ...]:
        """Return nothing: the training cell keeps the state in host memory, where it is in nobody's figures."""
        return ()


def make_optimizer(make: partial[Optimizer], model: nn.Module, device: torch.device) -> Optimizer:
    """Return the optimizer with its learning rate as a tensor on the device.

    `capturable`, where it is asked for, is set on CUDA only: torch has it nowhere else, and needs it nowhere else.

    Raises:
        InputError: the optimizer refuses its options, or a tensor as learning rate.

    """
    options = dict(make.keywords)
    if options.get("capturable"):
        options["capturable"] = device.type == "cuda"
    try:
        options["lr"] = torch.tensor(float(options["lr"]), device=device)
        return make.func(model.parameters(), **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"optimizer: {make.func.__name__}: {error}. Correct its options: optimizer.KEY=VALUE."
        ) from error


class Snapshot:
    """The state of a step at one moment, in host memory."""

    def __init__(self, step: TrainingStep) -> None:
        self._step = step
        self._kept = [tensor.detach().to("cpu", copy=True) for tensor in step.state()]

    @torch.no_grad()
    def restore(self, noise: float = 0.0, seed: int = 0) -> None:
        """Put everything back in place, the weights off by a share of up to `noise`."""
        for tensor, kept in zip(self._step.state(), self._kept, strict=True):
            tensor.copy_(kept)
        generator = torch.Generator().manual_seed(seed)
        for weight in self._step.model.parameters() if noise else ():
            off = (torch.rand(weight.shape, generator=generator) * 2 - 1) * noise
            weight.mul_(1 + off.to(weight))

    def weights(self) -> Tensor:
        """Return all trained weights as one fp64 vector."""
        return _vector(self._kept[: self._counts()[0]])

    def statistics(self) -> Tensor:
        """Return all floating buffers (running means and variances) as one fp64 vector, empty where there are none."""
        first, count = self._counts()
        return _vector([kept for kept in self._kept[first : first + count] if kept.is_floating_point()])

    def _counts(self) -> tuple[int, int]:
        return len(list(self._step.model.parameters())), len(list(self._step.model.buffers()))


def _vector(tensors: list[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.float64), *(tensor.double().flatten() for tensor in tensors)])


@torch.no_grad()
def settle(step: TrainingStep) -> None:
    """Let the optimizer make its state by a step without gradients, and put weights and state to the start."""
    weights = list(step.model.parameters())
    before = [weight.clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    step.optimizer.step()
    step.optimizer.zero_grad(set_to_none=True)
    for weight, kept in zip(weights, before, strict=True):
        weight.copy_(kept)
    for moments in step.optimizer.state.values():
        for name, value in moments.items():
            if isinstance(value, Tensor):
                if value.ndim == 0 and name != "step":
                    raise InputError(f"optimizer: where its {name!r} starts is not known here. Use SGD, Adam or AdamW.")
                value.zero_()
