"""A run for other programs: JSON of the answer, CSV with a row a cell, JUnit XML with a test case a cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from profiling.errors import printable
from profiling.report.answer import Answer, answers_of, held_rate
from profiling.report.cells import UNDECIDED, conditions_of, conditions_text, median_of, ratio_value
from profiling.report.format import Estimate, Value, number_of
from profiling.report.roofline import deciding
from profiling.report.run_data import RunData, wrong_because
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judge import Pair
from profiling.results.record import Record
from profiling.results.verdicts import answer_on, judged_rates, speedup

Cell = str | float | None


def as_json(data: RunData) -> str:
    """Return the answer for each component, the same rows of all cells as the CSV, and the path of the records.

    Times are in milliseconds. What was not measured, or may not be claimed, is null.
    """
    content = {
        "answer": [_answer(answer) for answer in answers_of(data)],
        "cells": cell_rows(data),
        "records": str(data.folder / RESULTS_FILE),
    }
    return json.dumps(content, indent=2, allow_nan=False)


def as_csv(data: RunData) -> str:
    """Return a row for each cell, calibrations left out; an empty field was not measured, or may not be claimed."""
    return csv_text(cell_rows(data))


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same keys as CSV; empty without any."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def cell_rows(data: RunData) -> list[dict[str, Cell]]:
    """Return the numbers of each cell, and on what they were measured."""
    device, revision = data.environment.device_kind, data.environment.revision
    cells = ((record, group) for group in data.groups.values() for record in group)
    return [cell_row(*cell) | {"device": device or cell[0].device, "revision": revision} for cell in cells]


def cell_row(record: Record, group: Sequence[Record]) -> dict[str, Cell]:
    """Return the numbers of a cell of a component's `group`, under their keys in JSON and headers in CSV."""
    times, call = record.summary, deciding(record)
    memory_kind, memory_bytes = record.peak_memory or (None, None)
    return {
        "target": printable(record.target),
        "component": printable(record.component),
        "variant": printable(record.variant),
        "status": wrong_because(record) or "ok",
        "reason": record.reason,
        "dtype": record.dtype,
        "samples": times.n if times is not None else None,
        "mean_ms": times.mean if times is not None else None,
        **with_ends("p50", median_of(record), "_ms"),
        "p99_ms": times.percentile("p99") if times is not None else None,
        "max_ms": times.max if times is not None else None,
        **with_bounds("speedup", None if record.is_realtime else speedup(record, group)),
        "vs_baseline": None if record.is_realtime else answer_on(record, group),
        "holds": held_rate(record) if record.is_correct else None,
        "rel_l2_error": record.parity.rel_l2 if record.parity is not None else None,
        "peak_memory_bytes": memory_bytes,
        "peak_memory_kind": memory_kind,
        "joules_per_frame": record.energy.joules_per_frame if record.energy is not None else None,
        "prepare_s": record.prepare.from_cold if record.prepare is not None else None,
        "bound_by": call.roofline.bound if call is not None else None,
        "conditions": conditions_text(record),
    }


def with_ends(name: str, value: Value | None, unit: str = "") -> dict[str, Cell]:
    """Return a number under its name, and the ends of its 95% interval; None for what is not known."""
    low, high = (value.low, value.high) if isinstance(value, Estimate) else (None, None)
    return {f"{name}{unit}": number_of(value), f"{name}_low{unit}": low, f"{name}_high{unit}": high}


def with_bounds(name: str, pair: Pair | None) -> dict[str, Cell]:
    """Return a ratio as `with_ends` does; beside other processes only the end of its interval that the screen shows."""
    value, interval = ratio_value(pair), pair.interval() if pair is not None else None
    ends = with_ends(name, value if isinstance(value, Estimate) else None)
    if interval is not None and isinstance(value, str) and value != UNDECIDED:
        ends |= {f"{name}_low": interval[0]} if interval[1] > 1 else {}
        ends |= {f"{name}_high": interval[1]} if interval[0] < 1 else {}
    return ends


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
            ).text = f"{record.name}: {reason}"
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
    record = answer.fastest
    judged = judged_rates(record) if record is not None else {}
    return {
        "component": answer.component,
        "fastest_correct": record.variant if record is not None else None,
        "same": answer.named("same"),
        "undecided": answer.named("undecided"),
        **(cell_row(record, answer.group) if record is not None else {}),
        "rates": {
            f"{fps:g}": {"answer": said.answer, "late": said.late, "n": said.n, "at_most": said.most}
            for fps, said in judged.items()
        },
        "next": answer.next[1] or None,
        "remarks": list(answer.remarks()),
    }
