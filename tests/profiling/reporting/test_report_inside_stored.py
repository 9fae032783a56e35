"""What a stored trace of an H200 says, from its events to the tables, against sums over the raw events."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiling.reporting.html.markdown_tables import tables_of
from profiling.reporting.inside import inside_lines, inside_tables
from profiling.results.records import Record
from profiling.trace.analysis import Traces, inside_of
from profiling.trace.events import WORK, read_events, timeline

FOLDER = Path(__file__).resolve().parents[2] / "data" / "traces"
#: A record, the trace's events of work on the device, and how many calls they are of.
Stored = tuple[Record, list[dict[str, Any]], int]
VARIANTS = ("baseline", "cuda_graph", "compile_cuda_graph")


@pytest.fixture(params=VARIANTS)
def stored(request: pytest.FixtureRequest, make: Callable[..., Record]) -> Stored:
    """Give a record with the section of a stored trace."""
    path = FOLDER / f"world_model_step.{request.param}.json.gz"
    traces = Traces(timeline(read_events(path)), modules_from="nowhere", lines_from="nowhere")
    section = inside_of(traces, lambda operator: (None, None), Path())
    assert section is not None
    with gzip.open(path, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    calls = len({event["name"] for event in events if re.search(r"/trace/\d+$", str(event.get("name")))})
    section = json.loads(json.dumps(section))  # as a record keeps it
    return (
        make(request.param, 2.0, component="world_model_step", inside=section),
        [event for event in events if event.get("cat") in WORK],
        calls,
    )


def test_kernels_add_up_to_the_events(stored: Stored) -> None:
    record, events, calls = stored
    tables = {table.title: table for table in tables_of(inside_tables([record], {}, kernels=1000))}
    kernels = tables["Kernels by total time"]
    place = {header: i for i, header in enumerate(kernels.headers)}
    times, counts = Counter(), Counter()
    for event in events:
        times[" ".join(event["name"].split())[:200]] += event["dur"] / 1e3 / calls
        counts[" ".join(event["name"].split())[:200]] += 1 / calls
    shown, number = Counter(), Counter()
    for row in kernels.rows:
        name = row[place["kernel"]].text
        shown[name] += float(row[place["total ms"]].text)
        number[name] += float(row[place["count"]].text)
    assert {name.strip() for name in times} == set(shown)
    for name, ms in times.items():
        assert shown[name.strip()] == pytest.approx(ms, rel=1e-3)
        assert number[name.strip()] == pytest.approx(counts[name], abs=0.05)
    totals = [float(row[place["total ms"]].text) for row in kernels.rows]
    assert totals == sorted(totals, reverse=True)


def test_the_line_holds_the_sum_and_says_what_is_idle(stored: Stored) -> None:
    record, events, calls = stored
    (line,) = inside_lines([record])
    assert line.startswith(f"world_model_step.{record.variant}: {len(events) / calls:g} kernels, busy ")
    busy, span, idle = map(float, re.findall(r"busy ([\d.]+) of ([\d.]+) ms, idle ([\d.]+) ms", line)[0])
    assert busy + idle == pytest.approx(span, rel=0.01)
    assert busy <= sum(event["dur"] for event in events) / 1e3 / calls * 1.01, "where work overlaps its sum is longer"
