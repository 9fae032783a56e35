"""What a comparison says, for the text and for the page: rows of cells, how to read them, and the conclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from profiling.comparison.compared import Comparison
from profiling.comparison.judgement import FALSE_ALARM, PASSED, SLOWER, Judged, exit_code
from profiling.comparison.side import Side
from profiling.reporting.facts import at
from profiling.reporting.format import ABSENT, TIMES, count_of, one_line, significant

AROUND = ("what", "A", "B")
CELLS = ("component", "variant", "A p50 ms", "B p50 ms", "B / A", "interval", "verdict", "why")
CHANGED = ("component", "variant", "what", "A", "B")
NOTHING_AROUND = "Nothing that is known differs around them."
EXIT_CODES = "exit code: 0 no cell is slower beyond the threshold, 1 one is, 2 they cannot be compared"


def titled(name: str, side: Side) -> str:
    """Return the line of a side: where it is, what it was measured on, and when."""
    facts = [side.path, at(side.environment, "device", "name"), at(side.environment, "captured_at")]
    return f"{name}: {one_line(' · '.join(str(fact) for fact in facts if fact))}"


def cell_row(cell: Judged) -> tuple[str, ...]:
    """Return what stands under the headers `CELLS`."""
    span = f"[{cell.interval[0]:.3f}, {cell.interval[1]:.3f}]" if cell.interval else ABSENT
    ratio = f"{cell.ratio:.3f}{TIMES}" if cell.ratio is not None else ABSENT
    times = (significant(cell.a_ms), significant(cell.b_ms))
    return *cell.cell, *times, ratio, span, cell.verdict, one_line(cell.reason) or ABSENT


def legend(comparison: Comparison) -> list[str]:
    """Return how the cells are to be read; empty where none could be compared."""
    compared = [cell for cell in comparison.cells if cell.interval is not None]
    if not compared:
        return []
    level = 100 * (1 - FALSE_ALARM / len(compared))
    lines = [
        f"B / A: ratio of median times, above 1 is slower; bootstrap interval at {level:.4g}% "
        f"({count_of(len(compared), 'cell')}, Bonferroni). same: all of it within 1 ± {comparison.threshold:g}; "
        "faster, slower: the ratio is beyond that, and all of it on one side of 1."
    ]
    if min(cell.rounds for cell in compared) == 1:
        lines.append("One round a side: drift of the machine is not in the intervals. Measure both with rounds=5.")
    return lines


def conclusion(cells: Sequence[Judged], threshold: float) -> str:
    """Return how many cells came to what, and the exit code with what it says."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in Counter(cell.verdict for cell in cells).items())
    code = exit_code(cells, threshold)
    said = {PASSED: f"no cell is slower by more than {threshold:.2%}", SLOWER: f"slower by more than {threshold:.2%}"}
    return f"{counts}: {said.get(code, 'not everything can be compared')} (exit code {code})"
