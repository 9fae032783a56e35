"""Drift against a network whose error after n calls is known."""

import itertools
import weakref
from dataclasses import replace

import pytest
import torch
from fixed_component import Net
from playing import component_of

from profiling.components.outputs import OutputLog, difference, to_host
from profiling.components.trajectory import learn
from profiling.metrics import drift as drift_module
from profiling.metrics.drift import Drift
from profiling.metrics.metric import Subject
from profiling.variants.variant import Step


def subject_of(error_per_call=0.0):
    """Return a network that sums up what it is given, and a step of it with an error that it hands on."""

    def make_inputs(generator):
        return {"x": torch.ones(4, dtype=torch.float64) + torch.rand(1, generator=generator).double()}

    adds = Net(lambda self, x: self.total.add_(x).clone(), total=torch.zeros(4, dtype=torch.float64))
    component = component_of(adds, make_inputs, dtype=torch.float64, warm_calls=0)

    def run():
        component.module.total.mul_(1 + error_per_call)
        return component.call()

    return Subject(component, Step(run), None, None, 0)


def test_an_error_handed_on_grows_from_call_to_call_and_a_tolerance_is_kept_or_the_cell_fails():
    measured = Drift(calls=50, tolerance=1e-2).measure(subject_of(1e-4))
    errors = measured.sections["drift"].rel_l2
    assert errors[0] == 0.0
    assert all(later > earlier for earlier, later in itertools.pairwise(errors))
    assert measured.sections["drift"].max == errors[-1] == pytest.approx(49 / 2 * 1e-4, rel=0.05)
    assert measured.problem is None
    status, reason = Drift(calls=50, tolerance=1e-3).measure(subject_of(1e-4)).problem
    assert status == "failed"
    assert "in call 49" in reason
    assert Drift(calls=5).measure(subject_of(float("nan"))).problem[0] == "failed"


def test_a_variant_that_changes_the_module_in_place_drifts_from_what_it_was():
    subject, metric = subject_of(), Drift(calls=10)
    learn(subject.component)  # as a cell does: from then on only what calls change is put back
    expected = metric.expected(subject.component, subject.seed)
    subject.component.module.register_forward_hook(lambda module, args, output: output * 1.5)
    errors = metric.measure(replace(subject, expected=expected)).sections["drift"].rel_l2
    assert errors == pytest.approx([0.5] * 10)


@pytest.mark.parametrize("in_memory", [0, 2**28])
def test_outputs_of_many_calls_that_are_kept_on_the_disk_or_in_memory_are_what_was_put_in(in_memory, monkeypatch):
    monkeypatch.setattr("profiling.components.outputs.IN_MEMORY", in_memory)
    kept, dtypes = OutputLog(), (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.int64)
    calls = [
        {"a": [torch.randn(2, 3).to(dtype) for dtype in dtypes], "text": "t", "none": None, "n": 0.5 * call}
        for call in range(3)
    ] + [{"empty": torch.empty(0, 4), "half": torch.randn(4, 6)[:, ::2]}]
    for each in calls:
        kept.append(to_host(output=each))
    pairs = zip(kept, (to_host(output=each) for each in calls), strict=True)
    assert [difference(*pair).error for pair in pairs] == [0.0] * 4
    assert len(list(kept)) == len(kept) == 4, "it can be read again"


def test_drift_compares_each_output_before_it_makes_the_next_one():
    subject, alive, most = subject_of(), weakref.WeakSet(), []
    to_host_of = drift_module.to_host

    def run():
        most.append(sum(1 for _ in alive))
        return subject.component.call()

    def watched(**trees):
        outputs = to_host_of(**trees)
        alive.update(leaf.numbers for leaf in outputs.values() if leaf.numbers is not None)
        return outputs

    metric = Drift(calls=20)
    expected = metric.expected(subject.component, subject.seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift_module, "to_host", watched)
        measured = metric.measure(replace(subject, expected=expected, step=Step(run)))
    assert measured.sections["drift"].rel_l2 == (0.0,) * 20
    assert max(most) <= 2
