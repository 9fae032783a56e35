"""What `slowdown.py` says of its pairs: each as `profiling.compare` judges it, and all of them against the bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from profiling.comparison.judgement import PASSED, SLOWER, Judged, exit_code, judge
from profiling.comparison.side import Side, read_side
from profiling.reporting.facts import number_at
from profiling.reporting.format import ABSENT, count_of

LINKS, SLOWER_LINKS, THRESHOLD = 100, 103, 0.02
CANNOT_TELL = "can't tell"
PLANTED = SLOWER_LINKS / LINKS
Kind = Literal["A/A", "slowdown"]
HEADERS = ("pair", "A p50 ms", "B / A", "interval", "device B / A", "verdict", "exit code", "wrong", "why")


@dataclass(frozen=True)
class Pair:
    """One name in two runs. Ratios are B / A; what a clock did not say is None."""

    kind: Kind
    judged: Judged
    code: int
    device_ratio: float | None = None
    host_share: float | None = None  # host time over device time of a call of A

    @property
    def false_alarm(self) -> bool:
        return self.kind == "A/A" and self.judged.verdict in ("slower", "faster")

    @property
    def found(self) -> bool:
        return self.kind == "slowdown" and self.judged.verdict == "slower" and self.code == SLOWER


def pair_of(kind: Kind, a: Path, b: Path, name: str, variant: str) -> Pair:
    """Judge one name as `profiling.compare A B --cells NAME.VARIANT` does.

    Raises:
        InputError: a run without the cell.

    """
    before, after = (read_side(folder, f"{name}.{variant}") for folder in (a, b))
    cells = judge(before, after, THRESHOLD)
    one, two = (_clock(side, "device_ms") for side in (before, after))
    host = _clock(before, "host_ms")
    ratio = None if one is None or two is None else two / one
    return Pair(kind, cells[0], exit_code(cells, THRESHOLD), ratio, None if one is None or host is None else host / one)


def _clock(side: Side, clock: str) -> float | None:
    (record,) = side.records.values()
    return number_at(record.metrics, clock, "p50")


def row(number: int, pair: Pair) -> tuple[str, ...]:
    """Return the pair's row of the table; `number` counts those of its kind."""
    judged = pair.judged
    interval = judged.interval
    missed = pair.kind == "slowdown" and not pair.found
    return (
        f"{pair.kind} {number}",
        ABSENT if judged.a_ms is None else f"{judged.a_ms:.4g}",
        ABSENT if judged.ratio is None else f"{judged.ratio:.4f}",
        ABSENT if interval is None else f"[{interval[0]:.4f}, {interval[1]:.4f}]",
        ABSENT if pair.device_ratio is None else f"{pair.device_ratio:.4f}",
        judged.verdict,
        str(pair.code),
        "false alarm" if pair.false_alarm else "missed" if missed else "",
        judged.reason if interval is None else "",
    )


def untold(pairs: Sequence[Pair]) -> str:
    """Return how many pairs of each kind could not be told: no bar holds it, for noise alone is no fault."""
    kinds = [[pair for pair in pairs if pair.kind == kind] for kind in ("A/A", "slowdown")]
    counts = [
        f"{sum(pair.judged.verdict == CANNOT_TELL for pair in kind)} of {count_of(len(kind), name)}"
        for kind, name in zip(kinds, ("A/A pair", "slowdown"), strict=True)
        if kind
    ]
    return f"{CANNOT_TELL}: {', '.join(counts)}"


def bars(pairs: Sequence[Pair]) -> list[tuple[str, str, str, bool]]:
    """Return (what, bar, measured, reached), for the kinds of pairs and the clocks that there are."""
    same, slow = ([pair for pair in pairs if pair.kind == kind] for kind in ("A/A", "slowdown"))
    compared = sum(pair.judged.interval is not None for pair in pairs)
    rows = [("pairs that could be compared", str(len(pairs)), str(compared), compared == len(pairs))]
    if same:
        alarms, most = sum(pair.false_alarm for pair in same), max(1, len(same) // 20)
        rows.append((f"false alarms in {len(same)} A/A pairs", f"<= {most}", str(alarms), alarms <= most))
        red = sum(pair.code != PASSED for pair in same)
        rows.append((f"exit codes other than 0 in {len(same)} A/A pairs", f"<= {most}", str(red), red <= most))
    if slow:
        found, least = sum(pair.found for pair in slow), math.ceil(0.9 * len(slow))
        what = f"slowdowns of {PLANTED - 1:.0%} found, of {len(slow)}"
        rows.append((what, f">= {least}", str(found), found >= least))
    if ratios := [pair.device_ratio for pair in slow if pair.device_ratio is not None]:
        middle, low, high = statistics.median(ratios), PLANTED - 0.005, PLANTED + 0.005
        what = "what was planted, by the device's clock: median B / A"
        rows.append((what, f"{low:.3f} to {high:.3f}", f"{middle:.4f}", low <= middle <= high))
    if shares := [pair.host_share for pair in pairs if pair.host_share is not None]:
        what = "host over device time of a call (the device sets the time), at most"
        rows.append((what, "< 0.9", f"{max(shares):.2f}", max(shares) < 0.9))
    return rows
