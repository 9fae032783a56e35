"""Shows a comparison: the same tables in the console, in Markdown and on a page, which has a chart of the ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from profiling.compare.cells import (
    PASSED,
    SLOWER,
    CellComparison,
    Verdict,
    compare_cells,
    confidence_level,
    exit_code,
    undecided,
)
from profiling.compare.command import paragraph, section_text
from profiling.compare.differences import CellChanges, Difference, cell_changes, run_differences, unknown_differences
from profiling.compare.energy import EnergyComparison, compare_energy, energy_section
from profiling.compare.loaded_run import LoadedRun
from profiling.errors import LONGEST_COMMAND, printable
from profiling.report import charts
from profiling.report.format import count_of, estimate, show
from profiling.report.page import Section, render_page
from profiling.report.table import Column, Table

EXIT_CODES = "exit code: 0 no cell is slower beyond the threshold, 1 a cell is, 2 cannot tell for some cells"

#: Colour and symbol of each verdict: triangles point to faster (left) and slower (right).
_MARKERS = {
    "faster": ("#0284c7", "triangle-left"),
    "same": (charts.GREY, "circle"),
    "slower": (charts.RED, "triangle-right"),
    "cannot tell": ("#e08700", "diamond"),
}
#: Cells that one view has room for, and characters of a name beside it.
_MOST_CELLS, _LONGEST_NAME = 20, 40
#: Views of the chart.
_MOST_VIEWS = 120
#: The x axis shows at least this many times the threshold to either side of 1.
_AXIS_MARGIN = 1.5
#: Characters of a value before the console breaks it.
_WRAP = 28


@dataclass(frozen=True)
class Comparison:
    """Run B compared with run A; ratios within 1 ± `threshold` are the same."""

    a: LoadedRun
    b: LoadedRun
    threshold: float

    @cached_property
    def cells(self) -> tuple[CellComparison, ...]:
        """The verdict on each cell."""
        return compare_cells(self.a, self.b, self.threshold)

    @cached_property
    def energy(self) -> tuple[EnergyComparison, ...]:
        """The energy of each cell that was compared, where both runs asked for it."""
        return compare_energy(self.a, self.b, self.cells, self.threshold)

    @cached_property
    def changes(self) -> tuple[CellChanges, ...]:
        """What changed inside each cell that was compared."""
        compared = [cell.cell for cell in self.cells if cell.verdict != "not compared"]
        return tuple(cell_changes(self.a.records[cell], self.b.records[cell]) for cell in compared)

    @property
    def exit_code(self) -> int:
        """0, 1 or 2, as `EXIT_CODES` says."""
        return exit_code(self.cells, self.threshold)

    @property
    def runs(self) -> tuple[tuple[str, LoadedRun], tuple[str, LoadedRun]]:
        """Each run with its letter."""
        return ("A", self.a), ("B", self.b)


def comparison_text(comparison: Comparison, *, as_markdown: bool) -> str:
    """Return the text: the runs, what differs between them, the cells, what changed in them, the conclusion."""
    sections = [section for section in _sections(comparison) if section.depth == "console"]
    parts = [section_text(section, as_markdown=as_markdown) for section in sections]
    heading = paragraph(_run_lines(comparison), as_markdown=as_markdown)
    return "\n\n".join(filter(None, (heading, *parts, paragraph(conclusion(comparison.cells, comparison.threshold)))))


def comparison_page(comparison: Comparison) -> str:
    """Return the page: the text with the conclusion first, a chart, and the commands of the runs."""
    title = printable(f"{comparison.b.name} compared with {comparison.a.name}")
    return render_page(title, _run_lines(comparison), _sections(comparison))


def _sections(comparison: Comparison) -> list[Section]:
    differences = run_differences(comparison.a, comparison.b)
    unknown = unknown_differences(comparison.a, comparison.b)
    if not differences:
        unknown = (*unknown, "The recorded environments and options of the runs do not differ.")
    difference_table = _table_of_differences("Differences in environment and options", differences)
    changes = [
        _table_of_differences(f"Changed in {' · '.join(cell.cell)}", cell.differences) for cell in comparison.changes
    ]
    verdicts, threshold = comparison.cells, comparison.threshold
    exit_codes = f"{EXIT_CODES.capitalize()}."
    commands = "\n\n".join(f"# {letter}\n{_command(run)}" for letter, run in comparison.runs)
    return [
        Section("verdict", "Verdict", (*conclusion(comparison.cells, comparison.threshold), exit_codes), depth="page"),
        Section("differences", "Differences", unknown, tables=(difference_table,)),
        Section(
            *("cells", "Cells"),
            tables=(cells_table(verdicts),),
            charts=(ratio_chart(verdicts, threshold),),
            legend=legend(verdicts, threshold),
        ),
        energy_section(comparison.energy, threshold),
        Section("changes", "What else changed", tables=changes, legend=_unmeasured(comparison)),
        Section("commands", "Commands of the runs", text=commands, depth="page"),
    ]


def conclusion(cells: Sequence[CellComparison], threshold: float) -> tuple[str, str]:
    """Return a line with the number of cells of each verdict, and one with the answer and the exit code."""
    numbers = Counter(cell.verdict for cell in cells)
    counts = ", ".join(f"{numbers[verdict]} {verdict}" for verdict in get_args(Verdict) if numbers[verdict])
    limit, code = f"{100 * threshold:.4g}%", exit_code(cells, threshold)
    open_cells, of = len(undecided(cells, threshold)), sum(cell.verdict != "not compared" for cell in cells)
    of += sum(cell.unmatched for cell in cells if cell.verdict == "not compared")
    unknown = f"Cannot tell for {open_cells} of {count_of(of, 'cell')} whether B is slower by more than {limit}"
    if set(numbers) == {"not compared"}:
        unknown = "Nothing was compared: no cell was measured, and correct, in both"
    answer = {
        PASSED: f"No cell of B is slower than A by more than {limit}",
        SLOWER: f"B is slower than A by more than {limit} in {count_of(numbers['slower'], 'cell')}",
    }.get(code, unknown)
    return f"{count_of(len(cells), 'cell')}: {counts}.", f"{answer} (exit code {code})."


def _run_lines(comparison: Comparison) -> list[str]:
    """Return a line for each run: its path, device and date; and one for each that is damaged."""
    lines = []
    for letter, run in comparison.runs:
        device, environment = run.environment.device, run.environment
        facts = [str(run.path), device and device.name, environment.captured_at]
        lines.append(f"{letter}: {printable(' · '.join(filter(None, facts)))}")
    return [*lines, *(f"{letter}: {run.damage}." for letter, run in comparison.runs if run.damage)]


def _command(run: LoadedRun) -> str:
    return printable(run.environment.command or "# not known: environment.json does not hold it", LONGEST_COMMAND)


def _table_of_differences(title: str, differences: Sequence[Difference]) -> Table[Difference]:
    columns = (
        Column[Difference]("what", lambda row: row.name),
        Column[Difference]("A", lambda row: row.a, wrap=_WRAP),
        Column[Difference]("B", lambda row: row.b, wrap=_WRAP),
    )
    return Table(title, columns, differences, keys=1)


def cells_table(cells: Sequence[CellComparison]) -> Table[CellComparison]:
    """Return the verdict on each cell, after the job that it is of; reasons stand below the table."""
    stated = dict.fromkeys(cell.reason for cell in cells if cell.reason)
    marks = {reason: f"({number})" for number, reason in enumerate(stated, 1)}
    columns = (
        Column[CellComparison]("job", lambda cell: cell.job or None, wrap=30),
        Column[CellComparison]("component", lambda cell: cell.component),
        Column[CellComparison]("variant", lambda cell: cell.variant),
        Column[CellComparison]("A p50", lambda cell: cell.a_ms, "ms"),
        Column[CellComparison]("B p50", lambda cell: cell.b_ms, "ms"),
        Column[CellComparison]("B / A", lambda cell: estimate(cell.ratio, cell.interval), "number"),
        Column[CellComparison]("verdict", lambda cell: " ".join(filter(None, (cell.verdict, marks.get(cell.reason))))),
    )
    notes = [f"{mark} {reason}" for reason, mark in marks.items()]
    return Table("Cells", columns, cells, notes, keys=3)


def legend(cells: Sequence[CellComparison], threshold: float) -> list[str]:
    """Return how to read the cells; empty where no ratio has an interval."""
    compared = [cell for cell in cells if cell.interval is not None]
    if not compared:
        return []
    limit = f"{threshold:g}"
    level = f"{100 * confidence_level(len(compared)):.4g}%"
    of_runs, in_turns = f"of median times and its {level} bootstrap interval", sum(cell.in_turns for cell in compared)
    if in_turns:
        of_windows = f"of neighbouring windows, where both took turns, and its {level} interval"
        of_runs = of_windows if in_turns == len(compared) else f"{of_windows}; else {of_runs}"
    correction = f" (Bonferroni-corrected for {len(compared)} cells)" if len(compared) > 1 else ""
    lines = [
        f"B / A: ratio {of_runs}{correction}; above 1, B is slower.",
        f"same: the whole interval is within 1 ± {limit}. faster, slower: the ratio is beyond 1 ± {limit}, "
        "and the whole interval is on that side of 1.",
    ]
    if min(cell.rounds for cell in compared) == 1:
        lines.append("One round per run: the intervals do not contain drift of the machine. Run both with rounds=5.")
    return lines


def _unmeasured(comparison: Comparison) -> list[str]:
    """Return a line for each run: the quantities that it alone measured, in any cell."""
    lines = []
    for letter, _ in comparison.runs:
        names = dict.fromkeys(name for changes in comparison.changes for name in changes.only_in.get(letter, ()))
        if names:
            lines.append(f"Measured only in {letter}, and not compared: {'; '.join(names)}.")
    return lines


def ratio_chart(verdicts: Sequence[CellComparison], threshold: float) -> charts.Chart:
    """Return the chart: a view of all cells, or of each component where they are many; false without a ratio."""
    cells = [cell for cell in verdicts if cell.ratio is not None]
    groups: dict[str, list[CellComparison]] = {}
    for cell in cells:
        name = " · ".join(filter(None, (cell.component, cell.job))) if len(cells) > _MOST_CELLS else "all cells"
        groups.setdefault(name, []).append(cell)
    views = [charts.View(printable(name), _ratio_figure(group, threshold)) for name, group in groups.items()]
    left_out = len(verdicts) - len(cells) + sum(map(len, list(groups.values())[_MOST_VIEWS:]))
    note = (
        "Left of 1, B is faster; right of 1, it is slower. Bars: the interval of the ratio. "
        f"Shaded: 1 ± {threshold:g}. Hollow: no interval."
    )
    if left_out:
        note += (
            f" Not drawn: {count_of(left_out, 'cell')} without a ratio{', or too many' * (len(views) > _MOST_VIEWS)}."
        )
    return charts.Chart("ratios", "B / A of the median time", views[:_MOST_VIEWS], note)


def _ratio_figure(cells: Sequence[CellComparison], threshold: float) -> charts.Figure:
    traces = []
    for verdict in _MARKERS:
        for known in (True, False):
            places = [i for i, c in enumerate(cells) if c.verdict == verdict and (c.interval is not None) == known]
            if places:
                traces.append(_ratio_trace(cells, places, verdict, known=known))
    # Cells are placed by number and not by name: two names that were shortened may be equal.
    names = [charts.plain(printable(_name(cell), _LONGEST_NAME)) for cell in cells]
    ticks = {"tickmode": "array", "tickvals": list(range(len(cells))), "ticktext": names}
    y = charts.axis("cell", range=[len(cells) - 0.5, -0.5], zeroline=False, **ticks)
    shown = [max(1 - _AXIS_MARGIN * threshold, 0.01), 1 + _AXIS_MARGIN * threshold]
    kind = {"type": "log"} if charts.scale(cell.ratio or 1.0 for cell in cells).get("type") else {}
    x = charts.axis("B / A, above 1 is slower", zeroline=False, autorangeoptions={"include": shown}, **kind)
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    one["line"] = {"color": charts.GREY, "dash": "dash", "width": 1.5}
    return charts.figure(traces, x, y, shapes=[charts.band("x", 1 - threshold, 1 + threshold, opacity=0.2), one])


def _ratio_trace(cells: Sequence[CellComparison], places: Sequence[int], verdict: str, *, known: bool) -> charts.Trace:
    colour, symbol = _MARKERS[verdict]
    chosen = [cells[place] for place in places]
    ratios = [cell.ratio or 1.0 for cell in chosen]
    more: dict[str, Any] = {"text": [charts.plain(_hover_text(cell)) for cell in chosen], "hoverinfo": "text"}
    if known:
        more["error_x"] = charts.error_bars(ratios, [cell.interval for cell in chosen], colour)
    name = verdict if known else f"{verdict}, no interval"
    return charts.points(name, ratios, places, symbol if known else f"{symbol}-open", colour, 11, **more)


def _hover_text(cell: CellComparison) -> str:
    ratio = show(estimate(cell.ratio, cell.interval), "number")
    return f"{_name(cell)}: {cell.verdict}, {ratio}, {show(cell.a_ms, 'ms')} → {show(cell.b_ms, 'ms')} ms"


def _name(cell: CellComparison) -> str:
    return " ".join(filter(None, (".".join(cell.cell), cell.job)))
