"""results.jsonl: committed runs lose nothing, round trips are exact, damage costs its line and nothing else."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from make_record import record, summary

from profiling.errors import InputError
from profiling.results.jsonl import append_record, decode_record, encode_record, read_records
from profiling.results.measured import Metrics
from profiling.results.record import leaves

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
RUNS = sorted(RESULTS.rglob("results.jsonl"))
#: Fields that committed runs have and this version does not.
GONE = re.compile(
    r"warmup_iterations|cache_control|max_allocated|max_reserved|peak_reserved|descheduled|run_queue_wait_ms|longest_run"
    r"|sm_clock_(min|max)_mhz|sm_clock_mhz|first_call_s|restore_us|^load\.|memory_bytes|steady\.p99"
    r"|graphs\.(wall_ms|host_launches)|hardware_counters\.launches|^prepare\.stages|^realtime\.memory\.\w+\.(min|max|ci95)"
)
#: A line in which damage is planted.
LINE = json.loads(encode_record(record(p50=2.0, metrics=Metrics(wall_ms=summary(2.0, samples=(1.0, 2.0, 3.0))))))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.parent.relative_to(RESULTS)))
def test_a_committed_run_loses_nothing(path):
    results = read_records(path)
    assert results.skipped_lines == 0
    for line, typed in zip(path.read_text().splitlines(), results.records, strict=True):
        old, new = (dict(leaves(content)) for content in (json.loads(line), msgspec.to_builtins(typed)))
        old = {key: value for key, value in old.items() if not GONE.search(key)}
        missing = {key: value for key, value in old.items() if value not in (None, False) and new.get(key) != value}
        assert not missing
        assert set(new) <= {key for key, value in old.items() if value is not False or key in new}
        assert decode_record(encode_record(typed)) == typed


def test_the_newest_of_each_cell_in_the_order_of_the_first(tmp_path):
    for each in (record("a", 1.0), record("b", 2.0), record("a", 3.0)):
        append_record(tmp_path, each)
    assert read_records(tmp_path)[:2] == ((record("a", 3.0), record("b", 2.0)), 0)


def test_appending_closes_a_line_that_was_cut_off(tmp_path):
    append_record(tmp_path, record("a"))
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes() + encode_record(record("b"))[:50])
    append_record(tmp_path, record("c"))
    assert read_records(tmp_path)[:2] == ((record("a"), record("c")), 1)


def test_what_is_not_finite_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        append_record(tmp_path, record(p50=float("nan")))
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize("text", ["\ud800!", "größer"])
def test_what_is_written_can_be_read(tmp_path, text):
    append_record(tmp_path, record(weights=text, metrics=Metrics(extra={text: text})))
    ((read,), skipped, _) = read_records(tmp_path)
    assert skipped == 0
    known = text.replace("\ud800", "?")
    assert (read.weights, read.metrics.extra) == (known, {known: known})


def test_lines_that_are_no_record_are_counted(tmp_path):
    damage = (b"{}", b"[]", b"3", b"\xff\xfe", b'{"schema": 2}', b"[" * 100_000, b"{" * 9)
    good = [encode_record(record(name)) for name in "ab"]
    file = tmp_path / "results.jsonl"
    file.write_bytes(b"\n".join([b"\xef\xbb\xbf" + good[0] + b"\r", b"", *damage, good[1], b""]))
    assert read_records(file)[:2] == ((record("a"), record("b")), len(damage))


@pytest.mark.parametrize("schema", [3, "two", None])
def test_another_schema_is_an_error(tmp_path, schema):
    with pytest.raises(InputError, match="no run"):
        read_records(tmp_path)
    (tmp_path / "results.jsonl").write_text(json.dumps({**LINE, "schema": schema}))
    with pytest.raises(InputError, match="schema"):
        read_records(tmp_path)


def test_a_line_that_does_not_validate_is_no_record():
    for damage in (
        *({"status": "fine"}, {"reason": "though ok"}, {"status": "failed"}),
        {"parity": {"reference": "x", "passed": 1}},
        {"metrics": {"wall_ms": {"p50": float("nan")}}},
        {"metrics": {"extra": {"watts": float("inf")}}},
    ):
        assert decode_record(json.dumps({**LINE, **damage}).encode()) is None, damage
    of_a_later_version = {**LINE, "later": {"joules": 3}}
    assert decode_record(json.dumps(of_a_later_version).encode()) == decode_record(json.dumps(LINE).encode())
