"""A run for other programs: JSON of the answer, CSV with a row a cell, JUnit XML with a test case a cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from profiling.errors import printable
from profiling.report.answer import Answer, answers_of, held_rate, summary_of
from profiling.report.doubts import doubts_of
from profiling.report.energy import joules_per_frame
from profiling.report.format import Estimate, number_of
from profiling.report.roofline import deciding
from profiling.report.run_data import RunData, name_of, wrong_because
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judgement import can_be_ranked, claimed_speedup, correct_baseline
from profiling.results.measured import Summary
from profiling.results.record import Record

Cell = str | float | None


def as_json(data: RunData) -> str:
    """Return the rows of the answer, the cells that have no right time, and the file that holds the records.

    Times are in milliseconds. What was not measured, or may not be claimed, is null.
    """
    wrong = [
        {"component": record.component, "variant": record.variant, "status": wrong_because(record)}
        | {"reason": record.reason}
        for record in data.records
        if wrong_because(record)
    ]
    content = {
        "answer": [_answer(answer) for answer in answers_of(data)],
        "not_ok": wrong,
        "records": str(data.folder / RESULTS_FILE),
    }
    return json.dumps(content, indent=2, allow_nan=False)


def as_csv(data: RunData) -> str:
    """Return a row for each cell, calibrations left out; headers name the units, and an empty field is not measured."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(cell_rows(data))
    return text.getvalue()


def cell_rows(data: RunData) -> Iterator[Sequence[Cell]]:
    """Yield the headers, then a row for each cell, calibrations left out."""
    yield tuple(_COLUMNS)
    for group in data.groups.values():
        yield from (tuple(read(record, group) for read in _COLUMNS.values()) for record in group)


def as_junit(data: RunData) -> str:
    """Return a test case for each cell: a failed or invalid one is a failure with its reason, a skipped one skipped."""
    states = [wrong_because(record) for record in data.records]
    counts = {
        "tests": str(len(states)),
        "failures": str(sum(bool(state) and state != "skipped" for state in states)),
        "skipped": str(states.count("skipped")),
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": printable(data.folder.resolve().name), **counts})
    for record, state in zip(data.records, states, strict=True):
        names = {"classname": printable(record.component), "name": printable(record.variant)}
        case = ElementTree.SubElement(suite, "testcase", names)
        reason = printable(record.reason or "the parity check failed")
        if state == "skipped":
            ElementTree.SubElement(case, "skipped", {"message": reason})
        elif state:
            ElementTree.SubElement(
                case, "failure", {"type": state, "message": reason}
            ).text = f"{name_of(record)}: {reason}"
        elif doubts := doubts_of(record):
            ElementTree.SubElement(case, "system-out").text = "\n".join(
                f"{doubt.mark}: {doubt.words}" for doubt in doubts
            )
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _answer(answer: Answer) -> dict[str, Any]:
    record, speedup = answer.fastest, answer.speedup
    times = summary_of(record) if record is not None else None
    return {
        "component": answer.component,
        "fastest_correct": record.variant if record is not None else None,
        "is_ranked": answer.is_ranked,
        "p50_ms": times.p50 if times is not None else None,
        "p50_ms_ci95": times.ci95 if times is not None else None,
        "p99_ms": times.percentile("p99") if times is not None else None,
        "max_ms": times.max if times is not None else None,
        "speedup": number_of(speedup),
        "speedup_ci95": [speedup.low, speedup.high] if isinstance(speedup, Estimate) else None,
        "holds": answer.holds,
        "joules_per_frame": number_of(joules_per_frame(record)) if record is not None else None,
        "bound_by": answer.bound,
        "next": answer.next,
        "conditions": [{"mark": doubt.mark, "words": doubt.words} for doubt in answer.doubts],
    }


Read = Callable[[Record, tuple[Record, ...]], Cell]


def _time(read: Callable[[Summary], Cell]) -> Read:
    return lambda record, _: read(times) if (times := summary_of(record)) is not None else None


def _end(place: int) -> Read:
    return _time(lambda times: times.ci95[place] if times.ci95 is not None else None)


def _claims_speedup(record: Record, group: tuple[Record, ...]) -> bool:
    baseline = correct_baseline(group)
    return record.is_correct and baseline is not None and can_be_ranked(record, baseline)


def _speedup(record: Record, group: tuple[Record, ...]) -> Cell:
    return claimed_speedup(record, group) if _claims_speedup(record, group) else None


def _speedup_end(place: int) -> Read:
    def read(record: Record, group: tuple[Record, ...]) -> Cell:
        known = record.speedup is not None and _speedup(record, group) is not None
        return record.speedup.ci95[place] if known and record.speedup and record.speedup.ci95 else None

    return read


def _bound(record: Record, _: tuple[Record, ...]) -> Cell:
    call = deciding(record)
    return call.roofline.bound if call is not None else None


_COLUMNS: Mapping[str, Read] = {
    "target": lambda record, _: printable(record.target),
    "component": lambda record, _: printable(record.component),
    "variant": lambda record, _: printable(record.variant),
    "status": lambda record, _: wrong_because(record) or "ok",
    "reason": lambda record, _: record.reason,
    "samples": _time(lambda times: times.n),
    "p50 ms": _time(lambda times: times.p50),
    "p50 low ms": _end(0),
    "p50 high ms": _end(1),
    "p99 ms": _time(lambda times: times.percentile("p99")),
    "max ms": _time(lambda times: times.max),
    "speedup": _speedup,
    "speedup low": _speedup_end(0),
    "speedup high": _speedup_end(1),
    "holds": lambda record, _: held_rate(record) if record.is_correct else None,
    "rel. L2 error": lambda record, _: record.parity.rel_l2 if record.parity is not None else None,
    "peak memory bytes": lambda record, _: record.peak_memory[1] if record.peak_memory else None,
    "peak memory kind": lambda record, _: record.peak_memory[0] if record.peak_memory else None,
    "energy J/frame": lambda record, _: number_of(joules_per_frame(record)),
    "prepare s": lambda record, _: record.prepare.from_cold if record.prepare is not None else None,
    "bound by": _bound,
    "conditions": lambda record, _: ", ".join(doubt.mark for doubt in doubts_of(record)) or None,
}
