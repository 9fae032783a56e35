"""Which entries of a module's state count as unchanged."""

import math

import pytest

from profiling.components.snapshot import same

NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (NAN, math.nan * 2, True),
        (NAN, 5.0, False),
        (5.0, NAN, False),
        ((NAN, 1), (5.0, 1), False),
        (1, True, False),
        (0.5, 0.5, True),
    ],
)
def test_same(one, other, equal):
    assert same(one, other) is equal
