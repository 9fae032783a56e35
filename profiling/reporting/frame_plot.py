"""Frame time over frames, a panel a variant: the deadline, the ramp, and each slow frame with its causes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.reporting.facts import at, is_right, number_at
from profiling.reporting.figure import blank_figure, plain
from profiling.reporting.frame_series import Frames
from profiling.reporting.realtime_frames import kind_of, slow_frames
from profiling.results.records import Record

FRAMES_FILE = "frames.svg"

#: Points of all panels together, a few dozen bytes each: the file stays below 1 MiB.
_POINTS = 16_000
_MARKERS = "o^sDvPX<>*"
#: A frame so many times the usual one makes all others a flat line on a linear axis.
_FAR = 20


def plot_frames(loops: Sequence[Frames], path: Path) -> bool:
    """Write the plot; False where there are no frames to plot. Loops that are not right are marked as such.

    Raises:
        MissingExtraError: matplotlib is not installed.

    """
    if not loops:
        return False
    figure, panels = blank_figure(len(loops), 1, width=9, height=2.6)
    causes = dict.fromkeys(kind_of(c) for record, _ in loops for _, _, found in slow_frames(record) for c in found)
    looks = {cause: (f"C{1 + i % 9}", _MARKERS[i % len(_MARKERS)]) for i, cause in enumerate(causes)}
    for (record, frames), panel in zip(loops, panels, strict=True):
        _panel(panel, record, frames, most=_POINTS // len(loops))
        _slow(panel, record, looks, frames.size)
        panel.set(title=plain(_title(record)), xlabel="frame", ylabel="frame ms")
        panel.grid(visible=True, which="major", alpha=0.3)
    by_label: dict[str, Any] = {}
    for panel in panels:
        by_label |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(by_label.values(), by_label, loc="outside lower center", ncols=min(4, len(by_label)))
    figure.savefig(path, metadata={"Date": None})
    return True


def envelope(values: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """Return which of `values` [n] to draw, at most `most`: the lowest and the highest of each stretch, in order.

    Values that are not finite are left out.
    """
    places = np.flatnonzero(np.isfinite(values))
    if places.size <= most:
        return places
    stretches = np.array_split(places, max(1, most // 2))
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in stretches]
    return np.unique(np.array(ends))


def _panel(panel: Any, record: Record, frames: NDArray[np.float64], *, most: int) -> None:
    places = envelope(frames, most)
    panel.plot(places, frames[places], color="C0", linewidth=0.6, label="frame time")
    target = number_at(record.realtime, "target_fps")
    if target:
        panel.axhline(1000 / target, color="black", linestyle="--", linewidth=1, label=f"deadline at {target:g} FPS")
    settled = at(record.realtime, "steady", "settled") is not False
    end = number_at(record.realtime, "steady", "from_frame") if settled else frames.size
    if end:
        panel.axvspan(0, end, color="grey", alpha=0.2, linewidth=0, label="before it settled")
    usual = float(np.median(frames[places]))
    if frames[places].max() > _FAR * usual > 0 and frames[places].min() > 0:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)


def _slow(panel: Any, record: Record, looks: dict[str, tuple[str, str]], size: int) -> None:
    """Mark each slow frame once for each of its causes; hollow, so that one does not hide another."""
    drawn = [slow for slow in slow_frames(record) if 0 <= slow[0] < size]
    for cause, (colour, marker) in looks.items():
        found = [(frame, ms) for frame, ms, causes in drawn if cause in map(kind_of, causes)]
        if found:
            places, times = zip(*found, strict=True)
            style = {"linestyle": "none", "marker": marker, "fillstyle": "none", "markersize": 6}
            panel.plot(places, times, color=colour, label=plain(cause), **style)


def _title(record: Record) -> str:
    title = f"{record.component}.{record.variant}"
    if not is_right(record):
        title += f" ({'parity failed' if record.status == 'ok' else record.status}: its times do not count)"
    count, marked = number_at(record.realtime, "slow", "count"), len(slow_frames(record))
    return f"{title}, the {marked} slowest of {count:.0f} slow frames marked" if count and count > marked else title
