"""Shows a comparison of two runs or two sweeps: the conclusion, the cells that differ, what could explain that.

The console, Markdown and the page have the same tables. The page also lists the cells that are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from profiling.compare.cells import (
    PASSED,
    SLOWER,
    VERDICTS,
    CellComparison,
    default_threshold,
    exit_code,
    judged,
    matched_cells,
    open_cells,
)
from profiling.compare.command import paragraph, section_text
from profiling.compare.differences import Difference, run_differences, unknown_differences
from profiling.compare.loaded_run import LoadedRun
from profiling.compare.sweeps import JobRuns, matched_jobs
from profiling.errors import LONGEST_COMMAND, printable
from profiling.report import charts
from profiling.report.format import Value, count_of, estimate, few, show
from profiling.report.page import Section, render_page
from profiling.report.table import Column, Table
from profiling.results.judge import Pair

EXIT_CODES = "exit code: 0 no cell is slower beyond the threshold, 1 a cell is, 2 undecided for some cells"

#: Colour and symbol of each verdict: triangles point down to less time, up to more.
_MARKERS = {
    "faster": ("#0284c7", "triangle-down"),
    "same": (charts.GREY, "circle"),
    "slower": (charts.RED, "triangle-up"),
    "undecided": ("#e08700", "diamond"),
}
#: Most rows of a table on the console and on the page.
_CONSOLE, _PAGE = 40, 4_000
#: Most cells in the chart, and most characters of their names.
_DRAWN, _LONGEST_NAME = 40, 40
#: The x axis shows at least this many times the threshold to either side of 1.
_AXIS_MARGIN = 1.5
#: Characters of a value before the console breaks it.
_WRAP = 28

_Row = TypeVar("_Row")
_Change = tuple[CellComparison, Difference]
_Pairs = tuple[Difference, int | None]  # None: there are two runs


@dataclass(frozen=True)
class Comparison:
    """B compared with A; ratios within 1 ± `threshold` are the same. The cells that matter most come first."""

    title: str
    threshold: float
    heading: Sequence[str]  # a line for each run or sweep
    cells: Sequence[CellComparison]
    differences: Sequence[_Pairs]  # between the environments and options of runs, with the number of pairs of runs
    lines: Sequence[str]  # what was not read, or is not known
    commands: str = ""

    @property
    def exit_code(self) -> int:
        """0, 1 or 2, as `EXIT_CODES` says."""
        return exit_code(self.cells, self.threshold)


def compare_runs(a: LoadedRun, b: LoadedRun, threshold: float | None = None) -> Comparison:
    """Compare two runs cell by cell; without a `threshold` by `default_threshold`."""
    heading, commands = [], []
    for letter, run in (("A", a), ("B", b)):
        device, environment = run.environment.device, run.environment
        facts = [str(run.path), device and device.name, environment.captured_at]
        heading.append(printable(f"{letter}: {' · '.join(filter(None, facts))}"))
        command = environment.command or "# not known: environment.json does not hold it"
        commands.append(f"# {letter}\n{printable(command, LONGEST_COMMAND)}")
    title = printable(f"{b.name} compared with {a.name}")
    return _comparison([("", a, b)], title, threshold, heading, commands="\n\n".join(commands))


def compare_sweeps(folders: tuple[Path, Path], threshold: float | None = None, glob: str | None = None) -> Comparison:
    """Compare two sweeps job by job; `glob` over <component>.<variant> leaves cells out."""
    lines, keys, runs = matched_jobs(folders, glob)
    a, b = (folder.resolve().name for folder in folders)
    return _comparison(runs, printable(f"{b} compared with {a}"), threshold, lines, swept=keys)


def _comparison(
    runs: Iterable[JobRuns],
    title: str,
    threshold: float | None,
    heading: Sequence[str],
    swept: Sequence[str] = (),
    commands: str = "",
) -> Comparison:
    cells: list[CellComparison] = []
    differences: Counter[Difference] = Counter()
    lines: dict[str, None] = {}
    for job, a, b in runs:  # one pair at a time, since all runs of two sweeps may not fit into memory
        if isinstance(a, str) or isinstance(b, str):
            reasons = [f"{name}: {run}" for name, run in (("A", a), ("B", b)) if isinstance(run, str)]
            missing = isinstance(a, LoadedRun)
            cells.append(CellComparison("–", "–", reason="; ".join(reasons), unmatched=missing, job=job))
            continue
        cells += matched_cells(a, b, job)
        differences.update(each for each in run_differences(a, b) if each.name not in swept)
        damaged = [(name, run.damage) for name, run in (("A", a), ("B", b)) if run.damage]
        lines |= dict.fromkeys(f"{' '.join(filter(None, (name, job)))}: {damage}." for name, damage in damaged)
        lines |= dict.fromkeys(unknown_differences(a, b))
    threshold = default_threshold(cells) if threshold is None else threshold
    found = sorted(judged(cells, threshold), key=lambda cell: VERDICTS.index(cell.verdict))
    several = len({cell.job for cell in cells}) > 1
    pairs = [(each, number if several else None) for each, number in differences.most_common()]
    if not pairs:
        lines["The recorded environments and options of the runs do not differ."] = None
    return Comparison(title, threshold, heading, found, pairs, tuple(lines), commands)


def comparison_text(comparison: Comparison, *, as_markdown: bool) -> str:
    """Return the text, the conclusion first."""
    first, *others = (each for each in _sections(comparison, _CONSOLE) if each.depth == "console")
    conclusion, heading = (paragraph(each, as_markdown=as_markdown) for each in ([first.title], comparison.heading))
    shown, *more = (section_text(section, as_markdown=as_markdown) for section in (first, *others))
    return "\n\n".join(filter(None, (conclusion, shown, heading, *more)))


def comparison_page(comparison: Comparison) -> str:
    """Return the page: the text, a chart, the cells that are the same, and the commands of the runs."""
    return render_page(comparison.title, comparison.heading, _sections(comparison, _PAGE))


def _sections(comparison: Comparison, most: int) -> list[Section]:
    cells = comparison.cells
    unequal, same = ([cell for cell in cells if (cell.verdict == "same") == is_same] for is_same in (False, True))
    energy = [cell for cell in cells if cell.energy is not None]
    changes = [(cell, change) for cell in cells for change in cell.changes]
    tables = {
        "verdict": _table("Cells that are not the same", _CELLS, unequal, most),
        "same": _table("Cells that are the same", _CELLS, same, most),
        "energy": _table("Energy of a frame", _ENERGY, energy, most),
        "differences": _table("Differences in environment and options", _DIFFERENCES, comparison.differences, most, 1),
        "changes": _table("What else changed in cells", _CHANGES, changes, most),
    }
    chart = ratio_chart(cells, comparison.threshold)
    return [
        Section("verdict", _answer(comparison), (_counts(cells),), _legend(comparison), (tables["verdict"],), (chart,)),
        Section("same", "The same", tables=(tables["same"],), depth="page"),
        Section("energy", "Energy", (), _ENERGY_LEGEND if energy else (), (tables["energy"],)),
        Section("differences", "Differences", comparison.lines, tables=(tables["differences"],)),
        Section("changes", "What else changed", tables=(tables["changes"],)),
        Section("commands", "Commands of the runs", text=comparison.commands, depth="page"),
    ]


def _answer(comparison: Comparison) -> str:
    """Return the conclusion with the exit code."""
    cells, code, limit = comparison.cells, comparison.exit_code, f"{100 * comparison.threshold:.4g}%"
    slower = sum(cell.verdict == "slower" for cell in cells)
    compared = sum(cell.verdict != "not compared" or cell.unmatched for cell in cells)
    number = len(open_cells(cells, comparison.threshold))
    answer = f"Undecided for {number} of {count_of(compared, 'cell')} whether B is slower by more than {limit}"
    if all(cell.verdict == "not compared" for cell in cells):
        answer = "Nothing was compared: no cell was measured, and correct, in both"
    answer = {
        PASSED: f"No cell of B is slower than A by more than {limit}",
        SLOWER: f"B is slower than A by more than {limit} in {count_of(slower, 'cell')}",
    }.get(code, answer)
    return f"{answer} (exit code {code})."


def _counts(cells: Sequence[CellComparison]) -> str:
    """Return the number of cells of each verdict, with the names of those that are the same."""
    numbers = Counter(cell.verdict for cell in cells)
    counts = ", ".join(f"{numbers[verdict]} {verdict}" for verdict in VERDICTS if numbers[verdict])
    same = [cell.name for cell in cells if cell.verdict == "same"]
    return printable(f"{count_of(len(cells), 'cell')}: {counts}{f' ({few(same)})' if same else ''}.")


def _legend(comparison: Comparison) -> list[str]:
    """Return the legend of the table of cells; empty if no ratio has an interval."""
    pairs = [cell.pair for cell in comparison.cells if cell.pair is not None and cell.interval is not None]
    if not pairs:
        return []
    limit = f"{comparison.threshold:g}"
    lines = [
        "B / A: ratio of the times of neighbouring windows, or of all windows of two runs, with its 95% interval; "
        "above 1, B is slower. The interval contains what equal code differs by between processes and between runs.",
        f"same: the whole interval is within 1 ± {limit}. faster, slower: the ratio is beyond that, and its interval "
        f"excludes 1; a chance of 5% that any of {count_of(len(pairs), 'cell')} is called so falsely (Holm).",
    ]
    if not all(pair.in_turns for pair in pairs):
        lines.append("Two revisions or folders in the place of the runs are measured in turns, which tells more.")
    return lines


def _table(title: str, columns: Sequence[Column[_Row]], rows: Sequence[_Row], most: int, keys: int = 2) -> Table[_Row]:
    """Return a table of the first `most` rows; a note says how many more there are."""
    more = len(rows) - most
    notes = [f"{count_of(more, 'row')} more{', on the page (--html)' if most == _CONSOLE else ''}."] if more > 0 else []
    return Table(title, columns, rows[:most], notes, keys=keys)


def _ratio(pair: Pair | None) -> Value | None:
    return None if pair is None else estimate(pair.ratio, pair.interval())


_CELL = (
    Column[CellComparison]("job", lambda cell: cell.job or None, wrap=30),
    Column[CellComparison]("component", lambda cell: cell.component),
    Column[CellComparison]("variant", lambda cell: cell.variant),
)
_CELLS = (
    *_CELL,
    Column[CellComparison]("A p50", lambda cell: cell.a_ms, "ms"),
    Column[CellComparison]("B p50", lambda cell: cell.b_ms, "ms"),
    Column[CellComparison]("B / A", lambda cell: _ratio(cell.pair), "number"),
    Column[CellComparison]("verdict", lambda cell: ": ".join(filter(None, (cell.verdict, cell.reason))), wrap=_WRAP),
)
_ENERGY = (
    *_CELL,
    Column[CellComparison]("A J/frame", lambda cell: cell.energy and cell.energy.a, "number"),
    Column[CellComparison]("B J/frame", lambda cell: cell.energy and cell.energy.b, "number"),
    Column[CellComparison]("B / A", lambda cell: cell.energy and _ratio(cell.energy.pair), "number"),
    Column[CellComparison]("energy", lambda cell: cell.energy and cell.energy.verdict, wrap=_WRAP),
)
_ENERGY_LEGEND = (
    "J/frame: energy of the GPU by its counter. B / A: below 1, B takes less; the interval contains the 5% by which "
    "equal code may differ on a warmer GPU, or on another one of its model. The exit code does not depend on it.",
)
_DIFFERENCES = (
    Column[_Pairs]("what", lambda row: row[0].name),
    Column[_Pairs]("A", lambda row: row[0].a, wrap=_WRAP),
    Column[_Pairs]("B", lambda row: row[0].b, wrap=_WRAP),
    Column[_Pairs]("pairs of runs", lambda row: row[1], "count"),
)
_CHANGES = (
    Column[_Change]("cell", lambda row: row[0].name, wrap=30),
    Column[_Change]("what", lambda row: row[1].name, wrap=40),
    Column[_Change]("A", lambda row: row[1].a, wrap=_WRAP),
    Column[_Change]("B", lambda row: row[1].b, wrap=_WRAP),
)


def ratio_chart(compared: Sequence[CellComparison], threshold: float) -> charts.Chart:
    """Return the chart of the first cells that have a ratio; false where none has one."""
    known = [cell for cell in compared if cell.ratio is not None]
    cells = known[:_DRAWN]
    note = f"Above 1, B is slower. Bars: the 95% interval. Shaded: 1 ± {threshold:g}. Hollow: no interval."
    if left_out := len(compared) - len(cells):
        note += f" Not drawn: {count_of(left_out, 'cell')} without a ratio{' or further down' * (cells != known)}."
    views = [charts.View("all cells", _ratio_figure(cells, threshold))] if cells else []
    return charts.Chart("ratios", "B / A of the time", views, note)


def _ratio_figure(cells: Sequence[CellComparison], threshold: float) -> charts.Figure:
    traces = []
    for verdict, (colour, symbol) in _MARKERS.items():
        if places := [place for place, cell in enumerate(cells) if cell.verdict == verdict]:
            chosen = [cells[place] for place in places]
            ratios, ends = [cell.ratio or 1.0 for cell in chosen], [cell.interval for cell in chosen]
            more: dict[str, Any] = {"text": [charts.plain(_hover_text(cell)) for cell in chosen]}
            more["error_x"] = charts.error_bars(ratios, ends, colour)
            traces.append(charts.points(verdict, ratios, places, symbol, colour, 11, **more))
            traces[-1]["marker"]["symbol"] = [symbol if known else f"{symbol}-open" for known in ends]
    # Cells are placed by number and not by name: two names that were shortened may be equal.
    names = [charts.plain(printable(cell.name, _LONGEST_NAME)) for cell in cells]
    ticks = {"tickvals": list(range(len(cells))), "ticktext": names}
    y = charts.axis("cell", range=[len(cells) - 0.5, -0.5], **ticks)
    shown = [max(1 - _AXIS_MARGIN * threshold, 0.01), 1 + _AXIS_MARGIN * threshold]
    kind = {"type": "log"} if charts.scale(cell.ratio or 1.0 for cell in cells).get("type") else {}
    x = charts.axis("B / A, above 1 is slower", autorangeoptions={"include": shown}, **kind)
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    one["line"] = {"color": charts.GREY, "dash": "dash", "width": 1.5}
    return charts.figure(traces, x, y, shapes=[charts.band("x", 1 - threshold, 1 + threshold, opacity=0.2), one])


def _hover_text(cell: CellComparison) -> str:
    times = f"{show(cell.a_ms, 'ms')} → {show(cell.b_ms, 'ms')} ms"
    return f"{cell.name}: {cell.verdict}, {show(_ratio(cell.pair), 'number')}, {times}"
