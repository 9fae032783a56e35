"""The loop's clock: seconds that only go forward, and waiting for a moment."""

from __future__ import annotations

import time

#: The system wakes a sleeper late by up to this many seconds; the rest of a wait is spent looking at the clock.
LATE_WAKE = 0.002


class WallClock:
    """The host's monotonic clock."""

    def now(self) -> float:
        """Return seconds since some moment."""
        return time.perf_counter()

    def pause(self, until: float) -> None:
        """Let some of the time before `until` pass; the caller looks at the clock and asks again."""
        left = until - time.perf_counter()
        if left > LATE_WAKE:
            time.sleep(min(left - LATE_WAKE, LATE_WAKE))
