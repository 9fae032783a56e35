"""Times of calls in a row against a clock that is known."""

import pytest
import torch
from fixed_component import Net
from playing import component_of

from profiling.components.trajectory import learn
from profiling.metrics.calls import Calls, time_rows
from profiling.metrics.latency import Latency
from profiling.metrics.metric import Subject
from profiling.variants.variant import Step


def rows_of(first, each, numbers, time_limit):
    """Time rows whose calls take `each` seconds and which cost `first` once; and return the numbers that were asked."""
    asked = []

    def row(number):
        asked.append(number)
        return first + number * each

    return time_rows(row, numbers, time_limit), asked


def test_rows_beyond_the_time_limit_are_extrapolated_and_marked_but_for_one_call():
    calls, asked = rows_of(0.001, 0.01, (1, 10, 100, 1000, 10000), time_limit=2.0)
    assert [point.measured for point in calls.points] == [True, True, True, False, False]
    assert max(asked) == 100
    assert calls.seconds_per_call == pytest.approx(0.01, rel=0.01)
    assert [point.seconds for point in calls.points[:3]] == pytest.approx([0.011, 0.101, 1.001])
    assert calls.points[4].seconds == pytest.approx(100, rel=0.01)
    calls, asked = rows_of(0.0, 3.0, (1, 10), time_limit=0.5)
    assert [point.measured for point in calls.points] == [True, False]
    assert asked == [10, 1]


def subject_of(seen):
    """Return a cache with room for the calls of one trajectory, and a warm call; what calls are given is in `seen`."""

    def forward(self, x):
        self.cache[self.at] = x[0]  # raises where it is full
        self.at += 1
        return self.cache.sum(0)

    component = component_of(Net(forward, at=torch.tensor(0), cache=torch.zeros(9, 8)))
    learn(component)
    component.reset()

    def run():
        output = component.call()
        seen.append((int(component.module.at), float(component.inputs["x"].sum())))
        return output

    return Subject(component, Step(run, advance=component.advance, rewind=component.rewind), None, None, 0)


def test_no_call_of_a_row_goes_where_eager_has_not_been_and_what_others_took_is_kept(monkeypatch):
    monkeypatch.setattr("profiling.metrics.calls.RunQueueMonitor.lost_share", lambda self: 0.4)
    seen = []
    measured = Calls(calls=(1, 20)).measure(subject_of(seen)).sections["calls"]
    assert (measured.cpu_lost_share, measured.gpu_lost_share) == (0.4, None)
    assert [point.calls for point in measured.points] == [1, 20]
    assert len(seen) == 10 + 3 + 3 * 20, "ten calls predict, and each short row is timed three times"
    assert len(set(seen)) == 8, "each call of a trajectory has its state and its inputs"
    assert [at for at, _ in seen[:10]] == [2, 3, 4, 5, 6, 7, 8, 9, 2, 3]


def test_a_timed_window_is_a_whole_number_of_trajectories_on_their_inputs():
    seen = []
    limits = {"min_iterations": 20, "max_iterations": 20, "warmup_max_iterations": 11, "warmup_max_seconds": 1}
    measured = Latency(**limits).measure(subject_of(seen)).sections
    assert measured["wall_ms"].n == 24
    timed = seen[-24:]
    assert [at for at, _ in timed] == [*range(2, 10)] * 3
    assert timed[:8] == timed[8:16] == timed[16:]
    assert len(set(timed)) == 8
