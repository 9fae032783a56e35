"""A comparison as text: what could explain it first, then the cells, then what else changed in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from profiling.comparison.changes import changes
from profiling.comparison.judgement import FALSE_ALARM, PASSED, SLOWER, Judged, exit_code
from profiling.comparison.side import Side
from profiling.comparison.surroundings import differences, unknown
from profiling.core.rounds import rounds_done
from profiling.reporting.facts import at
from profiling.reporting.format import ABSENT, TIMES, count_of, one_line, significant
from profiling.reporting.grid import grid

_CELLS = ("component", "variant", "A p50 ms", "B p50 ms", "B / A", "interval", "verdict", "why")
_CHANGES = ("component", "variant", "what", "A", "B")


def render(a: Side, b: Side, cells: Sequence[Judged], threshold: float, *, markdown: bool) -> str:
    """Return the whole text; numbers are times, so a ratio above 1 is slower.

    Raises:
        InputError: a profiler trace that cannot be read.

    """
    around = differences(a, b)
    rows = [(*cell.cell, *change) for cell in cells for change in changes(a, b, cell.cell)]
    parts = [
        "\n".join(f"{name}: {_titled(side)}" for name, side in (("A", a), ("B", b))),
        "\n".join(map(one_line, unknown(a, b))),
        _table("What differs around them", ("what", "A", "B"), around, names=3, markdown=markdown)
        or "Nothing that is known differs around them.",
        _table("Cells", _CELLS, [_row(cell) for cell in cells], names=2, markdown=markdown),
        "\n".join(_legend(a, b, cells, threshold)),
        _table("What else changed", _CHANGES, rows, names=3, markdown=markdown),
        _conclusion(cells, threshold),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *, names: int, markdown: bool) -> str:
    shown = grid(headers, rows, markdown=markdown, names=names)
    return f"{'### ' if markdown else ''}{title}\n\n{shown}" if shown else ""


def _titled(side: Side) -> str:
    facts = [side.path, at(side.environment, "device", "name"), at(side.environment, "captured_at")]
    return one_line(" · ".join(str(fact) for fact in facts if fact))


def _row(cell: Judged) -> tuple[str, ...]:
    span = f"[{cell.interval[0]:.3f}, {cell.interval[1]:.3f}]" if cell.interval else ABSENT
    ratio = f"{cell.ratio:.3f}{TIMES}" if cell.ratio is not None else ABSENT
    times = (significant(cell.a_ms), significant(cell.b_ms))
    return *cell.cell, *times, ratio, span, cell.verdict, one_line(cell.reason) or ABSENT


def _legend(a: Side, b: Side, cells: Sequence[Judged], threshold: float) -> list[str]:
    compared = [cell for cell in cells if cell.interval is not None]
    if not compared:
        return []
    level = 100 * (1 - FALSE_ALARM / len(compared))
    lines = [
        f"B / A: ratio of median times, above 1 is slower; bootstrap interval at {level:.4g}% "
        f"({count_of(len(compared), 'cell')}, Bonferroni). same: all of it within 1 ± {threshold:g}; "
        "faster, slower: else, and all of it on one side of 1."
    ]
    rounds = min(rounds_done(side.records[cell.cell]) for side in (a, b) for cell in compared)
    if rounds == 1:
        lines.append("One round a side: drift of the machine is not in the intervals. Measure both with rounds=5.")
    return lines


def _conclusion(cells: Sequence[Judged], threshold: float) -> str:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in Counter(cell.verdict for cell in cells).items())
    code = exit_code(cells, threshold)
    said = {PASSED: f"no cell is slower by more than {threshold:.2%}", SLOWER: f"slower by more than {threshold:.2%}"}
    return f"{counts}: {said.get(code, 'not everything can be compared')} (exit code {code})"
