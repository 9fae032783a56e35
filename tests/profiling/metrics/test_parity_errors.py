"""Parity against errors of known size."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from profiling.components.component import Component
from profiling.components.outputs import OutputLog, relative_l2, to_host
from profiling.components.reference import Reference, eager_reference
from profiling.components.trajectory import Played, learn
from profiling.metrics.metric import Subject
from profiling.metrics.parity import Parity, similarity
from profiling.variants.variant import Step


def component(dtype=torch.float32, kind=None):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).to(dtype)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x.to(self.inner[0].weight.dtype))

    def make(generator):
        return {"x": torch.randn(4, 8, generator=generator)}

    inputs = make(torch.Generator().manual_seed(0))
    return Component("c", Wrapped(), inputs, make, torch.device("cpu"), dtype, 1, "random", kind)


def subject(run, made, eager=None, tolerance=None):
    reference = learn(made)
    made.refill(0)
    return Subject(made, Step(run=run(made)), Reference(reference, eager or reference), tolerance, 0)


def scaled(exact, factor):
    """Return the calls of a trajectory with other numbers in the output."""
    log = OutputLog()
    for call in exact.log:
        log.append(
            {p: replace(leaf, numbers=leaf.numbers * factor) if p == ("output",) else leaf for p, leaf in call.items()}
        )
    return Played(log, exact.state)


def test_the_same_is_right_and_the_inputs_are_put_back():
    made = component()
    before = made.inputs["x"].clone()
    measured = Parity().measure(subject(lambda c: c.call, made))
    assert measured.problem is None
    assert measured.sections["parity"].rel_l2 == 0.0
    assert torch.equal(made.inputs["x"], before)


@pytest.mark.parametrize("error", [0.5e-4, 2e-4, 0.1])
def test_an_error_is_measured_as_large_as_it_is(error):
    measured = Parity(floor=1e-4).measure(subject(lambda c: lambda: c.call() * (1 + error), component()))
    assert measured.sections["parity"].rel_l2 == pytest.approx(error, rel=0.02)
    assert (measured.problem is None) == (error <= 1e-4)


def test_twice_as_far_as_eager_is_allowed_and_of_few_numbers_a_little_more():
    made = component()
    exact = learn(made)
    eager = scaled(exact, 1.01)
    most = 2 * 0.01 * (1 + 4 / math.sqrt(made.call().numel()))
    near = subject(lambda c: lambda: c.call() * (1 + 0.95 * most), component(), eager)
    far = subject(lambda c: lambda: c.call() * (1 + 1.05 * most), component(), eager)
    assert Parity().measure(near).problem is None
    assert Parity().measure(far).problem is not None


def test_a_variant_may_bring_its_own_tolerance():
    measured = Parity().measure(subject(lambda c: lambda: c.call() * 1.05, component(), tolerance=0.06))
    assert measured.problem is None
    assert measured.sections["parity"].tolerance == 0.06


def test_the_worst_output_counts():
    reference = {"a": torch.ones(4), "b": torch.ones(4)}
    outputs = {"a": torch.ones(4), "b": torch.ones(4) * 1.5}
    assert relative_l2(outputs, reference) == pytest.approx(0.5)
    assert relative_l2({"a": torch.zeros(2)}, {"a": torch.zeros(2)}) == 0.0
    assert relative_l2({"a": torch.ones(2)}, {"a": torch.zeros(2)}) == math.inf


def test_similarity_against_its_definition():
    numbers = torch.tensor([0.0, 1.0, 0.0, 1.0])
    reference, outputs = to_host(output=numbers), to_host(output=numbers + 0.1)
    assert similarity("image", outputs, reference)["psnr_db"] == pytest.approx(20.0, abs=1e-4)
    assert similarity("audio", outputs, reference)["snr_db"] == pytest.approx(10 * math.log10(0.5 / 0.01), abs=1e-4)
    assert similarity(None, outputs, reference) == similarity("audio", outputs, reference)
    assert similarity("image", reference, reference) == {"cosine": pytest.approx(1.0)}, "no noise, no ratio"
    cosine = (0.1 * 0 + 1 * 1.1) * 2 / (math.sqrt(2) * math.sqrt(2 * (0.01 + 1.21)))
    assert similarity("image", outputs, reference)["cosine"] == pytest.approx(cosine)
    assert similarity(None, to_host(output=torch.arange(4)), to_host(output=torch.arange(4))) == {}, "may be indices"


class Noisy(nn.Module):
    """Adds noise of its own to its input, as a GAN's generator or a sampler does."""

    def __init__(self, level):
        super().__init__()
        self.level = level

    def forward(self, x):
        return x + self.level * torch.randn(x.shape)


class Iterated(nn.Module):
    """Applies one layer many times: each time, differences grow by a factor of about `gain`, until they are bounded."""

    def __init__(self, gain, times=40):
        super().__init__()
        self.times = times
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(64, 64))[0] * gain)

    def forward(self, x):
        for _ in range(self.times):
            x = torch.sin(x @ self.weight)
        return x


def checked(module, run=None, size=8):
    """Return what the check finds of `run(component)`, by default the eager call itself."""

    def make(generator):
        return {"x": torch.randn(4, size, generator=generator)}

    made = Component("c", module, make(torch.Generator()), make, torch.device("cpu"), torch.float32, 1, "random")
    reference = eager_reference(made)
    step = Step(run=made.call if run is None else run(made))
    return Parity().measure(Subject(made, step, reference, None, 0))


@pytest.mark.parametrize("level", [0.1, 5.0])
def test_a_random_network_is_right_where_it_draws_the_numbers_of_eager(level):
    assert checked(Noisy(level)).problem is None


def test_a_random_network_that_draws_other_numbers_may_differ_by_twice_their_effect():
    def other(made):
        generator = torch.Generator().manual_seed(1)
        return lambda: made.inputs["x"] + 0.1 * torch.randn(4, 8, generator=generator)

    right = checked(Noisy(0.1), other)
    assert right.problem is None
    assert right.sections["parity"].tolerance == pytest.approx(2 * right.sections["parity"].repeat_rel_l2)
    assert checked(Noisy(0.1), lambda made: lambda: made.inputs["x"] * 1.5).problem is not None


def test_where_any_output_would_pass_for_a_random_one_parity_cannot_tell():
    (_, reason) = checked(Noisy(5.0), lambda made: lambda: made.inputs["x"] * 1.0).problem
    assert reason.startswith("parity: cannot tell: nondeterministic")
    assert "inductor draws its own" not in reason


def rounded(made):
    """Return a call that differs from eager in the last bit of what it is given."""
    return lambda: made.module(made.inputs["x"] * (1 + torch.finfo(torch.float32).eps))


def test_rounding_errors_that_a_network_amplifies_are_no_fault():
    measured = checked(Iterated(3.0, 9), rounded, size=64)
    section = measured.sections["parity"]
    assert section.rel_l2 > 1e-4, "more than the least tolerance"
    assert measured.problem is None
    assert section.tolerance == pytest.approx(2 * section.rounding_rel_l2)


def test_where_rounding_errors_alone_change_everything_parity_cannot_tell():
    module = Iterated(6.0)
    assert checked(module, size=64).problem is None, "eager's own numbers"
    (_, reason) = checked(module, rounded, size=64).problem
    assert reason.startswith("parity: cannot tell: rounding errors alone change eager's own output by relative L2 1")


def test_a_network_that_amplifies_nothing_excuses_nothing():
    measured = checked(Iterated(0.9), lambda made: lambda: made.call() * 1.001, size=64)
    assert measured.problem is not None
    assert measured.sections["parity"].tolerance == pytest.approx(1e-4)


def test_a_module_that_a_transform_broke_is_not_its_own_excuse():
    def broken(made):
        with torch.no_grad():
            made.module.weight.mul_(1.01)
        return made.call

    measured = checked(Iterated(0.9), broken, size=64)
    assert measured.problem is not None
    assert "cannot tell" not in measured.problem[1]
