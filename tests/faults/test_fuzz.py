"""Fuzzed files and channels.

hypothesis makes the content; the examples are the same in each run (derandomised), and bounded so that all of them take
less than a minute.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_record import record, summary

from profiling.report.render import render_console, render_html, render_markdown
from profiling.report.run_data import RunData
from profiling.results.environment import Environment, decode_environment
from profiling.results.jsonl import Results, decode_record, encode_record, read_results
from profiling.results.record import Metrics, Record

#: A line that no schema check refuses, so that every mutation reaches the typed reader.
LINE = json.loads(
    encode_record(record(p50=2.0, metrics=Metrics(wall_ms=summary(2.0, samples=(1.0, 2.0, 3.0)), extra={"watts": 3})))
)
COMMITTED = sorted((Path(__file__).resolve().parents[2] / "docs" / "results").glob("*/results.jsonl"))

numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([2**63, -1, 0, 1e308, float("inf")]))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def bounded(examples: int):
    """Return the settings of a fuzz test: the same examples in each run, and no deadline on a shared machine."""
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


def paths(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in JSON content."""
    children = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(each for key, value in children for each in paths(value, (*path, key)))]


def planted(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of JSON content with `value` at `path`."""
    if not path:
        return value
    copy = content.copy()
    copy[path[0]] = planted(content[path[0]], path[1:], value)
    return copy


@pytest.mark.fault(
    "results.jsonl of arbitrary bytes",
    happens="every line is a record or counted as skipped; a record of an unknown schema is refused in one line",
    kept="the records beside them",
)
@bounded(300)
@given(lines=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=5))
def test_arbitrary_lines(tmp_path_factory, lines):
    file = tmp_path_factory.mktemp("fuzz") / "results.jsonl"
    good = encode_record(record("good", 2.0))
    file.write_bytes(b"\n".join([encode_record(record("first")), *lines, good, *lines, b""]))
    results = read_results(file)
    assert [each.variant for each in results.records] == ["first", "good"]
    assert results.skipped_lines == 2 * sum(bool(line.strip()) for line in lines)
    assert isinstance(results, Results)


@pytest.mark.fault(
    "any value of a record replaced by arbitrary JSON",
    happens="the field is dropped and named, or the line is counted as skipped; the report is rendered all the same",
    kept="the other fields of the record",
)
@bounded(250)
@given(path=st.sampled_from(paths(LINE)[1:]), value=json_values)
def test_a_field_replaced(path, value):
    check_rendering(json.dumps(planted(LINE, path, value)), changes_schema=path == ("schema",))


@pytest.mark.fault(
    "any value of a real record of the committed runs replaced",
    happens="the field is dropped and named; the report is rendered all the same",
    kept="the other fields of the record",
)
@bounded(150)
@given(data=st.data())
def test_a_field_of_a_real_record_replaced(data):
    lines = data.draw(st.sampled_from(COMMITTED), label="run").read_text().splitlines()
    content = json.loads(data.draw(st.sampled_from(lines), label="line"))
    path = data.draw(st.sampled_from([path for path in paths(content)[1:] if "samples" not in path]), label="path")
    check_rendering(json.dumps(planted(content, path, data.draw(json_values))), changes_schema=path == ("schema",))


def check_rendering(line: str, *, changes_schema: bool) -> None:
    """Check that the line is a record, is none, or (only where its schema was changed) is refused; then render it."""
    try:
        typed = decode_record(line.encode())
    except ValueError:
        assert changes_schema
        return
    if typed is None:
        return
    assert isinstance(typed, Record)
    data = RunData((typed, record("good", 2.0)), Environment(), Path("run"))
    for text in (render_console(data), render_markdown(data), render_html(data)):
        assert "good" in text


@pytest.mark.fault(
    "environment.json of arbitrary JSON",
    happens="damaged fields are dropped, unknown keys are kept",
    kept="the fields that can be read",
)
@bounded(300)
@given(content=st.dictionaries(st.sampled_from(["seed", "device", "versions", "ceilings", "x"]), json_values))
def test_arbitrary_environment(content):
    known = {"dtype": "float32", **content}
    environment = decode_environment(json.dumps(known).encode())
    assert environment.dtype == "float32"
