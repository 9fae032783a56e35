"""Parity against errors of known size."""

import math
from dataclasses import replace

import pytest
import torch
from fixed_component import Net
from playing import component_of, normal
from torch import nn

from profiling.components import outputs
from profiling.components.outputs import leaf_errors, on_device, relative_l2, to_host
from profiling.components.reference import eager_reference
from profiling.metrics.metric import Subject
from profiling.metrics.parity import Parity, similarity
from profiling.variants.variant import Step


@pytest.mark.parametrize(
    ("error", "tolerance", "passes"), [(0, None, True), (0.5e-4, None, True), (2e-4, None, False), (0.05, 0.06, True)]
)
def test_an_error_is_measured_as_large_as_it_is_and_a_variant_may_bring_its_own_tolerance(error, tolerance, passes):
    made = component_of(lambda x: nn.functional.gelu(x) + 0.5)
    reference = eager_reference(made)
    made.refill(0)
    before = made.inputs["x"].clone()
    step = Step(run=lambda: made.call() * (1 + error))
    measured = Parity(floor=1e-4).measure(Subject(made, step, reference, tolerance, 0))
    assert torch.equal(made.inputs["x"], before), "put back"
    assert measured.sections["parity"].rel_l2 == pytest.approx(error, rel=0.02)
    assert measured.sections["parity"].tolerance == (tolerance or pytest.approx(1e-4, rel=0.5))
    assert (measured.problem is None) is passes


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
    ones, zeros = torch.ones(4), torch.zeros(2)
    assert relative_l2({"a": ones, "b": ones * 1.5}, {"a": ones, "b": ones}) == pytest.approx(0.5), "the worst counts"
    assert (relative_l2(zeros, zeros), relative_l2(zeros + 1, zeros)) == (0.0, math.inf)
    for other in ({"a": ones}, ones[:1], ones * math.nan):
        assert relative_l2(other, ones) == math.inf, "nothing can be compared"


@pytest.mark.parametrize(("free", "where"), [(2**24, "cpu"), pytest.param(2**40, "cuda", marks=pytest.mark.gpu)])
def test_large_outputs_of_a_gpu_are_compared_there_where_it_has_room(monkeypatch, free, where):
    monkeypatch.setattr(outputs, "free_bytes", lambda device: free)
    expected = to_host(output=torch.randn(6, 1024, 1024))
    output = to_host(output=expected["output",].numbers * 1.01)
    output = {path: replace(leaf, device=torch.device("cuda")) for path, leaf in output.items()}
    devices = on_device(lambda *both: {each.device.type for each in both}, output["output",], expected["output",])
    assert devices == {where}
    (found,) = leaf_errors(output, expected)
    assert (found.error, found.local) == (pytest.approx(0.01, rel=1e-3), pytest.approx(0.01, rel=0.3))


def noisy(level):
    """Add noise of its own to an input, as a GAN's generator or a sampler does."""
    return lambda x: x + level * torch.randn(x.shape)


def iterated(gain, times=40):
    """Apply one layer many times: each time, differences grow by a factor of about `gain`, until they are bounded."""

    def forward(self, x):
        for _ in range(times):
            x = torch.sin(x @ self.weight)
        return x

    return Net(forward, weight=nn.Parameter(torch.linalg.qr(torch.randn(64, 64))[0] * gain))


def checked(module, run=lambda made: made.call, size=64, dtype=torch.float32):
    """Return what the check finds of `run(component)`, by default the eager call itself."""
    made = component_of(module, normal(4, size, dtype=dtype))
    reference = eager_reference(made)
    return Parity().measure(Subject(made, Step(run=run(made)), reference, None, 0))


@pytest.mark.parametrize(("dtype", "large"), [(torch.float32, 20_000.0), (torch.bfloat16, 8.0)])
def test_a_channel_of_small_numbers_that_is_zero_is_wrong(dtype, large):
    """Of 16 that are up to 1, beside 16 of large numbers: of the whole, it is as little as rounding errors are."""

    def forward(self, x):
        y = self.linear(x)
        return torch.cat([y[:, :16].abs() * large / 4 + large, torch.sigmoid(y[:, 16:])], 1)

    others, module = torch.arange(32) != 20, Net(forward, linear=nn.Linear(64, 32)).to(dtype)
    assert checked(module, dtype=dtype).problem is None
    (_, reason) = checked(module, lambda made: lambda: made.call() * others, dtype=dtype).problem
    assert "index 20 of dimension 1" in reason
    assert "of its own RMS" in reason


def test_a_channel_of_rounding_errors_may_be_all_different():
    def cancels(x):
        y = torch.sin(x @ x.T)
        return torch.cat([y, (y + 300.0) - 300.0 - y], 1)

    step = lambda made: lambda: cancels(made.inputs["x"].double()).float()  # noqa: E731
    assert checked(cancels, step).problem is None


def test_a_random_network_is_right_where_it_differs_by_at_most_twice_the_effect_of_its_numbers():
    def other(made):
        generator = torch.Generator().manual_seed(1)
        return lambda: made.inputs["x"] + 0.1 * torch.randn(4, 8, generator=generator)

    right = checked(noisy(0.1), other, size=8)
    assert right.problem is None
    assert right.sections["parity"].tolerance == pytest.approx(2 * right.sections["parity"].repeat_rel_l2)
    assert checked(noisy(0.1), lambda made: lambda: made.inputs["x"] * 1.5, size=8).problem is not None


def test_where_any_output_would_pass_for_a_random_one_parity_cannot_tell():
    assert checked(noisy(5.0)).problem is None, "a step that draws the numbers of eager"
    (_, reason) = checked(noisy(5.0), lambda made: lambda: made.inputs["x"] * 1.0).problem
    assert reason.startswith("parity: undecided: nondeterministic")
    assert "inductor draws its own" not in reason


def rounded(made):
    """Return a call that differs from eager in the last bit of what it is given."""
    return lambda: made.module(x=made.inputs["x"] * (1 + torch.finfo(torch.float32).eps))


def test_rounding_errors_that_a_network_amplifies_are_no_fault():
    measured = checked(iterated(3.0, 9), rounded)
    section = measured.sections["parity"]
    assert section.rel_l2 > 1e-4, "more than the least tolerance"
    assert measured.problem is None
    assert section.tolerance == pytest.approx(2 * section.rounding_rel_l2)


def test_where_rounding_errors_alone_change_everything_parity_cannot_tell():
    module = iterated(6.0)
    assert checked(module).problem is None, "eager's own numbers"
    (_, reason) = checked(module, rounded).problem
    assert reason.startswith("parity: undecided: rounding errors alone change eager's own output by relative L2 1")


@torch.no_grad()
def broken(made):
    """Return the call of a module whose weights a transform has changed."""
    made.module.weight.mul_(1.01)
    return made.call


@pytest.mark.parametrize("wrong", [broken, lambda made: lambda: made.call() * 1.001], ids=["weights", "output"])
def test_a_network_that_amplifies_nothing_excuses_nothing_also_if_it_is_the_one_that_is_broken(wrong):
    measured = checked(iterated(0.9), wrong)
    assert "undecided" not in measured.problem[1]
    assert measured.sections["parity"].tolerance == pytest.approx(1e-4)
