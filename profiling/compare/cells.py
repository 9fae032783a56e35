"""The cells of two runs: B is faster, slower or the same as A, or undecided. The judge decides.

All cells are judged together: of a hundred equal ones none is called slower by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from profiling.compare.differences import Difference, cell_changes
from profiling.errors import InputError, printable
from profiling.report.run_data import RunData, load_run
from profiling.results import judge
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judge import Answer, Pair
from profiling.results.record import Record
from profiling.results.verdicts import cell_of, taken, work_of

Verdict = Answer | Literal["not compared"]

#: Verdicts in the order in which a reader looks for them.
VERDICTS: tuple[Verdict, ...] = ("slower", "undecided", "not compared", "faster", "same")
#: Exit codes: no cell is slower, one is, undecided for some.
PASSED, SLOWER, UNDECIDED = 0, 1, InputError.exit_code
#: Largest slowdown that passes: of two runs (other processes, maybe another day), of two that each compiled a cell,
#: which can show no less, and where all cells took turns.
TWO_RUNS, COMPILED_ANEW, IN_TURNS = 0.05, 0.15, 0.02


@dataclass(frozen=True)
class CellComparison:
    """The verdict on a cell, and what else changed in it. Times are medians in milliseconds."""

    component: str
    variant: str
    verdict: Verdict = "not compared"
    reason: str = ""  # why it was not compared; what would decide; what others took
    a_ms: float | None = None
    b_ms: float | None = None
    pair: Pair | None = None  # the ratio B / A, above 1 is slower
    other_work: bool = False  # A and B do different work
    compiled_anew: bool = False  # in each of two runs
    unmatched: bool = False  # A was measured and B has nothing to compare with it: exit code 2
    changes: tuple[Difference, ...] = ()

    @property
    def name(self) -> str:
        """Component and variant."""
        return f"{self.component}.{self.variant}"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the ratio, at the level of all cells together once they are judged."""
        return None if self.pair is None else self.pair.interval()

    def limit(self, threshold: float | None = None) -> float:
        """Return the largest slowdown that passes: the threshold, or without one what such a cell can show."""
        if threshold is not None:
            return threshold
        if self.pair is not None and self.pair.in_turns:
            return IN_TURNS
        return COMPILED_ANEW if self.compiled_anew else TWO_RUNS

    def is_worse(self, threshold: float | None = None) -> bool:
        """Return whether B is slower by more than the limit."""
        return self.pair is not None and self.pair.answer(resolution=self.limit(threshold)) == "slower"

    def is_open(self, threshold: float | None = None) -> bool:
        """Return whether B may be slower by more than the limit."""
        if self.verdict == "not compared":
            return False
        if self.is_worse(threshold):
            return False
        return self.interval is None or self.interval[1] > 1 + self.limit(threshold)


def exit_code(cells: Sequence[CellComparison], threshold: float | None = None) -> int:
    """Return 1 where a cell is slower by more than its limit, 2 where that is undecided for some, else 0.

    A cell passes where its whole interval is below 1 + limit. One that is correct in A and missing, wrong or different
    work in B is undecided.
    """
    if any(cell.is_worse(threshold) for cell in cells):
        return SLOWER
    compared = any(cell.verdict != "not compared" for cell in cells)
    is_open = any(cell.unmatched or cell.is_open(threshold) for cell in cells)
    return PASSED if compared and not is_open else UNDECIDED


def read_run(path: Path, glob: str | None = None) -> RunData:
    """Read a run's folder or a file of records, of it the cells whose <component>.<variant> matches `glob`.

    Nothing at `path`, no record, or none that matches, raises InputError.
    """
    run = load_run(path)
    if not run.records:
        what = f"a folder that a run printed, or a file like its {RESULTS_FILE}"
        raise InputError(f"{path} holds no record. Name {what}.")
    matching = tuple(record for record in run.records if fnmatchcase(record.name, glob or "*"))
    if not matching:
        names = ", ".join(record.name for record in run.records)
        raise InputError(f"{path} has no cell that matches {glob!r}. There are: {names}")
    return replace(run, records=matching)


def compared_cells(a: RunData, b: RunData) -> list[CellComparison]:
    """Return every cell of either run in the order of A, with the judge's answers on all of them together."""
    before, after = ({record.cell: record for record in run.records} for run in (a, b))
    names = dict.fromkeys((*before, *after))
    cells = [_matched(CellComparison(*name), before.get(name), after.get(name)) for name in names]
    pairs = {place: cell.pair for place, cell in enumerate(cells) if cell.pair is not None}
    for place, pair in judge.judged(pairs).items():
        answer = pair.answer()
        wanted = f"{pair.wants().partition(' (')[0]} would tell" if answer == "undecided" else ""
        reason = "; ".join(filter(None, (wanted, cells[place].reason)))
        cells[place] = replace(cells[place], verdict=answer, reason=reason, pair=pair)
    return cells


def _matched(cell: CellComparison, one: Record | None, two: Record | None) -> CellComparison:
    """Return the cell with the ratio that is to be judged, or with the reason why there is none."""
    if one is None or two is None:
        return replace(cell, reason=f"only in {'A' if two is None else 'B'}", unmatched=two is None)
    cell = replace(cell, a_ms=one.median_ms, b_ms=two.median_ms)
    if one.status == two.status == "skipped":
        return replace(cell, reason="skipped in both")
    if wrong := [f"{run} {_fault(record)}" for run, record in (("A", one), ("B", two)) if not record.is_correct]:
        return replace(cell, reason="; ".join(wrong), unmatched=one.is_correct)
    if without := [run for run, ms in (("A", cell.a_ms), ("B", cell.b_ms)) if not (ms and ms > 0)]:
        return replace(cell, reason=f"no times in {' and '.join(without)}", unmatched=without == ["B"])
    if difference := different_work(one, two):
        return replace(cell, reason=f"different work: {printable(difference, 300)}", other_work=True, unmatched=True)
    others = [
        f"{known.words} in {run}"
        for run, record in (("A", one), ("B", two))
        if (known := taken(record.conditions)) is not None and known.is_named
    ]
    judged = [each for record in (two, one) if (each := cell_of(record)) is not None]
    pair = judge.compare_runs(*judged) if len(judged) == 2 else None
    if pair is not None and pair.is_certain:
        others = ["one measurement, in both runs"]
    if pair is None:
        others = ["the records have no windows", *others]
    anew = pair is not None and not pair.in_turns and any(each.is_compiled for each in judged)
    cell = replace(cell, compiled_anew=anew, changes=cell_changes(one, two))
    return replace(cell, verdict="undecided", reason="; ".join(others), pair=pair)


def different_work(a: Record, b: Record) -> str:
    """Return the differences that make two times incomparable (`steps 4 → 1`); empty if there are none.

    Variant, schedule and dtype do not count: they are how the work is run, which is what runs are compared for. A value
    that one of the records lacks is no difference: older records have fewer.
    """
    before, after = work_of(a), work_of(b)
    names = [name for name in before if name in after and before[name] != after[name]]
    if a.turns is not None and b.turns is not None and a.turns.began == b.turns.began:
        names = [name for name in names if name != "parameters"]  # of two revisions, the change may be another layer
    return ", ".join(f"{name} {before[name]} → {after[name]}" for name in names)


def _fault(record: Record) -> str:
    return "fails its parity check" if record.status == "ok" else f"is {record.status} ({record.reason})"
