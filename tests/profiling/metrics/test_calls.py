"""Times of calls in a row against a clock that is known."""

from types import SimpleNamespace

import pytest
import torch

from profiling.errors import InputError
from profiling.metrics.calls import Calls, time_rows


def clock(first, each):
    """Return a row whose calls take `each` seconds and which costs `first` once; and the numbers it was asked for."""
    asked = []

    def row(number):
        asked.append(number)
        return first + number * each

    return row, asked


def test_rows_beyond_the_time_limit_are_extrapolated_and_marked():
    row, asked = clock(0.001, 0.01)
    calls = time_rows(row, (1, 10, 100, 1000, 10000), time_limit=2.0)
    points, per_call = calls.points, calls.seconds_per_call
    assert [point.measured for point in points] == [True, True, True, False, False]
    assert max(asked) == 100
    assert per_call == pytest.approx(0.01, rel=0.01)
    assert [point.seconds for point in points[:3]] == pytest.approx([0.011, 0.101, 1.001])
    assert points[4].seconds == pytest.approx(100, rel=0.01)


def test_what_others_took_of_the_rows_is_kept(monkeypatch):
    class Busy:
        def lost_share(self):
            return 0.4

    monkeypatch.setattr("profiling.metrics.calls.RunQueueMonitor", Busy)
    subject = SimpleNamespace(
        component=SimpleNamespace(device=torch.device("cpu")), step=SimpleNamespace(call=lambda: None)
    )
    measured = Calls(calls=(1, 10)).measure(subject).sections["calls"]
    assert (measured.cpu_lost_share, measured.gpu_lost_share) == (0.4, None)
    assert [point.calls for point in measured.points] == [1, 10]


def test_one_call_is_always_measured():
    row, asked = clock(0.0, 3.0)
    points = time_rows(row, (1, 10), time_limit=0.5).points
    assert [point.measured for point in points] == [True, False]
    assert asked == [10, 1]


@pytest.mark.parametrize("options", [{"calls": ()}, {"calls": (0,)}, {"calls": ("many",)}, {"time_limit": 0}])
def test_nonsense_is_refused(options):
    with pytest.raises(InputError):
        Calls(**options)
