"""The section `energy` of a record: joules of a call and of a frame, from windows of the driver's energy counter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from profiling.results.field import Duration, Section, about
from profiling.results.measured import Interval

#: Where other processes used the GPU for more than this share of the time (0 to 1), their energy is in the numbers.
OTHERS_SHARE = 0.02


class EnergyWindow(Section, frozen=True, kw_only=True):
    """One window between two steps of the counter, in which calls (of a loop: frames) followed each other."""

    seconds: Annotated[Duration, about("length of the window", "s")]
    calls: Annotated[float, about("calls in the window; of one that reaches beyond it, the fraction inside")]
    joules: Annotated[Duration, about("energy of the GPU in the window", "J")]


class Energy(Section, frozen=True, kw_only=True):
    """Energy of the GPU, by the driver's counter: of calls one after the other, or over the frames of a loop.

    A call is a pass through the pipeline where the cell is a loop. It covers the whole GPU with its memory, and not the
    host. Above idle: without the power that the GPU took before, while this process did nothing.
    """

    reason: Annotated[str | None, about("why the energy is not known")] = None
    step_ms: Annotated[
        float | None, about("measured time between two steps of the counter", "ms", "counter steps every")
    ] = None
    idle_w: Annotated[float | None, about("mean power before, while nothing ran on the GPU", "W", "idle")] = None
    watts: Annotated[float | None, about("mean power over all windows", "W", "power")] = None
    joules_per_call: Annotated[float | None, about("energy of all windows over their calls", "J/call")] = None
    joules_per_call_ci95: Annotated[Interval | None, about("95% interval; absent below six windows", "J/call")] = None
    above_idle_per_call: Annotated[float | None, about("the same without the idle power", "J/call")] = None
    joules_per_frame: Annotated[float | None, about("joules_per_call over the frames of a call", "J/frame", "")] = None
    above_idle_per_frame: Annotated[
        float | None, about("above_idle_per_call over the frames of a call", "J/frame", "above idle")
    ] = None
    windows: Annotated[tuple[EnergyWindow, ...], about("the windows in their order, one beginning where one ends")] = ()

    @property
    def totals(self) -> tuple[list[float], list[float]]:
        """(Joules of each window, its calls)."""
        return [each.joules for each in self.windows], [each.calls for each in self.windows]

    @property
    def joules_per_frame_ci95(self) -> Interval | None:
        """The 95% interval of `joules_per_frame`."""
        return self._of_a_frame(self.joules_per_call_ci95)

    @property
    def above_idle_per_frame_ci95(self) -> Interval | None:
        """The 95% interval of `above_idle_per_frame` over the windows in joules; the idle power is taken as exact."""
        from profiling.results.judge import total_ratio  # numpy, which readers of records do not need

        if self.idle_w is None or not self.windows:
            return None
        above = [each.joules - self.idle_w * each.seconds for each in self.windows]
        calls = [each.calls for each in self.windows]
        return self._of_a_frame(total_ratio(above, calls)[1]) if min(above) > 0 and min(calls) > 0 else None

    def _of_a_frame(self, of_a_call: Interval | None) -> Interval | None:
        if of_a_call is None or not self.joules_per_frame or not self.joules_per_call:
            return None
        calls = self.joules_per_frame / self.joules_per_call
        return of_a_call[0] * calls, of_a_call[1] * calls


def others_reason(share: float | None) -> str | None:
    """Return why energy is not known where other processes took this share of the GPU; None: they took too little."""
    if share is None or share <= OTHERS_SHARE:
        return None
    return f"other processes used the GPU for {share:.0%} of the time, and the driver counts their energy too"


def energy_section(
    windows: Sequence[EnergyWindow],
    *,
    frames_per_call: int = 1,
    idle_w: float | None = None,
    step_ms: float | None = None,
) -> Energy:
    """Return the section for these windows. Raises ValueError if they hold no part of a call, or no energy."""
    from profiling.results.judge import total_ratio  # numpy, which readers of records do not need

    seconds = sum(each.seconds for each in windows)
    joules, calls = [each.joules for each in windows], [each.calls for each in windows]
    per_call, interval = total_ratio(joules, calls)
    above = None if idle_w is None else per_call - idle_w * seconds / sum(calls)
    return Energy(
        step_ms=step_ms,
        idle_w=idle_w,
        watts=sum(joules) / seconds,
        joules_per_call=per_call,
        joules_per_call_ci95=interval,
        above_idle_per_call=above,
        joules_per_frame=per_call / frames_per_call if frames_per_call else None,
        above_idle_per_frame=None if above is None or not frames_per_call else above / frames_per_call,
        windows=tuple(windows),
    )
