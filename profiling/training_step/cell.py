"""The cell of `training_step`: trains the same steps eagerly and under the variant, then runs the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from msgspec.structs import replace

from profiling.components.component import Component
from profiling.components.trees import map_tensors
from profiling.errors import InputError
from profiling.metrics.metric import Subject
from profiling.results.measured import Parity, Training
from profiling.run.cell import Cell, metrics_of, observe
from profiling.trace.profiler import synchronize
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import TrainingComponent, TrainingStep
from profiling.training_step.trajectory import Batch, Trainer, compare_trajectories, parity_faults
from profiling.variants.variant import Step, Variant


@dataclass
class TrainingCell(Cell):
    """Train eagerly and under the variant, from one start and on the same batches; compare, and measure."""

    in_inference_mode: ClassVar[bool] = False
    options: TrainingOptions = field(default_factory=TrainingOptions)
    optimizer: Any = None  # a functools.partial without the parameters of a module that is not built yet

    @classmethod
    def computes_in(cls, dtype: str, *, options: TrainingOptions, **_procedure: Any) -> str:
        """Return the dtype that products are computed in: that of autocast where it is on."""
        return options.autocast or dtype

    def measure(self) -> None:
        """Load, train eagerly, prepare, train, run the metrics, and compare once more with deterministic algorithms."""
        job, settings = self.job, self.job.settings
        device = torch.device(settings.device)
        variant = self.variant()
        metrics = metrics_of(job)
        for name, metric in metrics.items():
            if metric.needs_reference:
                raise InputError(
                    f"metric.{name} is for forward passes: leave it out. A training step is always compared with eager."
                )
        reached = partial(observe, metrics, device)
        reached("start")
        (component,) = self.components().values()
        reached("model")
        rounding = torch.finfo(getattr(torch, self.options.autocast or settings.dtype)).eps / 2
        trainer = Trainer(component.module, component.inputs, self._batches(component), self.options, rounding)
        reached("dataloader")
        with self.phase("reference"):
            eager = trainer.train_eagerly()
        reached("ready")
        with ExitStack() as stack:
            step = self.prepare(variant, {component.name: component}, stack)[component.name]
            reached("prepared")
            with self.phase("training"):
                trajectory = trainer.train(step.run)
            reached("training")
            timed = compare_trajectories(trajectory, eager, trainer.start, self.options)
            self.add(parity=timed, training=Training(log=trajectory.log, eager_log=eager.log))
            subject = Subject(component, step, None, variant.tolerance, settings.seed)
            for name, metric in metrics.items():
                trainer.start.restore()
                self.run_metric(name, metric, subject)
            trainer.start.restore()
            self.explain_time(component, step, self.explain(component, step))
        deterministic = timed if device.type == "cpu" else self._compare_deterministic(variant, component, trainer)
        self._judge(timed, deterministic, is_random=eager.is_random)

    def components(self) -> Mapping[str, TrainingComponent]:
        """Build the training step of the component."""
        settings, spec = self.job.settings, self.job.component
        if spec.warmup_inputs:
            raise InputError(f"component.{spec.key}.warmup_inputs are for forward passes. Leave them out to train.")
        blueprint = self.load({spec.name: spec})[spec.name].cast("run")
        with self.phase("load"):
            module = TrainingStep(blueprint.module, self.optimizer, self.options).train()
            forward = blueprint.component(settings.seed)
            component = TrainingComponent(**{**vars(forward), "module": module, "policy": "none"})
            synchronize(blueprint.device)
        components = {component.name: component}
        self.describe(components, frames_per_call=component.frames_per_call, cast=spec.cast)
        return components

    def _batches(self, component: Component) -> list[Batch]:
        """Draw the batches into host memory in advance: making them is not part of a step. The first has the seed."""
        seeds = range(self.job.settings.seed, self.job.settings.seed + self.options.batches)
        drawn = (component.make_inputs(torch.Generator(component.device).manual_seed(seed)) for seed in seeds)
        return [map_tensors(lambda tensor: tensor.to("cpu", copy=True), batch) for batch in drawn]

    def _compare_deterministic(self, variant: Variant, component: TrainingComponent, trainer: Trainer) -> Parity:
        """Compare once more with deterministic algorithms, with which the same kernels give the same numbers.

        The timed algorithms are faster but add up in no fixed order: two eager trainings with them differ.
        """
        with self.phase("parity"), deterministic_algorithms(), ExitStack() as stack:
            eager = trainer.train_eagerly()
            step: Step = variant(component, Path(self.job.run) / "kernels" / self.job.name)
            stack.callback(self.close, step)
            trajectory = trainer.train(step.run)
        return compare_trajectories(trajectory, eager, trainer.start, self.options)

    def _judge(self, timed: Parity, deterministic: Parity, *, is_random: bool) -> None:
        faults = parity_faults(deterministic, timed)
        self.add(parity=replace(deterministic, passed=not faults, timed=timed))
        if not deterministic.weights_judged:
            distance = deterministic.eager_rel_l2
            share = "inf" if distance is None else f"{distance:.0%}"
            cause = (
                "the step draws random numbers (such as dropout): the final weights of two eager trainings differ"
                if is_random
                else "training is chaotic: a rounding error in the initial weights changes the final ones of eager "
                "training"
            )
            limit = deterministic.loss_tolerance
            accepted = "" if limit is None else f" A loss may differ by {limit:.0%}."
            self.note(
                f"{cause} by {share} of their travelled distance. Only losses were compared, not weights.{accepted}"
            )
        self.problems.extend(("failed", fault) for fault in faults)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Make torch and cuDNN use deterministic algorithms; operators without one warn."""
    utils: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn, fill = torch.backends.cudnn.deterministic, utils.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True  # a CTC loss asks for this one only
    utils.fill_uninitialized_memory = False  # with NaN, by a kernel for each empty(), which is not what was timed
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic = cudnn
        utils.fill_uninitialized_memory = fill
