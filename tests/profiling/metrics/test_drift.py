"""Drift against a network whose error after n calls is known."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.metrics.drift import Drift
from profiling.metrics.metric import Subject
from profiling.variants.variant import Step


class Adds(nn.Module):
    """Sums up what it is given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4, dtype=torch.float64))

    def reset(self):
        self.total.zero_()

    def forward(self, x):
        self.total.add_(x)
        return self.total.clone()


def subject_of(error_per_call=0.0):
    module = Adds()

    def make_inputs(generator):
        return {"x": torch.ones(4, dtype=torch.float64) + torch.rand(1, generator=generator).double()}

    component = Component(
        "adds", module, make_inputs(torch.Generator().manual_seed(0)), make_inputs, torch.device("cpu"),
        torch.float64, 1, "random",
    )  # fmt: skip

    def run():
        module.total.mul_(1 + error_per_call)
        return component.call()

    return Subject(component, Step(run), None, None, 0)


def test_a_step_that_is_eager_does_not_drift():
    (section,) = Drift(calls=20).measure(subject_of()).sections.values()
    assert section.rel_l2 == (0.0,) * 20


def test_an_error_handed_on_grows_from_call_to_call():
    section = Drift(calls=50).measure(subject_of(1e-4)).sections["drift"]
    errors = section.rel_l2
    assert errors[0] == 0.0
    assert all(later > earlier for earlier, later in itertools.pairwise(errors))
    assert section.max == section.last == errors[-1] == pytest.approx(49 / 2 * 1e-4, rel=0.05)


def test_a_variant_that_changes_the_module_in_place_drifts_from_what_it_was():
    subject, metric = subject_of(), Drift(calls=10)
    expected = metric.expected(subject.component, subject.seed)
    subject.component.module.register_forward_hook(lambda module, args, output: output * 1.5)
    errors = metric.measure(replace(subject, expected=expected)).sections["drift"].rel_l2
    assert errors == pytest.approx([0.5] * 10)


def test_a_tolerance_is_kept_or_the_cell_fails():
    assert Drift(calls=50, tolerance=1e-2).measure(subject_of(1e-4)).problem is None
    status, reason = Drift(calls=50, tolerance=1e-3).measure(subject_of(1e-4)).problem
    assert status == "failed"
    assert "in call 49" in reason


def test_an_error_that_is_not_finite_fails():
    assert Drift(calls=5).measure(subject_of(float("nan"))).problem[0] == "failed"


@pytest.mark.parametrize("options", [{"calls": 0}, {"calls": True}, {"tolerance": 0}])
def test_wrong_options(options):
    with pytest.raises(InputError):
        Drift(**options)
