"""A training step against one written by hand, and the comparison of trajectories against planted faults."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from msgspec import structs
from torch import nn

from profiling.errors import InputError
from profiling.results.measured import ParityCheck
from profiling.results.record import encode_sections
from profiling.training_step.cell import TrainingCell
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import Snapshot, TrainingStep, initialise_optimizer, make_optimizer
from profiling.training_step.trajectory import (
    Trainer,
    compare_trajectories,
    draw_batches,
    make_loader,
    parity_faults,
)

OPTIONS = TrainingOptions(steps=12, log_every=5, batches=3, workers=0, lr_changes=[[6, 0.1]])
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3, fused=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, capturable=True),
}


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        # No bias before the norm: its gradient is rounding noise, of which AdamW makes steps of full size.
        self.net = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, y):
        return (self.net(x) - y).square().mean()


def draw(generator):
    return {"x": torch.randn(8, 6, generator=generator), "y": torch.randn(8, 1, generator=generator)}


class WithDropout(Loss):
    def forward(self, x, y):
        return (nn.functional.dropout(self.net(x), 0.5) - y).square().mean()


def make_step(kind="sgd", options=OPTIONS, model=Loss):
    torch.manual_seed(0)
    model = model().train()
    step = TrainingStep(model, make_optimizer(OPTIMIZERS[kind], model, torch.device("cpu")), options)
    initialise_optimizer(step)
    return step


def trained(step, run=None, options=OPTIONS):
    batches = draw_batches(draw, options.batches, seed=3)
    inputs = {name: tensor.clone() for name, tensor in batches[0].items()}
    run = run or (lambda given: step(**given))
    loader = make_loader(batches, options.steps, options.workers, pinned=False)
    return Trainer(step, inputs, loader, options, rounding=0.0).train(lambda: run(inputs))


def as_eager(path, *nearby):
    return replace(path, nearby=nearby)


def by_hand(kind, clip=None):
    """The same training as a plain loop, with a float learning rate."""
    torch.manual_seed(0)
    model = Loss().train()
    make = OPTIMIZERS[kind]
    options = {**make.keywords, "capturable": False} if kind == "adamw" else make.keywords
    optimizer = make.func(model.parameters(), **options)
    losses = []
    for number in range(12):
        if number == 6:
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        batch = draw(torch.Generator().manual_seed(3 + number % 3))
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().double().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_step_trains_as_a_plain_loop_does(kind, clip):
    options = replace(OPTIONS, clip_norm=clip)
    trajectory = trained(make_step(kind, options), options=options)
    losses, weights = by_hand(kind, clip)
    assert trajectory.losses == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(trajectory.weights, weights, rtol=1e-4, atol=1e-6)
    assert [row.step for row in trajectory.log] == [0, 5, 10, 11]


def test_training_from_a_restored_snapshot_is_the_same():
    step = make_step()
    start = Snapshot(step)
    first = trained(step)
    start.restore()
    assert torch.equal(Snapshot(step).weights(), start.weights())
    second = trained(step)
    assert second.losses == first.losses
    assert torch.equal(second.weights, first.weights)
    start.restore(noise=1e-6)
    error = (Snapshot(step).weights() - start.weights()).abs() / start.weights().abs().clamp_min(1e-12)
    assert 0 < error.max() <= 2e-6


def forgets_the_schedule(step):
    rates = [float(rate) for rate in step.learning_rates()]

    def run(given):
        with torch.no_grad():
            for rate, first in zip(step.learning_rates(), rates, strict=True):
                rate.fill_(first)
        return step(**given)

    return run


def sees_a_stale_batch(step):
    last = {}

    def run(given):
        batch = {name: last.get(name, tensor).clone() for name, tensor in given.items()}
        last.update({name: tensor.clone() for name, tensor in given.items()})
        return step(**batch)

    return run


def skips_a_step(step):
    seen = []

    def run(given):
        seen.append(1)
        return step(**given) if len(seen) != 4 else step.model(**given).detach()

    return run


def norms_in_eval(step):
    def run(given):
        step.model.net[1].momentum = 0.0  # running statistics that never move
        return step(**given)

    return run


FAULTS = {
    "statistics": norms_in_eval,
    "schedule": forgets_the_schedule,
    "stale batch": sees_a_stale_batch,
    "skipped step": skips_a_step,
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_only_the_right_training_passes(fault):
    step = make_step()
    start = Snapshot(step)
    eager = trained(step)
    start.restore(noise=1e-7)
    nearby = trained(step)
    start.restore()
    trajectory = trained(step, FAULTS[fault](step) if fault else None)
    parity = compare_trajectories(trajectory, as_eager(eager, nearby), start, OPTIONS)
    assert parity.passed is (fault is None), parity
    assert (parity.rel_l2 == parity.statistics_rel_l2 == 0) is (fault is None)


def test_nan_never_passes():
    step = make_step()
    start = Snapshot(step)
    eager = trained(step)
    for broken in (
        replace(eager, weights=eager.weights * math.nan),
        replace(eager, losses=[math.nan, *eager.losses[1:]]),
    ):
        parity = compare_trajectories(broken, as_eager(eager, eager), start, OPTIONS)
        assert parity.passed is False
        assert encode_sections(parity=structs.asdict(parity)), "no number that a record cannot hold"
    chaotic = replace(eager, weights=eager.weights * math.nan)
    assert compare_trajectories(eager, as_eager(chaotic, eager), start, OPTIONS).passed is False


def test_chaos_widens_the_tolerance_by_the_distance_of_eager_from_itself():
    step = make_step()
    start = Snapshot(step)
    eager = trained(step)
    travelled = (eager.weights - start.weights()).norm()
    away = replace(eager, weights=eager.weights + 0.2 * travelled / len(eager.weights) ** 0.5)
    assert compare_trajectories(away, as_eager(eager, eager), start, OPTIONS).passed is False
    assert compare_trajectories(away, as_eager(eager, eager, away), start, OPTIONS).passed is True
    far = replace(eager, weights=eager.weights + 0.8 * travelled / len(eager.weights) ** 0.5)
    parity = compare_trajectories(far, as_eager(eager, far), start, OPTIONS)
    assert (parity.weights_judged, parity.passed) == (False, True), "only the losses can be compared"
    other_losses = replace(far, losses=[loss * 1.1 for loss in eager.losses])
    assert compare_trajectories(other_losses, as_eager(eager, other_losses), start, OPTIONS).passed is False


def test_a_step_that_draws_random_numbers_is_judged_by_how_much_eager_losses_differ():
    step = make_step(model=WithDropout)
    start = Snapshot(step)
    eager, *nearby, other = [(start.restore(), trained(step))[1] for _ in range(5)]
    parity = compare_trajectories(other, as_eager(eager, *nearby), start, OPTIONS)
    assert eager.is_random
    assert parity.passed, parity
    assert parity.loss_error > OPTIONS.loss_tolerance, "the losses differ by chance"
    far = replace(other, losses=[10 * loss for loss in eager.losses])
    assert compare_trajectories(far, as_eager(eager, *nearby), start, OPTIONS).passed is False
    assert trained(make_step()).is_random is False


WRONG = [
    {"steps": 1},
    {"log_every": 0},
    {"batches": 0},
    {"workers": -1},
    {"clip_norm": 0},
    {"autocast": "float64"},
    {"tolerance": -1},
    {"lr_changes": [[50, 0.1]]},
    {"lr_changes": [[5, 0]]},
    {"lr_changes": [5]},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_wrong_options(options):
    with pytest.raises(InputError, match=r"training\."):
        TrainingOptions(**options)


def test_an_optimizer_that_refuses_its_options_says_so():
    with pytest.raises(InputError, match=r"optimizer: SGD: .*optimizer\.KEY"):
        make_optimizer(partial(torch.optim.SGD, lr=0.1, momentum=-1), Loss(), torch.device("cpu"))


def test_the_timed_training_is_judged_where_eager_does_not_differ_from_itself():
    right = ParityCheck(reference="eager", passed=True, chaotic=False, loss_error=0.0)
    errors = {"rel_l2": 0.4, "tolerance": 0.05, "loss_error": 0.2, "loss_tolerance": 0.01}
    wrong = structs.replace(right, passed=False, **errors)
    chaotic = structs.replace(wrong, chaotic=True)
    assert parity_faults(right, right) == []
    assert parity_faults(right, chaotic) == []
    (fault,) = parity_faults(right, wrong)
    assert "timed" in fault
    assert "weights by 0.4 (tolerance 0.05)" in fault
    (fault,) = parity_faults(chaotic, right)
    assert "deterministic" in fault, "with deterministic algorithms chaos is no excuse"
    assert parity_faults(right, structs.replace(chaotic, loss_error=None)), "a loss is not finite"


def test_ceilings_are_measured_in_the_dtype_of_autocast():
    assert TrainingCell.computes_in("float32", options=TrainingOptions(autocast="bfloat16")) == "bfloat16"
    assert TrainingCell.computes_in("float32", options=TrainingOptions()) == "float32"
