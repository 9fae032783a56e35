"""Compares the energy of a frame in two runs: B takes less, more or the same, or the windows cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from profiling.compare.cells import CellComparison, confidence_level, verdict_on
from profiling.compare.loaded_run import LoadedRun
from profiling.report.energy import joules_per_frame
from profiling.report.format import Value, estimate
from profiling.report.page import Section
from profiling.report.table import Column, Table
from profiling.results.energy import Energy
from profiling.results.stats import ratio_of_totals

EnergyVerdict = Literal["less", "more", "same", "cannot tell"]
#: A difference of the energy up to this share is the same, whatever the threshold for times: temperature, and two GPUs
#: of one model, change the power of equal code by some percent.
LEAST_SHARE = 0.05
_VERDICTS: dict[str, EnergyVerdict] = {"faster": "less", "slower": "more", "same": "same"}


@dataclass(frozen=True)
class EnergyComparison:
    """The verdict on the energy of a cell in joules a frame; `ratio` is B / A, below 1 takes less."""

    component: str
    variant: str
    verdict: EnergyVerdict
    reason: str = ""
    a: Value | None = None
    b: Value | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None  # of the ratio, at the level of all cells together
    job: str = ""  # of two sweeps: the swept overrides of the runs that hold the cell


def compare_energy(
    a: LoadedRun, b: LoadedRun, cells: Sequence[CellComparison], threshold: float, compared: int | None = None
) -> tuple[EnergyComparison, ...]:
    """Compare the cells whose times were compared and whose energy either run asked for, as `compare_cells` does.

    Intervals are widened for the `compared` cells of all runs, of which these are some.
    """
    names = [cell.cell for cell in cells if cell.verdict != "not compared"]
    pairs = {name: (a.records[name], b.records[name]) for name in names}
    pairs = {name: pair for name, pair in pairs.items() if all(record.energy is not None for record in pair)}
    level = confidence_level(compared or len(pairs))
    comparisons = []
    for name, (one, two) in pairs.items():
        assert one.energy is not None
        assert two.energy is not None
        cell = EnergyComparison(*name, "cannot tell", a=joules_per_frame(one), b=joules_per_frame(two))
        comparisons.append(_judged(cell, one.energy, two.energy, threshold, level))
    return tuple(comparisons)


def _judged(cell: EnergyComparison, a: Energy, b: Energy, threshold: float, level: float) -> EnergyComparison:
    names = cell.component, cell.variant
    unknown = [f"{run}: {energy.reason}" for run, energy in (("A", a), ("B", b)) if energy.reason is not None]
    if unknown or cell.a is None or cell.b is None or not all(map(sum, (*a.totals, *b.totals))):
        return EnergyComparison(*names, "cannot tell", "; ".join(unknown) or "not measured in both", cell.a, cell.b)
    ratio, interval = ratio_of_totals(b.totals, a.totals, level=level)
    if interval is None:
        return EnergyComparison(*names, "cannot tell", "too few windows for an interval", cell.a, cell.b, ratio)
    verdict, reasons = verdict_on(ratio, *interval, max(threshold, LEAST_SHARE))
    known = _VERDICTS.get(verdict, "cannot tell")
    return EnergyComparison(*names, known, "; ".join(reasons), cell.a, cell.b, ratio, interval)


def energy_section(comparisons: Sequence[EnergyComparison], threshold: float, compared: int | None = None) -> Section:
    """Return the table of the comparisons and how to read it; false where no run asked for the energy of a cell."""
    if not comparisons:
        return Section("energy", "Energy")
    level = f"{100 * confidence_level(compared or len(comparisons)):.4g}%"
    legend = [
        f"J/frame: energy of the GPU by its counter. B / A: below 1, B takes less; its {level} interval is that of the "
        "windows of either run, and contains neither drift between the runs nor the difference of two GPUs.",
        f"less, more, same: as faster, slower and same, with 1 ± {max(LEAST_SHARE, threshold):g}. The exit code does "
        "not depend on it.",
    ]
    return Section("energy", "Energy", tables=(_table(comparisons),), legend=legend)


def _table(comparisons: Sequence[EnergyComparison]) -> Table[EnergyComparison]:
    stated = dict.fromkeys(each.reason for each in comparisons if each.reason)
    marks = {reason: f"({number})" for number, reason in enumerate(stated, 1)}
    columns = (
        Column[EnergyComparison]("job", lambda each: each.job or None, wrap=30),
        Column[EnergyComparison]("component", lambda each: each.component),
        Column[EnergyComparison]("variant", lambda each: each.variant),
        Column[EnergyComparison]("A J/frame", lambda each: each.a, "number"),
        Column[EnergyComparison]("B J/frame", lambda each: each.b, "number"),
        Column[EnergyComparison]("B / A", lambda each: estimate(each.ratio, each.interval), "number"),
        Column[EnergyComparison]("energy", lambda each: " ".join(filter(None, (each.verdict, marks.get(each.reason))))),
    )
    return Table("Energy of a frame", columns, comparisons, [f"{mark} {reason}" for reason, mark in marks.items()])
