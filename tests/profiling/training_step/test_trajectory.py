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
from profiling.training_step.cell import deterministic_algorithms
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import Snapshot, TrainingStep
from profiling.training_step.trajectory import Trainer, compare_trajectories, parity_faults

OPTIONS = TrainingOptions(steps=12, batches=3, workers=0, lr_changes=[[6, 0.1]])
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3, fused=True)
ADAMW = partial(torch.optim.AdamW, lr=0.01, capturable=True)


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


def make_step(optimizer=SGD, options=OPTIONS, model=Loss):
    torch.manual_seed(0)
    return TrainingStep(model(), optimizer, options).train()


def trained(step, run=None, options=OPTIONS):
    batches = [draw(torch.Generator().manual_seed(3 + number)) for number in range(options.batches)]
    inputs = {name: tensor.clone() for name, tensor in batches[0].items()}
    run = run or (lambda given: step(**given))
    return Trainer(step, inputs, batches, options, rounding=0.0).train(lambda: run(inputs))


def compared(path, eager, start, *nearby):
    """Return the check of a trajectory; `nearby` are eager's own from weights perturbed by a rounding error."""
    return compare_trajectories(path, replace(eager, nearby=nearby), start, OPTIONS)


@pytest.mark.parametrize(("make", "clip"), [(SGD, 0.05), (ADAMW, None)], ids=["clipped SGD", "AdamW"])
def test_the_step_trains_as_a_plain_loop_does(make, clip):
    """One written by hand, with a float learning rate."""
    options = replace(OPTIONS, clip_norm=clip)
    trajectory = trained(make_step(make, options), options=options)
    torch.manual_seed(0)
    model, losses = Loss().train(), []
    options = {key: value for key, value in make.keywords.items() if key != "capturable"}
    optimizer = make.func(model.parameters(), **options)
    for number in range(12):
        if number == 6:
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        optimizer.zero_grad()
        loss = model(**draw(torch.Generator().manual_seed(3 + number % 3)))
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    assert trajectory.losses == pytest.approx(losses, rel=1e-5)
    weights = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    torch.testing.assert_close(trajectory.end["weights"], weights, rtol=1e-4, atol=1e-6)
    assert [row.step for row in trajectory.log] == [0, 10, 11]


def forgets_the_schedule(step, given, kept):
    with torch.no_grad():
        for rate in step.learning_rates():
            rate.fill_(kept.setdefault("rate", float(rate)))
    return step(**given)


def sees_a_stale_batch(step, given, kept):
    batch = {name: kept.get(name, tensor).clone() for name, tensor in given.items()}
    kept.update({name: tensor.clone() for name, tensor in given.items()})
    return step(**batch)


def norms_in_eval(step, given, kept):
    step.model.net[1].momentum = 0.0  # running statistics that never move
    return step(**given)


@pytest.mark.parametrize("fault", [None, norms_in_eval, forgets_the_schedule, sees_a_stale_batch])
def test_only_the_right_training_passes(fault):
    step = make_step()
    start = Snapshot(step)
    eager = trained(step)
    start.restore(noise=1e-7)
    weights = start.vectors()["weights"]
    error = (Snapshot(step).vectors()["weights"] - weights).abs() / weights.abs().clamp_min(1e-12)
    assert 0 < error.max() <= 2e-7
    nearby = trained(step)
    start.restore()
    kept = {}
    path = trained(step, fault and (lambda given: fault(step, given, kept)))
    parity = compared(path, eager, start, nearby)
    assert parity.passed is (fault is None), parity
    assert (parity.rel_l2 == parity.statistics_rel_l2 == 0) is (fault is None)


def test_nan_never_passes_and_chaos_widens_the_tolerance_by_the_distance_of_eager_from_itself():
    step = make_step()
    start = Snapshot(step)
    eager = trained(step)
    weights = eager.end["weights"]

    def ending(with_weights):
        return replace(eager, end={**eager.end, "weights": with_weights})

    chaotic = ending(weights * math.nan)
    for broken in (chaotic, replace(eager, losses=[math.nan, *eager.losses[1:]])):
        parity = compared(broken, eager, start, eager)
        assert parity.passed is False
        assert encode_sections(parity=structs.asdict(parity)), "no number that a record cannot hold"
    assert compared(eager, chaotic, start, eager).passed is False
    travelled = (weights - start.vectors()["weights"]).norm()
    away, far = (ending(weights + share * travelled / len(weights) ** 0.5) for share in (0.2, 0.8))
    assert compared(away, eager, start, eager).passed is False
    assert compared(away, eager, start, eager, away).passed is True
    parity = compared(far, eager, start, far)
    assert (parity.weights_judged, parity.passed) == (False, True), "only the losses can be compared"
    other_losses = replace(far, losses=[loss * 1.1 for loss in eager.losses])
    assert compared(other_losses, eager, start, other_losses).passed is False


def test_a_step_that_draws_random_numbers_is_judged_by_how_much_eager_losses_differ():
    step = make_step(model=WithDropout)
    start = Snapshot(step)
    eager, *nearby, other = [(start.restore(), trained(step))[1] for _ in range(5)]
    parity = compared(other, eager, start, *nearby)
    assert eager.is_random
    assert parity.passed, parity
    assert parity.loss_error > OPTIONS.loss_tolerance, "the losses differ by chance"
    far = replace(other, losses=[10 * loss for loss in eager.losses])
    assert compared(far, eager, start, *nearby).passed is False
    assert trained(make_step()).is_random is False


def test_an_optimizer_that_cannot_be_used_says_so():
    with pytest.raises(InputError, match=r"optimizer: SGD: .*optimizer\.KEY"):
        make_step(partial(torch.optim.SGD, lr=0.1, momentum=-1))
    with pytest.raises(InputError, match=r"optimizer: .*'mu_product' is unknown\. Use SGD"):
        make_step(partial(torch.optim.NAdam, lr=0.1))


def test_deterministic_algorithms_leave_uninitialised_memory_alone_and_end_with_the_block():
    """Filled with NaN it would fail a kernel that masks what it reads there, and be another program than is timed."""
    with deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.empty(4096).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


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
