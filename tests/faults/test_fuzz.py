"""Fuzzed files and channels (make test-slow).

hypothesis makes the content; the examples are the same in each run (derandomised), and bounded so that all of them take
less than a minute.
"""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from fake_cells import watched
from hypothesis import given
from hypothesis import strategies as st
from make_record import record, summary
from omegaconf import OmegaConf
from table import bounded, promise

from profiling.cli.config import read_component
from profiling.components.build import build
from profiling.components.checkpoint import load_into
from profiling.components.spec import Settings
from profiling.errors import InputError
from profiling.report.render import run_report
from profiling.report.run_data import RunData
from profiling.results.environment import ENVIRONMENT_FILE, Environment, read_environment
from profiling.results.jsonl import Results, decode_record, encode_record, read_records
from profiling.results.measured import Metrics
from profiling.results.record import Record
from profiling.run.events import EventReader
from profiling.shape_sweep import points_of

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


@promise("damaged records")
@bounded(300)
@given(lines=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=5))
def test_arbitrary_lines(tmp_path_factory, lines):
    file = tmp_path_factory.mktemp("fuzz") / "results.jsonl"
    good = encode_record(record("good", 2.0))
    file.write_bytes(b"\n".join([encode_record(record("first")), *lines, good, *lines, b""]))
    results = read_records(file)
    assert [each.variant for each in results.records] == ["first", "good"]
    assert results.skipped_lines == 2 * sum(bool(line.strip()) for line in lines)
    assert isinstance(results, Results)


@promise("damaged records")
@bounded(300)
@given(data=st.data())
def test_a_field_replaced(data):
    """It is a record, is none, or (only where its schema was changed) is refused; a record is rendered."""
    if data.draw(st.booleans(), label="a committed record"):
        lines = data.draw(st.sampled_from(COMMITTED), label="run").read_text().splitlines()
        content = json.loads(data.draw(st.sampled_from(lines), label="line"))
    else:
        content = LINE
    path = data.draw(st.sampled_from([path for path in paths(content)[1:] if "samples" not in path]), label="path")
    try:
        typed = decode_record(json.dumps(planted(content, path, data.draw(json_values))).encode())
    except ValueError:
        assert path == ("schema",)
        return
    if typed is None:
        return
    assert isinstance(typed, Record)
    run = RunData((typed, record("good", 2.0)), Environment(), Path("run"))
    for text in (run_report(run).console(), run_report(run).markdown(), run_report(run).page()):
        assert "good" in text


@promise("damaged records")
@bounded(300)
@given(content=st.dictionaries(st.sampled_from(["seed", "device", "versions", "ceilings", "x"]), json_values))
def test_arbitrary_environment(tmp_path_factory, content):
    known = {"dtype": "float32", **content}
    run = tmp_path_factory.mktemp("fuzz")
    (run / ENVIRONMENT_FILE).write_text(json.dumps(known))
    environment = read_environment(run)
    assert environment.dtype == ("float32" if environment.is_known else None)


def checkpoint_bytes(form: str) -> bytes:
    file = BytesIO()
    state = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    if form == "safetensors":
        return safetensors.torch.save(state)
    torch.save(state, file, _use_new_zipfile_serialization=form == "zip")
    return file.getvalue()


CHECKPOINTS = {form: checkpoint_bytes(form) for form in ("zip", "legacy", "safetensors")}
STARTS = st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", CHECKPOINTS["legacy"][:15], b"\x02" + bytes(7) + b"{"])


@promise("damaged checkpoint")
@pytest.mark.parametrize("form", [*CHECKPOINTS, "arbitrary"])
@bounded(150)
@given(data=st.data())
def test_bytes_of_a_checkpoint(tmp_path_factory, form, data):
    content = bytearray(CHECKPOINTS.get(form) or data.draw(STARTS) + data.draw(st.binary(max_size=200)))
    for _ in range(data.draw(st.integers(1, 3)) if form in CHECKPOINTS else 0):
        start = data.draw(st.integers(0, len(content)))
        end = start + data.draw(st.sampled_from([0, 1, 1, 1, 2, 4, 8, 64]))
        content[start:end] = data.draw(st.binary(min_size=end - start, max_size=end - start) | st.binary(max_size=16))
    path = tmp_path_factory.mktemp("fuzz") / "w.pt"
    path.write_bytes(content)
    message = str(path)
    try:
        load_into(torch.nn.Linear(2, 2), path)
    except InputError as error:
        message = str(error)
    assert message.isprintable()
    assert str(path) in message
    assert path.read_bytes() == content


COMPONENT = {
    "module": {"_target_": "torch.nn.Identity", "width": 8},
    "inputs": {"input": {"shape": [2, 8], "dtype": "float32", "distribution": "uniform", "low": 0.0, "high": 1.0}},
    "tiny": {"module": {"width": 4}, "inputs": {"input": {"shape": [1]}}, "frames_per_call": 1},
    "initialise": None,
    "checkpoint": None,
    "part": None,
    "frames_per_call": 1,
    "kind": "image",
    "sweep": {"axis": "batch", "values": [1, 2]},
}


@promise("component yaml")
@bounded(300)
@given(data=st.data())
def test_component_yaml(data):
    words = st.sampled_from(["tiny", "input", "batch", "int64", "integers", "torch.nn.Identity", [1], {}])
    anything = json_values | words
    path = data.draw(st.sampled_from(paths(COMPONENT)))
    node = planted(COMPONENT, path, data.draw(anything))
    if data.draw(st.booleans()) and isinstance(node, dict):
        node = {**node, data.draw(st.text(max_size=8) | st.integers()): data.draw(anything)}
    message = ""
    try:
        spec = read_component("mine", node)
        config = {"component": {"mine": node}, "axis": None, "values": None, "together": True}
        points_of(OmegaConf.create(config), spec)
        for scale in ("full", "tiny"):
            chosen = Settings(device="cpu", dtype="float32", scale=scale)
            build(spec.at(scale), chosen).component(seed=0)
    except InputError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) <= 2000


@promise("channel")
@bounded(300)
@given(data=st.data())
def test_arbitrary_bytes_between_events(data):
    sent = data.draw(st.lists(st.booleans(), min_size=1, max_size=8), label="whether each event arrives")
    garbage = st.binary(max_size=40)
    stream, strays = b"", 0
    for number, arrives in enumerate(sent):
        stray = data.draw(garbage)
        strays += sum(bool(line.strip()) for line in stray.split(b"\n"))
        stream += stray + (b'\n[%d,{"event":"phase","phase":"p%d"}]\n' % (number, number) if arrives else b"\n")
    reader, received = EventReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += reader.feed(stream[:size])
        stream = stream[size:]
    reader.close()
    assert [event.phase for event in received] == [f"p{number}" for number, arrives in enumerate(sent) if arrives]
    assert bool(reader.notes) == bool(strays)
    last = max((number for number, arrives in enumerate(sent) if arrives), default=-1)
    assert reader.lost == sum(not arrives for arrives in sent[: last + 1])


@promise("channel")
@bounded(300)
@given(
    sections=st.dictionaries(
        st.sampled_from(["metrics", "memory", "parity", "notes", "status", "x"]), json_values, max_size=3
    ),
    end=st.fixed_dictionaries({"event": st.just("end")}, optional={"status": json_values, "reason": json_values}),
)
def test_arbitrary_events(sections, end):
    cell, reader = watched(), EventReader()
    for number, event in enumerate(({"event": "sections", "sections": sections}, end)):
        for decoded in reader.feed(json.dumps([number, event]).encode() + b"\n"):
            cell.receive(decoded)
    made = cell.record()
    assert decode_record(encode_record(made)) is not None
    assert made.status != "ok" or not (set(sections) & {"status", "x"})
