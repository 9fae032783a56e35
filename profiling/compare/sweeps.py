"""Compares two sweeps run by run: the jobs with the same values of the swept overrides, in one table of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from profiling.compare.cells import CellComparison, compare_cells, count_compared, exit_code
from profiling.compare.command import paragraph, section_text
from profiling.compare.differences import Difference, run_differences
from profiling.compare.energy import EnergyComparison, compare_energy, energy_section
from profiling.compare.loaded_run import LoadedRun, read_run
from profiling.compare.output import cells_table, conclusion, legend, ratio_chart
from profiling.errors import InputError, command, printable
from profiling.report.format import count_of
from profiling.report.page import Section, render_page
from profiling.report.table import Column, Table
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.overrides import overrides_of, setting, swept_keys
from profiling.results.sweep import Sweep, SweepJob, is_sweep, read_sweep

#: Rows of cells that the console has room for, and a page; rows of differences.
_CONSOLE, _PAGE, _DIFFERENCES = 60, 4_000, 30
#: What a reader looks for first, where not all cells fit.
_FIRST = ("slower", "not compared", "cannot tell", "faster", "same")


@dataclass(frozen=True)
class SweepComparison:
    """Sweep B compared with sweep A, job by job; ratios within 1 ± `threshold` are the same.

    `cells` is a glob over <component>.<variant>; cells that do not match are left out.
    """

    a: Path
    b: Path
    threshold: float
    glob: str | None = None

    @cached_property
    def sweeps(self) -> tuple[Sweep, Sweep]:
        """Both sweeps.

        Raises:
            InputError: one cannot be read.

        """
        return read_sweep(self.a), read_sweep(self.b)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The overrides that differ between jobs of either sweep."""
        return swept_keys(*self.sweeps)

    @cached_property
    def cells(self) -> tuple[CellComparison, ...]:
        """The verdict on each cell of each job, in the order of A."""
        return tuple(cell for _, cells, _ in self._judged for cell in cells)

    @cached_property
    def energy(self) -> tuple[EnergyComparison, ...]:
        """The energy of each cell of each job that was compared, where both runs asked for it."""
        return tuple(each for *_, energies in self._judged for each in energies)

    @cached_property
    def differences(self) -> tuple[tuple[Difference, int], ...]:
        """What differs between the environments and options of matched runs, and in how many pairs."""
        numbers = Counter(difference for differences, *_ in self._judged for difference in differences)
        return tuple(numbers.most_common())

    @cached_property
    def matched(self) -> int:
        """How many jobs both sweeps have."""
        return sum(None not in pair for pair in self._pairs.values())

    @property
    def exit_code(self) -> int:
        """0, 1 or 2, as for two runs."""
        return exit_code(self.cells, self.threshold)

    @cached_property
    def _pairs(self) -> Mapping[tuple[tuple[str, ...], int], tuple[SweepJob | None, SweepJob | None]]:
        """The jobs of A and B by their swept values; of equal ones the first with the first."""
        found: tuple[dict[tuple[tuple[str, ...], int], SweepJob], ...] = ({}, {})
        for jobs, sweep in zip(found, self.sweeps, strict=True):
            for job in sweep.jobs:
                given = overrides_of(job)
                values, place = tuple(setting(key, given[key]) for key in self.keys if key in given), 0
                while (values, place) in jobs:
                    place += 1
                jobs[values, place] = job
        a, b = found
        return {name: (a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b))}

    @cached_property
    def compared(self) -> int:
        """How many cells of all jobs are compared."""
        return sum(count_compared(*runs) for _, runs in self._loaded() if isinstance(runs, tuple))

    @cached_property
    def _judged(
        self,
    ) -> tuple[tuple[tuple[Difference, ...], tuple[CellComparison, ...], tuple[EnergyComparison, ...]], ...]:
        # Runs are read twice, since the interval of each cell depends on how many there are, and all do not fit.
        judged = []
        for job, runs in self._loaded():
            if isinstance(runs, CellComparison):
                judged.append(((), (replace(runs, job=job),), ()))
                continue
            cells = compare_cells(*runs, self.threshold, self.compared)
            energies = compare_energy(*runs, cells, self.threshold, self.compared)
            differences = tuple(each for each in run_differences(*runs) if each.name not in self.keys)
            named = tuple(replace(cell, job=job) for cell in cells)
            judged.append((differences, named, tuple(replace(each, job=job) for each in energies)))
        return tuple(judged)

    def _loaded(self) -> Iterator[tuple[str, tuple[LoadedRun, LoadedRun] | CellComparison]]:
        """Yield for each pair its swept values and its runs, or why they cannot be compared."""
        for (values, place), (one, two) in self._pairs.items():
            job = printable(" ".join((*values, f"({place + 1})"))) if place else printable(" ".join(values))
            a, b = self._run(self.a, one), self._run(self.b, two)
            if isinstance(a, LoadedRun) and isinstance(b, LoadedRun):
                yield job, (a, b)
                continue
            reasons = [f"{name}: {run}" for name, run in (("A", a), ("B", b)) if isinstance(run, str)]
            yield job, CellComparison("–", "–", "not compared", "; ".join(reasons), unmatched=isinstance(a, LoadedRun))

    def _run(self, folder: Path, job: SweepJob | None) -> LoadedRun | str:
        if job is None:
            return "has no such job"
        try:
            if not (folder / job.folder / RESULTS_FILE).is_file():
                return f"job {job.number} is {job.state} without a record"
            return read_run(folder / job.folder, self.glob)
        except (InputError, OSError) as error:
            return str(error)


def check_both(a: Path, b: Path) -> bool:
    """Return whether both are sweeps.

    Raises:
        InputError: only one of them is.

    """
    kinds = is_sweep(a), is_sweep(b)
    if kinds[0] == kinds[1]:
        return kinds[0]
    sweep, other = (a, b) if kinds[0] else (b, a)
    jobs = read_sweep(sweep).jobs
    run = next((sweep / job.folder for job in jobs if (sweep / job.folder / RESULTS_FILE).is_file()), sweep / "0")
    words = (run, other) if kinds[0] else (other, run)
    raise InputError(
        f"{sweep} is a sweep of {count_of(len(jobs), 'run')}, and {other} is none. Name one of its runs: "
        f"{command('-m', 'profiling.compare', *words)}"
    )


def sweep_comparison_text(comparison: SweepComparison, *, as_markdown: bool) -> str:
    """Return the text: the sweeps, what differs between their runs, the verdicts, the conclusion."""
    parts = [section_text(section, as_markdown=as_markdown) for section in _sections(comparison, _CONSOLE)]
    heading = paragraph(_lines(comparison), as_markdown=as_markdown)
    return "\n\n".join(filter(None, (heading, *parts, paragraph(conclusion(comparison.cells, comparison.threshold)))))


def sweep_comparison_page(comparison: SweepComparison) -> str:
    """Return the page: the conclusion, a chart of the ratios, and the verdicts."""
    verdict = Section("verdict", "Verdict", conclusion(comparison.cells, comparison.threshold))
    title = printable(f"{comparison.b.resolve().name} compared with {comparison.a.resolve().name}")
    return render_page(title, _lines(comparison), [verdict, *_sections(comparison, _PAGE)])


def _lines(comparison: SweepComparison) -> list[str]:
    lines = [
        printable(f"{name}: {folder} · {sweep.target} · {count_of(len(sweep.jobs), 'job')} · {sweep.began}")
        for name, folder, sweep in zip("AB", (comparison.a, comparison.b), comparison.sweeps, strict=True)
    ]
    return [*lines, f"{count_of(comparison.matched, 'job')} in both, by {', '.join(comparison.keys) or 'number'}."]


def _sections(comparison: SweepComparison, most: int) -> list[Section]:
    columns = (
        Column[tuple[Difference, int]]("what", lambda row: row[0].name),
        Column[tuple[Difference, int]]("A", lambda row: row[0].a, wrap=28),
        Column[tuple[Difference, int]]("B", lambda row: row[0].b, wrap=28),
        Column[tuple[Difference, int]]("pairs", lambda row: row[1], "count"),
    )
    found = comparison.differences
    more = len(found) - _DIFFERENCES
    notes = [f"{count_of(more, 'difference')} more: compare two of the runs."] if more > 0 else []
    differences = Table("Differences in environment and options", columns, found[:_DIFFERENCES], notes, keys=1)
    cells, left = comparison.cells, ""
    if len(cells) > most:
        cells = tuple(sorted(cells, key=lambda cell: _FIRST.index(cell.verdict)))[:most]
        left = f"The first {most:,} of {len(comparison.cells):,} cells, the slower ones first."
    table = cells_table(cells)
    energy = energy_section(comparison.energy[:most], comparison.threshold, comparison.compared)
    if len(comparison.energy) > most:
        energy = replace(energy, lines=(f"The first {most:,} of {len(comparison.energy):,} cells.",))
    lines = [left] if left else []
    charts = (ratio_chart(cells, comparison.threshold),)
    return [
        Section("differences", "Differences", tables=(differences,)),
        Section("cells", "Cells", lines, legend(comparison.cells, comparison.threshold), (table,), charts),
        energy,
    ]
