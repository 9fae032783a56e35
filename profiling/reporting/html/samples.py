"""The samples themselves: what a record and a series of frames keep, and which of them stand out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiling.reporting.facts import items_at
from profiling.reporting.html.material import Material
from profiling.results.records import Record
from profiling.results.stats import OUTLIER_MADS


@dataclass(frozen=True)
class Sampled:
    """A record and its samples, float64 [n] in milliseconds, all finite, in the order in which they were taken."""

    record: Record
    values: NDArray[np.float64]

    def flagged(self) -> NDArray[np.intp]:
        """Return the places of the samples that the record counts as outliers; none was removed."""
        distance = np.abs(self.values - np.median(self.values))
        return np.flatnonzero(distance > OUTLIER_MADS * np.median(distance))


def call_samples(material: Material) -> tuple[Sampled, ...]:
    """Return the wall times of calls of each record that keeps them."""
    found = []
    for record in material.timed:
        kept = [value for value in items_at(record.metrics, "wall_ms", "samples") if isinstance(value, int | float)]
        values = np.array(kept, dtype=np.float64)
        values = values[np.isfinite(values)]
        if values.size:
            found.append(Sampled(record, values))
    return tuple(found)


def frame_samples(material: Material) -> tuple[Sampled, ...]:
    """Return the times of the frames of each loop that left them."""
    return tuple(Sampled(record, frames[np.isfinite(frames)]) for record, frames in material.loops[0])
