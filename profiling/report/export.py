"""A run for other programs: JSON of the answer, CSV with a row a cell, JUnit XML with a test case a cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from profiling.errors import printable
from profiling.report.answer import Answer, answers_of, held_rate
from profiling.report.conditions import conditions_of, conditions_text
from profiling.report.energy import joules_per_frame
from profiling.report.format import number_of
from profiling.report.roofline import deciding
from profiling.report.run_data import RunData, name_of, wrong_because
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.measured import Summary
from profiling.results.record import Record
from profiling.results.verdicts import answer_on, deadlines_of, holds_rate, interval_of, speedup, summary_of

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
    environment = data.environment
    yield (*_COLUMNS, "device", "revision")
    for group in data.groups.values():
        for record in group:
            of_the_run = environment.device_kind or record.device, environment.revision
            yield (*(read(record, group) for read in _COLUMNS.values()), *of_the_run)


def as_junit(data: RunData) -> str:
    """Return a test case for each cell: a failed or invalid one is a failure with its reason, a skipped one skipped.

    The time of a case is the median of a call, or of a frame, in seconds, if it counts; that of the suite is their sum.
    """
    states = [wrong_because(record) for record in data.records]
    counts = {
        "tests": str(len(states)),
        "failures": str(sum(bool(state) and state != "skipped" for state in states)),
        "skipped": str(states.count("skipped")),
        "time": _seconds(sum(filter(None, map(_counted_ms, data.records)))),
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": printable(data.folder.resolve().name), **counts})
    for record, state in zip(data.records, states, strict=True):
        known = {"classname": printable(record.component), "name": printable(record.variant)}
        if (ms := _counted_ms(record)) is not None:
            known["time"] = _seconds(ms)
        case = ElementTree.SubElement(suite, "testcase", known)
        reason = printable(record.reason or "the parity check failed")
        if state == "skipped":
            ElementTree.SubElement(case, "skipped", {"message": reason})
        elif state:
            ElementTree.SubElement(
                case, "failure", {"type": state, "message": reason}
            ).text = f"{name_of(record)}: {reason}"
        elif conditions := conditions_of(record):
            ElementTree.SubElement(case, "system-out").text = "\n".join(conditions)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _counted_ms(record: Record) -> float | None:
    """Return the median of a call or frame in milliseconds; None where it was not measured or does not count."""
    return record.median_ms if record.is_correct else None


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:.9f}"  # readers of JUnit take no exponent


def _answer(answer: Answer) -> dict[str, Any]:
    record, pair = answer.fastest, answer.speedup
    times = summary_of(record) if record is not None else None
    return {
        "component": answer.component,
        "fastest_correct": record.variant if record is not None else None,
        "same": answer.same,
        "undecided": answer.undecided,
        "p50_ms": times.p50 if times is not None else None,
        "p50_ms_ci95": interval_of(record) if record is not None else None,
        "p99_ms": times.percentile("p99") if times is not None else None,
        "max_ms": times.max if times is not None else None,
        "speedup": pair.ratio if pair is not None else None,
        "speedup_ci95": pair.interval() if pair is not None else None,
        "speedup_answer": answer_on(record, answer.group) if record is not None else None,
        "holds": answer.holds,
        "rates": _rates(record) if record is not None else {},
        "joules_per_frame": number_of(joules_per_frame(record)) if record is not None else None,
        "bound_by": answer.bound,
        "next": answer.next[1] or None,
        "remarks": list(answer.remarks),
    }


def _rates(record: Record) -> dict[str, Any]:
    """Return the judgement on each frame rate."""
    judged = {f"{each.fps:g}": holds_rate(record, each) for each in deadlines_of(record)}
    return {
        fps: {"answer": said.answer, "late": said.late, "n": said.n, "at_most": said.most}
        for fps, said in judged.items()
        if said is not None
    }


Read = Callable[[Record, tuple[Record, ...]], Cell]


def _time(read: Callable[[Summary], Cell]) -> Read:
    return lambda record, _: read(times) if (times := summary_of(record)) is not None else None


def _end(place: int) -> Read:
    return lambda record, _: interval[place] if (interval := interval_of(record)) is not None else None


def _speedup(record: Record, group: tuple[Record, ...]) -> Cell:
    pair = speedup(record, group)
    return pair.ratio if pair is not None else None


def _speedup_end(place: int) -> Read:
    def read(record: Record, group: tuple[Record, ...]) -> Cell:
        pair = speedup(record, group)
        interval = pair.interval() if pair is not None else None
        return interval[place] if interval is not None else None

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
    "dtype": lambda record, _: record.dtype,
    "samples": _time(lambda times: times.n),
    "mean ms": _time(lambda times: times.mean),
    "p50 ms": _time(lambda times: times.p50),
    "p50 low ms": _end(0),
    "p50 high ms": _end(1),
    "p99 ms": _time(lambda times: times.percentile("p99")),
    "max ms": _time(lambda times: times.max),
    "speedup": _speedup,
    "speedup low": _speedup_end(0),
    "speedup high": _speedup_end(1),
    "vs baseline": lambda record, group: answer_on(record, group),
    "holds": lambda record, _: held_rate(record) if record.is_correct else None,
    "rel. L2 error": lambda record, _: record.parity.rel_l2 if record.parity is not None else None,
    "peak memory bytes": lambda record, _: record.peak_memory[1] if record.peak_memory else None,
    "peak memory kind": lambda record, _: record.peak_memory[0] if record.peak_memory else None,
    "energy J/frame": lambda record, _: number_of(joules_per_frame(record)),
    "prepare s": lambda record, _: record.prepare.from_cold if record.prepare is not None else None,
    "bound by": _bound,
    "conditions": lambda record, _: conditions_text(record),
}
