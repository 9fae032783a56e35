"""The cell of `training_step`: the same steps eagerly and under the variant, then the clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiling.components.build import Blueprint, build, input_maker
from profiling.components.instantiate import instantiate
from profiling.errors import InputError
from profiling.metrics.metric import Subject
from profiling.run.cell import Cell, metrics_of
from profiling.run.job import Job
from profiling.trace.profiler import synchronize
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import Snapshot, TrainingComponent, TrainingStep, make_optimizer, settle
from profiling.training_step.trajectory import Batch, Batches, Eager, Trajectory, compare, faults, follow, make_loader
from profiling.variants.variant import Variant

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


@dataclass
class TrainingCell(Cell):
    """Train eagerly and under the variant, from one start and on the same batches; compare, and measure."""

    options: TrainingOptions = field(default_factory=TrainingOptions)
    optimizer: Any = None  # a functools.partial that lacks the parameters

    def __post_init__(self) -> None:
        """Refuse an optimizer that is made already, without its parameters."""
        if not isinstance(self.optimizer, partial) or "lr" not in self.optimizer.keywords:
            raise InputError("optimizer: its YAML needs _target_, _partial_: true and lr. See conf/optimizer/sgd.yaml.")

    @classmethod
    def computes_in(cls, dtype: str, *, options: TrainingOptions, **_procedure: Any) -> str:
        """Return what autocast computes products in, where it is on."""
        return options.autocast or dtype

    def measure(self) -> None:
        """Load, follow eager, prepare, train, let the metrics measure, and train once more deterministically."""
        job, settings = self.job, self.job.settings
        device = torch.device(settings.device)
        variant: Variant = instantiate(job.variant_options, f"variant.{job.variant}")
        metrics = metrics_of(job)
        for name, metric in metrics.items():
            if metric.needs_reference:
                raise InputError(f"metric.{name} is for forward passes; a training step is held against eager anyway.")

        def reached(phase: str) -> None:
            for metric in metrics.values():
                metric.on_phase(phase, device)

        reached("start")
        with self.phase("data"):
            batches = batches_of(job, self.options)
        loader = make_loader(batches, self.options.steps, self.options.workers, pinned=device.type == "cuda")
        reached("dataloader")
        component, module = self._component(batches)
        bench = Bench(module, component.inputs, loader, self.options, self._rounding())
        reached("model")
        with self.phase("reference"):
            expected = bench.eager()
        bench.tidy()
        reached("ready")
        step = self.prepare(variant, component)
        try:
            reached("prepared")
            with self.phase("training"):
                found = bench.follow(step.run)
            reached("training")
            timed = compare(found, expected, bench.start, self.options)
            self.add(parity=timed, training={"log": found.log, "eager_log": expected.log})
            subject = Subject(component, step, None, variant.tolerance, settings.seed)
            for name, metric in metrics.items():
                bench.start.restore()
                self.run_metric(name, metric, subject)
            self.explain(step)
            bench.start.restore()
            self.explain_roofline(component, step)
            if settings.trace:
                self.trace(component, step)
        finally:
            step.close()
        self._judge(timed, timed if device.type == "cpu" else self._strictly(variant, component, bench))

    def _strictly(self, variant: Variant, component: TrainingComponent, bench: Bench) -> Mapping[str, Any]:
        """Compare once more with deterministic algorithms, with which the same kernels end at the same numbers.

        The fast ones, which are timed, add up in no fixed order: with them eager does not follow itself.
        """
        with self.phase("parity"), deterministic():
            bench.tidy()
            expected = bench.eager()
            bench.tidy()
            step = variant(component, Path(self.job.run) / "kernels" / self.job.name)
            try:
                found = bench.follow(step.run)
            finally:
                step.close()
        return compare(found, expected, bench.start, self.options)

    def _judge(self, timed: Mapping[str, Any], strict: Mapping[str, Any]) -> None:
        found = faults(strict, timed)
        self.add(parity={**strict, "passed": not found, "timed": timed})
        if not strict["weights_judged"]:
            self.note(
                f"eager begun a rounding error away ends {strict['eager_rel_l2']:.0%} of its way from itself: training "
                "is too chaotic to judge weights by, losses were judged"
            )
        self.problems.extend(("failed", fault) for fault in found)

    def _component(self, batches: Batches) -> tuple[TrainingComponent, TrainingStep]:
        job, settings = self.job, self.job.settings
        with self.phase("load"):
            blueprint = build(job.component, settings, getattr(torch, settings.dtype))
            module = self._step(blueprint)
            # A copy also where the batch lies on the device already: steps write the next batch into these.
            inputs = {name: tensor.to(blueprint.device, copy=True) for name, tensor in batches[0].items()}
            settle(module)
            synchronize(blueprint.device)
        self.add(weights=blueprint.weights, weights_hint=blueprint.hint)
        plain = blueprint.component(getattr(torch, settings.dtype), settings.seed)
        component = TrainingComponent(**{**vars(plain), "module": module, "inputs": inputs, "kind": None})
        self.add(parameters=component.parameters, frames_per_call=component.frames_per_call)
        return component, module

    def _step(self, blueprint: Blueprint) -> TrainingStep:
        model = blueprint.module.train()
        return TrainingStep(model, make_optimizer(self.optimizer, model, blueprint.device), self.options).train()

    def _rounding(self) -> float:
        """Return the rounding error of what the step computes in, as a share."""
        dtype = getattr(torch, self.options.autocast or self.job.settings.dtype)
        return torch.finfo(dtype).eps / 2


@contextmanager
def deterministic() -> Iterator[None]:
    """Let torch and cuDNN choose algorithms that give the same numbers each time; operators without one warn."""
    utils: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn, fill = torch.backends.cudnn.deterministic, utils.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    utils.fill_uninitialized_memory = False  # kernels that no training would run
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic = cudnn
        utils.fill_uninitialized_memory = fill


def batches_of(job: Job, options: TrainingOptions) -> Batches:
    """Draw the data in host memory; the module is only asked for its sizes, and is made without memory of its own."""
    spec, dtype = job.component, getattr(torch, job.settings.dtype)
    with torch.device("meta"):
        sizes = instantiate(spec.module, f"component.{spec.key}.module")
    draw = input_maker(spec.inputs, spec.key, sizes, torch.device("cpu"), dtype)
    return Batches(draw, options.batches, job.settings.seed)
