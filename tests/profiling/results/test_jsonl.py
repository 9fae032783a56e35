"""results.jsonl: committed runs lose nothing, round trips are exact, damage costs what it touches and nothing else."""

import json
from pathlib import Path

import msgspec
import pytest
from make_record import record, summary

from profiling.errors import InputError
from profiling.results import jsonl, schema_1
from profiling.results.jsonl import append_record, decode_record, encode_record, read_records, read_results
from profiling.results.measured import Metrics, Parity
from profiling.results.record import leaves

RUNS = sorted((Path(__file__).resolve().parents[3] / "docs" / "results").glob("*/results.jsonl"))
#: A line in which damage is planted.
LINE = json.loads(encode_record(record(p50=2.0, metrics=Metrics(wall_ms=summary(2.0, samples=(1.0, 2.0, 3.0))))))


def test_there_are_committed_runs():
    assert RUNS


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_committed_run_loses_nothing(path):
    results = read_results(path)
    assert results.skipped_lines == 0
    assert not [lost for each in results.records for lost in each.unreadable]
    for line in path.read_text().splitlines():
        old = json.loads(line)
        typed = decode_record(line.encode())
        assert typed is not None
        new = dict(leaves(msgspec.to_builtins(typed)))
        if old["schema"] == 1:
            renamed = _renamed(old)
            bounds = [key for key in renamed if key.endswith(".bound")]
            for key in bounds:  # verdicts that were computed again have today's words
                word = schema_1.BOUNDS.get(renamed[key], renamed[key])
                assert new[key] in (word, "slow kernels", "underfilled GPU")
            renamed |= {key: new[key] for key in bounds} | {"schema": 2}
        else:
            renamed = dict(leaves(old))
        missing = {key: value for key, value in renamed.items() if value not in (None, False) and new.get(key) != value}
        assert not missing
        kept = {key for key, value in renamed.items() if value is not False or key in new}
        assert set(new) <= kept
        assert decode_record(encode_record(typed)) == typed


def _renamed(old):
    """Rename the keys of schema 1 by words of their own, so that the upgrade is held against something."""
    limits = {"floor_ms": "roofline_ms", "achieved_over_floor": "over_roofline"}
    words = {
        "limits": limits,
        "inside": {"own_ms": "self_ms"},
        "realtime": {"garbage": "gc", "of": "window_latents", "snr_bar_db": "min_snr_db"},
        "graphs": {"gain": "speedup"},
    }
    sections = {"limits": "roofline", "inside": "trace_analysis"}
    found = {}
    for path, value in leaves(old):
        section, *names = path.split(".")
        names = [words.get(section, {}).get(name, name) for name in names]
        found[".".join([sections.get(section, section), *names])] = value
    return found


def test_schema_1_latency_bound_is_told_apart_by_what_the_gpu_did():
    def bound(**work):
        old = {"schema": 1, "target": "t", "component": "c", "variant": "v", "status": "ok", "reason": None}
        numbers = dict.fromkeys(("kernels", "launches", "median_us", "transfer_ms", "waits"), 1.0)
        limits = {"bound": "latency-bound", **({"device_work": {**numbers, **work}} if work else {})}
        typed = decode_record(json.dumps({**old, "limits": {**limits, "parts": {"world": dict(limits)}}}).encode())
        assert typed is not None
        assert typed.roofline is not None
        assert typed.roofline.parts["world"].bound == typed.roofline.bound
        return typed.roofline.bound

    assert bound() == "slow kernels"
    assert bound(busy_ms=2.0, short_ms=0.9) == "slow kernels"
    assert bound(busy_ms=2.0, short_ms=1.1) == "underfilled GPU"


def test_schema_1_metrics_of_the_user_become_extra():
    old = {"schema": 1, "target": "t", "component": "c", "variant": "v", "status": "ok", "reason": None}
    typed = decode_record(json.dumps({**old, "metrics": {"watts": {"p50": 300.0}, "status": 3}}).encode())
    assert typed is not None
    assert typed.metrics == Metrics(extra={"watts": {"p50": 300.0}, "status": 3})
    assert not typed.unreadable


def test_the_newest_of_each_cell_in_the_order_of_the_first(tmp_path):
    for each in (record("a", 1.0), record("b", 2.0), record("a", 3.0)):
        append_record(tmp_path, each)
    assert read_records(tmp_path) == ((record("a", 3.0), record("b", 2.0)), 0)


def test_appending_closes_a_line_that_was_cut_off(tmp_path):
    append_record(tmp_path, record("a"))
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes() + encode_record(record("b"))[:50])
    append_record(tmp_path, record("c"))
    results = read_records(tmp_path)
    assert [each.variant for each in results.records] == ["a", "c"]
    assert results.skipped_lines == 1


def test_what_is_not_finite_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        append_record(tmp_path, record(p50=float("nan")))
    assert not (tmp_path / "results.jsonl").exists()


def test_what_reading_dropped_is_not_written():
    assert b"unreadable" not in encode_record(record(unreadable=("metrics: x",)))


@pytest.mark.parametrize("line", [b"{}", b"[]", b"3", b"null", b"\xff\xfe", b'{"schema": 2}', b"[" * 100_000, b"{" * 9])
def test_a_line_that_is_no_record_is_counted(tmp_path, line):
    file = tmp_path / "results.jsonl"
    file.write_bytes(
        b"\xef\xbb\xbf" + encode_record(record("a")) + b"\r\n\n" + line + b"\n" + encode_record(record("b"))
    )
    results = read_results(file)
    assert [each.variant for each in results.records] == ["a", "b"]
    assert results.skipped_lines == 1


@pytest.mark.parametrize("damage", [{"status": "fine"}, {"reason": "though ok"}, {"variant": 3}, {"status": "failed"}])
def test_a_record_without_identity_or_status_is_none(damage):
    assert decode_record(json.dumps({**LINE, **damage}).encode()) is None


@pytest.mark.parametrize("schema", [0, 3, "two", None, [2]])
def test_another_schema_is_an_error(tmp_path, schema):
    (tmp_path / "results.jsonl").write_text(json.dumps({**LINE, "schema": schema}))
    with pytest.raises(InputError, match="schema"):
        read_records(tmp_path)


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no run"):
        read_records(tmp_path)


def test_fields_of_a_later_version_are_passed_over():
    typed = decode_record(json.dumps({**LINE, "energy": {"joules": 3}}).encode())
    assert typed is not None
    assert typed.wall_p50 == 2.0
    assert not typed.unreadable


@pytest.mark.parametrize(
    ("path", "value", "lost"),
    [
        ("dtype", "3", "dtype"),
        ("parameters", '"many"', "parameters"),
        ("parameters", "1" + "0" * 30, "parameters"),
        ("parameters", "1" + "0" * 5000, "parameters"),
        ("metrics", "[]", "metrics"),
        ("metrics.wall_ms.samples", "[1.0, NaN]", "metrics.wall_ms.samples"),
        ("metrics.wall_ms.samples", '[1.0, "2"]', "metrics.wall_ms.samples"),
        ("metrics.wall_ms.std", "Infinity", "metrics.wall_ms.std"),
        ("metrics.wall_ms.std", "1e999", "metrics.wall_ms.std"),
        ("metrics.wall_ms.p50", "true", "metrics.wall_ms"),
        ("metrics.wall_ms.ci95", "[1.0]", "metrics.wall_ms.ci95"),
        ("metrics.extra", '{"watts": {"p50": NaN}}', "metrics.extra.watts.p50"),
        ("metrics.extra", '{"deep": ' + "[" * 500 + "]" * 500 + "}", "metrics.extra.deep"),
        ("metrics.extra", '{"deep": ' + '{"a": ' * 500 + "1" + "}" * 500 + "}", "metrics.extra.deep"),
        ("memory", '{"phases": {"start": {"allocated": "x"}}, "graph_pool": 3}', "memory.phases"),
        ("passes", '[{"name": "a"}, {"name": 3}]', "passes"),
        ("roofline", '{"bound": 3, "roofline_ms": 1.0}', "roofline.bound"),
    ],
)  # fmt: skip
def test_damage_costs_the_smallest_field_that_holds_it(path, value, lost):
    content = json.loads(json.dumps({**LINE, "parity": {"reference": "x", "passed": True}}))
    *parents, name = path.split(".")
    inner = content
    for parent in parents:
        inner = inner[parent]
    inner[name] = "PLANTED"
    typed = decode_record(json.dumps(content).replace('"PLANTED"', value, 1).encode())
    assert typed is not None
    assert typed.parity == Parity(reference="x", passed=True)
    assert any(each.startswith(lost) for each in typed.unreadable), typed.unreadable
    assert (typed.wall_p50 == 2.0) == (lost not in ("metrics", "metrics.wall_ms"))
    assert decode_record(encode_record(typed)) == msgspec.structs.replace(typed, unreadable=())


def test_a_parity_check_that_cannot_be_read_does_not_count_as_passed():
    for parity, correct in (({"passed": 1}, False), ([], False), ({"passed": True, "rel_l2": "x"}, True)):
        typed = decode_record(
            json.dumps({**LINE, "parity": {"reference": "x", **parity} if parity else parity}).encode()
        )
        assert typed is not None
        assert typed.is_correct is correct


def test_text_that_no_file_takes_is_replaced():
    typed = decode_record(json.dumps({**LINE, "notes": ["PLANTED"]}).replace("PLANTED", r"\ud800!").encode())
    assert typed is not None
    assert typed.notes == ("?!",)


def test_a_file_cannot_plant_what_reading_dropped():
    typed = decode_record(json.dumps({**LINE, "unreadable": ["all of it"]}).encode())
    assert typed is not None
    assert typed.unreadable == ()


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_line_is_read_alike_at_once_and_value_by_value(path, monkeypatch):
    lines = [encode_record(each) for each in read_results(path).records]
    at_once = [decode_record(line) for line in lines]
    monkeypatch.setattr(jsonl, "_undamaged", lambda line: None)
    assert [decode_record(line) for line in lines] == at_once


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775808", "1e999", "NaN", '"\\ud800"'])
def test_what_may_be_damage_is_read_value_by_value(number):
    line = json.dumps(LINE | {"parameters": 0}).replace('"parameters": 0', f'"parameters": {number}')
    assert jsonl._undamaged(line.encode()) is None
    assert [each.partition(":")[0] for each in decode_record(line.encode()).unreadable] == ["parameters"]


def test_small_numbers_are_no_large_ones():
    samples = (1.0000000000000002e-300, 0.00012345678901234567, 1234567890123456.7, 0.1)
    known = record(metrics=Metrics(wall_ms=summary(2.0, samples=samples)))
    assert jsonl._undamaged(encode_record(known)) == known
