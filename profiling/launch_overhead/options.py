"""Options of the calibration, checked before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from profiling.errors import InputError, check_whole

#: Most calls in one sample. A stream queues about 1000 kernels before a launch waits for the device (measured in
#: https://forums.developer.nvidia.com/t/68937), and a linear may launch two: a split product and its reduction.
MOST_CALLS = 480


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """Sizes of the operators, numbers of calls, and the number of rounds.

    - `elements` of the elementwise operator and `widths` of a square linear over `rows` rows, ascending; None: sizes
      that suit the device, from a negligible operator to one that takes longer than its launch. A launch is measured at
      the smallest size, so that has to be negligible.
    - `counts`: numbers of calls in a sample; a cost is the slope of the time over them.
    - `rounds`: how often everything is measured.

    Raises:
        InputError: a list that is too short or does not ascend, or a number out of range.

    """

    elements: Sequence[int] | None = None
    widths: Sequence[int] | None = None
    rows: int = 1
    counts: Sequence[int] = (1, 50, 100, 200, 400)
    rounds: int = 15

    def __post_init__(self) -> None:
        """Check every value; lists become tuples."""
        # Three counts: any two points lie on a line. Two sizes: a crossing lies between two.
        for name, shortest, most in (("elements", 2, 2**30), ("widths", 2, 2**15), ("counts", 3, MOST_CALLS)):
            value = getattr(self, name)
            if value is not None or name == "counts":
                object.__setattr__(self, name, _ascending(name, value, shortest, most))
        check_whole("rows", self.rows, 1, 2**16)
        check_whole("rounds", self.rounds, 3, 1000)  # fewer have no interval


def _ascending(name: str, value: object, shortest: int, most: int) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) < shortest:
        raise InputError(f"{name}={value!r}: a list of at least {shortest} whole numbers.")
    for item in value:
        check_whole(name, item, 1, most)
    if any(low >= high for low, high in pairwise(value)):
        raise InputError(f"{name}={list(value)}: each number larger than the one before it.")
    return tuple(value)
