"""How long a trajectory is, what of it is kept, and which outputs can be compared."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fixed_component import Net, fixed_component

from profiling.components import trajectory
from profiling.components.trajectory import ELEMENTS, SECONDS, learn, played


@pytest.mark.parametrize(
    ("wanted", "call_s", "elements", "calls"),
    [
        (64, SECONDS / 64, 1, 64),
        (64, SECONDS / 63, 1, 32),
        (64, SECONDS / 16 * 1.01, 1, 8),
        (64, 1e-3, 2, 64),  # of the input and of the output each
        (64, 1e-3, 3, 32),
        (64, 1e-3, 256, 2),
        *((wanted, 100.0, 1, min(2, wanted)) for wanted in (64, 7, 3, 2, 1)),
    ],
)
def test_a_trajectory_has_the_calls_that_there_is_time_for_and_two_at_least(
    monkeypatch, wanted, call_s, elements, calls
):
    """The first call alone tells how many: a warm call would tell it."""
    assert (SECONDS, ELEMENTS) == (10.0, 2**28)
    clock = SimpleNamespace(now=0.0)

    def forward(self, x):
        self.at += 1
        clock.now += call_s
        return x + self.at

    component = fixed_component(Net(forward, at=torch.zeros(1)), torch.zeros(elements))
    component = replace(component, warm_calls=0)
    component.place.calls = wanted
    monkeypatch.setattr(trajectory, "ELEMENTS", 256)
    monkeypatch.setattr(trajectory, "perf_counter", lambda: clock.now)
    with torch.inference_mode():
        assert learn(component).calls == component.place.calls == calls


@pytest.mark.parametrize(("wanted", "most_s", "calls"), [(5, 0.9, 2), (5, 1.0, 3), (5, 5.0, 5), (1, 0.0, 1)])
def test_a_trajectory_that_is_played_ends_when_its_time_is_over_but_not_before_the_second_call(
    monkeypatch, wanted, most_s, calls
):
    """The state after fewer calls is that of no other side."""
    component = fixed_component(Net(lambda self, x: x + self.at.add_(1), at=torch.zeros(1)), torch.zeros(4))
    component.place.calls = wanted
    with torch.inference_mode():
        learn(component)
        clock = SimpleNamespace(now=0.0)

        def perf_counter():
            clock.now += 1.0
            return clock.now

        monkeypatch.setattr(trajectory, "perf_counter", perf_counter)
        made = played(component, component.call, wanted, most_s=most_s)
    assert made.calls == calls
    assert (made.state is not None) == (calls == wanted)


def test_an_output_may_hold_empty_tensors_and_numbers_beside_a_tensor():
    """What holds nothing that can be compared is refused in tests/faults/test_parity.py."""
    for output in ((torch.zeros(0), torch.zeros(1)), {"a": 3.0, "b": torch.ones(2)}):
        component = fixed_component(Net(lambda self, x, output=output: output), torch.zeros(4))
        with torch.inference_mode():
            assert learn(component).calls > 0
