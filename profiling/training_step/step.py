"""The training step: clear gradients, forward, loss, backward, clip, optimizer, in one call that can be captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.training_step.options import TrainingOptions


class TrainingStep(nn.Module):
    """A model that returns its loss, and its optimizer, made without its parameters by `make` and ready for a capture.

    The learning rate is a tensor on the device, so that a captured graph reads its changes.

    Raises:
        InputError: the optimizer refuses its options or a tensor as learning rate, or its first state is unknown.

    """

    def __init__(self, model: nn.Module, make: partial[Optimizer], options: TrainingOptions) -> None:
        super().__init__()
        self.model = model
        self.optimizer = _make_optimizer(make, model)
        self._clip_norm = options.clip_norm
        self._autocast = None if options.autocast is None else getattr(torch, options.autocast)
        self._device_type = next(model.parameters()).device.type
        self._initialise_optimizer()

    def forward(self, **batch: Any) -> Tensor:
        """Train on `batch`, the arguments of the model's forward; return the detached loss, an fp32 scalar."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device_type, dtype=self._autocast, enabled=self._autocast is not None):
            loss = self.model(**batch)
        if loss.numel() != 1:
            raise InputError(f"training needs a forward that returns its loss, a scalar, not {list(loss.shape)}.")
        loss.backward()
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def _initialise_optimizer(self) -> None:
        """Allocate the state of the optimizer by a step with zero gradients; restore weights and initial state."""
        weights = list(self.model.parameters())
        before = [weight.clone() for weight in weights]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for weight, value in zip(weights, before, strict=True):
            weight.copy_(value)
        for moments in self.optimizer.state.values():
            for name, value in moments.items():
                if isinstance(value, Tensor):
                    if value.ndim == 0 and name != "step":
                        raise InputError(
                            f"optimizer: the first value of its state {name!r} is unknown. Use SGD, Adam or AdamW."
                        )
                    value.zero_()

    def learning_rates(self) -> Iterable[Tensor]:
        """Return the learning rate of each parameter group, to be changed in place."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state(self) -> list[Tensor]:
        """Return every tensor that a step reads or changes: weights, buffers, moments, learning rates."""
        return [*self.model.parameters(), *self.state_tensors()]

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that a step reads or changes, without the weights: buffers, moments, learning rates."""
        moments = [value for by_name in self.optimizer.state.values() for value in by_name.values()]
        tensors = [*self.model.buffers(), *moments, *self.learning_rates()]
        return tuple(tensor for tensor in tensors if isinstance(tensor, Tensor))


@dataclass(frozen=True)
class TrainingComponent(Component):
    """A component whose module is a `TrainingStep`: a call changes its weights, and the caller restores them."""

    module: TrainingStep

    def keep_state(self) -> Callable[[], None]:
        """Keep nothing: the training cell keeps the state in host memory, outside of every memory measurement."""
        return lambda: None


def _make_optimizer(make: partial[Optimizer], model: nn.Module) -> Optimizer:
    """Return the optimizer; a requested `capturable` is set on CUDA only: elsewhere torch refuses it."""
    options, device = dict(make.keywords), next(model.parameters()).device
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
    """The state of a training step at one moment, in host memory."""

    def __init__(self, step: TrainingStep) -> None:
        self._step = step
        self._tensors = [tensor.detach().to("cpu", copy=True) for tensor in step.state()]
        self._weights, self._buffers = len(list(step.model.parameters())), len(list(step.model.buffers()))

    @torch.no_grad()
    def restore(self, noise: float = 0.0, seed: int = 0) -> None:
        """Restore the state, with a random relative error of up to `noise` in each weight."""
        for tensor, value in zip(self._step.state(), self._tensors, strict=True):
            tensor.copy_(value)
        generator = torch.Generator().manual_seed(seed)
        for weight in self._step.model.parameters() if noise else ():
            error = (torch.rand(weight.shape, generator=generator) * 2 - 1) * noise
            weight.mul_(1 + error.to(weight))

    def vectors(self) -> dict[str, Tensor]:
        """Return the weights, and the running statistics (floating and complex buffers), each as one fp64 vector."""
        weights, rest = self._tensors[: self._weights], self._tensors[self._weights :]
        buffers = [each for each in rest[: self._buffers] if each.is_floating_point() or each.is_complex()]
        return {"weights": _real_vector(weights), "statistics": _real_vector(buffers)}


def _real_vector(tensors: Iterable[Tensor]) -> Tensor:
    """Return all elements as one fp64 vector; of complex ones the real and the imaginary parts."""
    real = (torch.view_as_real(each) if each.is_complex() else each for each in tensors)
    return torch.cat([torch.empty(0, dtype=torch.float64), *(each.double().flatten() for each in real)])
